"""Contract files: faults with their places, edits with their direction."""

from __future__ import annotations

import pytest

from bot.amendment import edits
from bot.cells import check_cells
from bot.contract import Contract, load
from bot.errors import UserError
from bot.policy import load as load_policy
from bot.report.contract import describe


def faults(text: bytes) -> list[tuple[int, int, str]]:
    with pytest.raises(UserError) as caught:
        load(text, "c.yaml")
    assert all(fault.path == "c.yaml" for fault in caught.value.faults)
    return [(fault.line, fault.column, fault.message) for fault in caught.value.faults]


def place(text: bytes, needle: str) -> tuple[int, int]:
    """Line and column of the first occurrence, counted from 1."""
    before = text.decode().split(needle)[0]
    return before.count("\n") + 1, len(before) - (before.rfind("\n") + 1) + 1


def edited(text: bytes, *pairs: tuple[str, str]) -> bytes:
    result = text.decode()
    for old, new in pairs:
        assert old in result
        result = result.replace(old, new, 1)
    return result.encode()


def test_five_faults_are_reported_at_once_each_at_its_place(contract_text: bytes) -> None:
    broken = edited(
        contract_text,
        ("status: enforced", "status: inforced"),
        ("bounds:", "bonds:"),
        ("x.dtype == fp16", "x.__class__"),
        ("target: fla.modules", "target: 1fla.modules"),
        ("fp32: 2.0e-7", "fp32: -1"),
    )
    found = faults(broken)
    expected = {
        place(broken, "status: inforced"): "status",
        place(broken, "bonds"): "unknown key `bonds`",
        place(broken, "when: x.__class__"): "__class__",
        place(broken, "fp32: -1"): "greater than 0",
        place(broken, "target: 1fla"): "target",
    }
    for (line, column), word in expected.items():
        assert any(f[:2] == (line, column) and word in f[2] for f in found), (word, found)
    assert len(found) == 5


def test_names_that_point_nowhere(contract_text: bytes) -> None:
    broken = edited(
        contract_text,
        ("{D: 100}", "{E: 100}"),
        ("dims: [B, T, H, D]\n", "dims: [B, T, H, Z]\n"),
        ("gradients:\n      x:", "gradients:\n      z:"),
        ('layout != "transposed"', 'lay_out != "transposed"'),
        ("eps: {value: eps}", "eps: {}"),
    )
    found = faults(broken)
    assert {place(broken, "E: 100")} <= {fault[:2] for fault in found}
    messages = " / ".join(fault[2] for fault in found)
    for word in ("`E`", "`Z`", "`z`", "`lay_out`", "`eps` must have", "no entry in `gradients`"):
        assert word in messages


@pytest.mark.parametrize(
    ("text", "word"),
    [
        (b"a: &x [1]\nb: *x\n", "anchors"),
        (b"a: 1\na: 2\n", "stands twice"),
        (b"a: [1\n", "expected"),
        (b"\xff\xfe\x00", "not UTF-8"),
        (b"a: !!python/object:os.system x\n", ""),
        (b"[" * 100 + b"]" * 100, "nested too deeply"),
        (b"x" * (2 << 20), "limit"),
        (b"", "object"),
        (b"- 1\n", "object"),
    ],
)
def test_yaml_that_is_no_contract(text: bytes, word: str) -> None:
    assert word in " / ".join(message for _, _, message in faults(text))


def test_policy_faults_have_places_too() -> None:
    text = b"schema: fla-bot/policy@1\nsource_roots: []\nareas:\n"
    text += b"  - {area: a, globs: ['!x']}\nwhat: 1\n"
    with pytest.raises(UserError) as caught:
        load_policy(text, "policy.yaml")
    lines = [(fault.line, fault.message) for fault in caught.value.faults]
    assert (5, "unknown key `what`") in lines
    assert any(line == 2 and "source_roots" in message for line, message in lines)
    missing = {message for _, message in lines if "is missing" in message}
    assert missing == {f"`{name}` is missing" for name in ("python", "lanes", "margins")}


@pytest.mark.parametrize(
    ("old", "new", "kind"),
    [
        ("fp32: 2.0e-7", "fp32: 1.0e-7", "tighter"),
        ("fp32: 2.0e-7", "fp32: 3.0e-7", "weaker"),
        ("fp32: 2.0e-7, ", "", "weaker"),
        ("D: 8192", "D: 16384", "tighter"),
        ("D: 8192", "D: 4096", "weaker"),
        ("repeat: exact", "repeat: within-budget", "weaker"),
        ("backward: false, layout", "backward: 0, layout", "weaker"),
        ("repeat: exact", "repeat: {fp32: exact, fp16: exact, bf16: exact}", "weaker"),
        ("status: enforced", "status: draft", "weaker"),
        ('          d3: {set: {D: 3}, when: "x.shape[-1] <= 16"}\n', "", "weaker"),
        (
            "          full: {",
            '          two: {set: {T: 2}, when: "x.shape[1] == 2"}\n          full: {',
            "adds",
        ),
        ("    constraints:\n", '    constraints:\n      - width != "d3"\n', "weaker"),
        ('"interpret:cpu", ', "", "weaker"),
        ("naive_l2norm\n", "other_l2norm\n", "weaker"),
        ("tile: {B: 1, T: 16, H: 1}", "tile: {B: 1, T: 64, H: 1}", "weaker"),
        ("x: {dims: [B, T, H, D]", "x: {dims: [D, T, H, B]", "weaker"),
        ("x: {dims: [B, T, H, D]", "x: {dims: [B, T, H, D, D]", "weaker"),
        (
            "          d64: {",
            '          d2: {set: {D: 2}, when: "x.shape[-1] == 2"}\n          d64: {',
            "weaker",
        ),
        ('owners: ["@fla-bot/kernels"]', 'owners: ["@me"]', "weaker"),
        ("      permutation: {exactness: exact, axes: [[B], [T], [H]]}\n", "", "weaker"),
        ("exactness: exact", "exactness: within-budget", "weaker"),
        ("exactness: exact", "exactness: {fp32: exact, fp16: n/a}", "weaker"),
        ("[[B], [T], [H]]", "[[B], [H]]", "weaker"),
        ("[[B], [T], [H]]", "[[B], [T], [H], [D]]", "adds"),
        ("kernels: [l2norm_fwd_kernel, l2norm_bwd", "kernels: [l2norm_bwd", "weaker"),
        ("kernels: [l2norm_fwd", "kernels: [l2norm_sum_kernel, l2norm_fwd", "adds"),
        (
            "      repeat: exact\n",
            "      repeat: exact\n      linear: {exactness: exact, inputs: [x], outputs: [y]}\n",
            "adds",
        ),
    ],
)
def test_direction_of_an_edit(contract_text: bytes, old: str, new: str, kind: str) -> None:
    trusted = load(contract_text, "c.yaml")
    proposed = load(edited(contract_text, (old, new)), "c.yaml")
    kinds = {edit.kind for edit in edits(trusted, proposed)}
    assert kind in kinds
    assert kind == "weaker" or "weaker" not in kinds


PROPERTIES = """\
      causal: {exactness: {fp32: exact}, axis: T, step: 2, within: [x]}
      linear: {exactness: exact, inputs: [x], outputs: [y]}
      split: {exactness: exact, axis: T, length: T, step: 16, carry: {y: x}, first: {B: 2}}
"""


def with_properties(text: bytes) -> bytes:
    return edited(text, ("      repeat: exact\n", f"      repeat: exact\n{PROPERTIES}"))


@pytest.mark.parametrize(
    ("old", "new", "kind"),
    [
        ("within: [x]", "within: [x, x]", ""),
        ("exactness: {fp32: exact}", "exactness: {fp32: within-budget}", "weaker"),
        ("exactness: {fp32: exact}", "exactness: {fp32: exact, fp16: exact}", "weaker"),
        ("step: 2", "step: 4", "weaker"),
        ("step: 16", "step: 32", "weaker"),
        ("first: {B: 2}", "first: {}", "weaker"),
    ],
)
def test_direction_of_an_edit_of_properties(
    contract_text: bytes, old: str, new: str, kind: str
) -> None:
    text = with_properties(contract_text)
    found = edits(load(text, "c.yaml"), load(edited(text, (old, new)), "c.yaml"))
    assert {edit.kind for edit in found} == ({kind} if kind else set())


@pytest.mark.parametrize(
    ("old", "new", "needle", "words"),
    [
        ("within: [x]", "within: [z]", "z]", "`z` is no tensor of this entry point"),
        ("within: [x]", "within: [eps]", "eps]", "`eps` is no tensor"),
        ("outputs: [y]", "outputs: [x]", "outputs: [x]", "`x` is no output of this entry point"),
        ("step: 2", "step: Q + 1", "step: Q", "unknown name `Q`"),
        ("axis: T, step", "axis: Q, step", "axis: Q", "axis letter `Q`"),
        ("[[B], [T]", "[[B, Q], [T]", "[B, Q]", "axis letter `Q`"),
        ("length: T", "length: Q", "length: Q", "`Q` is not one of `variables`"),
        ("first: {B: 2}", "first: {Q: 2}", "Q: 2", "`Q` is not one of `variables`"),
        ("carry: {y: x}", "carry: {y: w}", "y: w", "`w` is no tensor"),
        ("within: [x]", "inside: [x]", "inside", "unknown key `inside`"),
        ("exactness: {fp32: exact}", "exactness: {fp32: nearly}", "fp32: nearly", "within-budget"),
    ],
)
def test_faults_of_properties_have_their_place(
    contract_text: bytes, old: str, new: str, needle: str, words: str
) -> None:
    broken = edited(with_properties(contract_text), (old, new))
    found = faults(broken)
    line, column = place(broken, needle)
    said = [f for f in found if words in f[2]]
    assert [f[0] for f in said] == [line] * len(said) != [], found
    assert all(abs(f[1] - column) <= len(needle) for f in said), (found, column)


def test_how_well_a_property_holds_is_by_dtype(contract_text: bytes) -> None:
    point = load(with_properties(contract_text), "c.yaml").entry_points["l2norm"]
    said = [point.properties.exactness("causal", dtype) for dtype in ("fp32", "fp16")]
    assert said == ["exact", "n/a"]
    assert point.properties.exactness("repeat", "bf16") == "exact"
    assert point.properties.exactness("permutation", "bf16") == "exact"


def test_show_lists_properties_and_kernels(contract_text: bytes) -> None:
    text = describe(load(with_properties(contract_text), "c.yaml"))
    assert "property causal: fp32 exact" in text
    assert "property repeat: exact" in text
    assert "kernels: l2norm_fwd_kernel, l2norm_bwd_kernel" in text


def test_digest_of_an_edit_covers_all_of_it(contract_text: bytes) -> None:
    trusted = load(contract_text, "c.yaml")
    long = "eps: {value: " + " + ".join(["eps"] * 25)
    found = [
        edits(trusted, load(edited(contract_text, ("eps: {value: eps", f"{long} + {end}")), "c"))
        for end in (0, 1000)
    ]
    assert found[0] != found[1]


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("{D: 100}", "{D: -5}", "not a size"),
        ("{family: tiny}", "{family: nonsense}", "not a family"),
        ('layout != "transposed" or', "1 / 0 or", "division by zero"),
        ("{layout: sliced}", "{layout: diagonal}", "unknown layout"),
        ('- layout != "transposed"', '- "False"\n      - layout != "transposed"', "no cell at all"),
    ],
)
def test_cell_that_cannot_be_built_is_a_fault(
    contract_text: bytes, old: str, new: str, words: str
) -> None:
    contract = load(edited(contract_text, (old, new)), "c.yaml")
    assert any(words in fault for fault in check_cells(contract))


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("{B: 2, T: 33", "{normal: zeros, B: 2, T: 33", "is a word of the grammar"),
        ('"/fla/modules/l2norm.py"', '"!x"', "not a positive"),
        (
            "      - name: y\n",
            "      - {name: y, dims: [B], budget: {fp32: 1.0}}\n      - name: y\n",
            "twice",
        ),
        ('"/fla/modules/l2norm.py"', '"/*a*a*a*a*b"', "wildcards in one segment"),
        ('"/fla/modules/l2norm.py"', '"{op}{op}"', "redefinition"),
    ],
)
def test_words_and_globs_that_would_mislead(
    contract_text: bytes, old: str, new: str, words: str
) -> None:
    assert words in " / ".join(f[2] for f in faults(edited(contract_text, (old, new))))


def test_too_many_pairs_of_axis_values_are_refused(contract_text: bytes) -> None:
    values = "".join(f"          v{n}: {{set: {{}}, when: 'True'}}\n" for n in range(60))
    axes = "".join(f"      a{n}:\n        values:\n{values}" for n in range(10))
    broken = edited(contract_text, ("    axes:\n", f"    axes:\n{axes}"))
    assert "pairs of axis values" in " / ".join(f[2] for f in faults(broken))


def test_equal_contracts_have_no_edits(contract_text: bytes) -> None:
    trusted = load(contract_text, "c.yaml")
    assert edits(trusted, load(contract_text + b"# a comment\n", "c.yaml")) == []
    assert isinstance(trusted, Contract)
