"""Contract files: faults with their places, edits with their direction."""

from __future__ import annotations

from pathlib import Path

import pytest

import bot.cells
from bot.amendment import edits
from bot.cells import cells, check_cells
from bot.change import Repository
from bot.check import Request, analyse
from bot.cli import main
from bot.contract import Contract, load
from bot.errors import UserError
from bot.policy import load as load_policy
from bot.report.contract import describe, sentences
from tests.conftest import ROOT, Workbench


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
        (b"", "the file is empty; `fla-bot init` writes"),
        (b"# nothing\n", "the file is empty"),
        (b"- 1\n", "the file: expected a mapping"),
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
    assert any(words in fault for _, fault in check_cells(contract))


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


def test_a_predicate_that_reads_a_variable_is_told_what_it_may_read(contract_text: bytes) -> None:
    broken = edited(
        contract_text, ("when: x.dtype == fp32", "when: T == 33"), ("- layout !=", "- x !=")
    )
    said = [fault[2] for fault in faults(broken)]
    assert "`T == 33`: unknown name `T`; a predicate reads the arguments of a call: eps, x" in said
    assert any("a constraint reads axes: direction, dtype, eps, layout" in text for text in said)


def test_no_message_speaks_of_python_s_own_files(contract_text: bytes) -> None:
    broken = edited(contract_text, ("when: x.dtype == fp32", "when: (x.dtype"))
    assert faults(broken)[0][2] == "`(x.dtype` is not an expression: '(' was never closed"


def test_value_of_no_plain_kind_is_one_fault(contract_text: bytes) -> None:
    broken = edited(contract_text, ("T: 33, H", "T: [1], H"), ("grad: true", "grad: yes"))
    assert [fault[2] for fault in faults(broken)] == [
        "`entry_points.l2norm.variables.T`: expected a number, text, true, false or null",
        "`entry_points.l2norm.args.x.grad`: expected true or false",
    ]


def validated(
    repo: Workbench, capsys: pytest.CaptureFixture[str], text: bytes, name: str = "l2norm"
) -> tuple[int, str, list[str]]:
    path = repo.path / f"contracts/{name}.yaml"
    path.write_bytes(text)
    status = main(["contract", "validate", str(path)])
    said = capsys.readouterr()
    lines = [line.removeprefix(f"fla-bot: {path}:") for line in said.err.splitlines()]
    return status, said.out, lines


def test_validate_holds_a_contract_against_policy_and_tree(
    kernels: Workbench, capsys: pytest.CaptureFixture[str], contract_text: bytes
) -> None:
    assert validated(kernels, capsys, contract_text)[0] == 0
    broken = edited(
        contract_text,
        ('"correctness:sm90", ', '"correctness:sm99", '),
        ("target: fla.modules.l2norm:l2norm", "target: fla.modules.l2norm:l2nrom"),
        ("reference: fla.modules.l2norm_naive", "reference: fla.modules.naive"),
        ("kernels: [l2norm_fwd_kernel", "kernels: [l2norm_forward_kernel"),
        ("4.0e-4, bf16: 3.0e-3}", "4.0e-4}"),
    )
    status, out, said = validated(kernels, capsys, broken)
    assert status == 1
    assert "faults, see below" in out
    wanted = {
        '"correctness:sm99"': "lane `correctness:sm99` is not in the policy; name one of interpret",
        "target:": "fla/modules/l2norm.py has no `l2nrom`; is it `l2norm`?",
        "reference:": "there is no module fla.modules.naive in the tree; name the one that has",
        "l2norm_forward_kernel": "no file of the tree defines a kernel `l2norm_forward_kernel`; is",
        "budget: {fp32: 2": "`y` has no budget for bf16, which the axes set; add it",
    }
    for needle, words in wanted.items():
        line, column = place(broken, needle)
        assert any(text.startswith(f"{line}:{column}: {words}") for text in said), (needle, said)
    assert len(said) == len(wanted)


def test_validate_says_how_a_function_and_its_contract_differ(
    kernels: Workbench, capsys: pytest.CaptureFixture[str], contract_text: bytes
) -> None:
    renamed = contract_text.replace(b"eps", b"epsilon")
    _, _, (said,) = validated(kernels, capsys, renamed)
    assert "`epsilon` is no parameter; mend the contract or the function" in said
    _, _, (said,) = validated(kernels, capsys, contract_text, "other")
    line, column = place(contract_text, "op: l2norm")
    assert said.startswith(f"{line}:{column}: `op` is `l2norm`; the file must be called l2norm")


def test_validate_gives_a_place_to_cells_that_cannot_be_called(
    kernels: Workbench, capsys: pytest.CaptureFixture[str], contract_text: bytes
) -> None:
    _, _, said = validated(kernels, capsys, edited(contract_text, ("{D: 100}", "{D: -5}")))
    line, column = place(contract_text, "axes:")
    assert len(said) == 1  # however many cells have that width
    assert said[0].startswith(f"{line}:{column}: axis letter `D` is -5, not a size: so that l2norm")


def test_validate_names_what_a_draft_leaves_open(
    kernels: Workbench, capsys: pytest.CaptureFixture[str], contract_text: bytes
) -> None:
    draft = edited(contract_text, ("status: enforced", "status: draft"))
    status, out, _ = validated(kernels, capsys, draft)
    assert status == 0
    assert "a draft that leaves nothing open: `status: enforced` makes it a gate" in out
    vague = edited(draft, ("    lanes: [", "    open: [lanes, budgets]\n    lanes: ["))
    _, out, _ = validated(kernels, capsys, vague)
    assert "open in l2norm: lanes, budgets" in out
    assert "filled in l2norm, and still in its `open`: lanes, budgets" in out


def test_validate_says_what_it_could_not_look_at(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], contract_text: bytes
) -> None:
    (tmp_path / "l2norm.yaml").write_bytes(contract_text)
    assert main(["contract", "validate", str(tmp_path / "l2norm.yaml")]) == 0
    assert "not checked: there is no policy.yaml beside the file" in capsys.readouterr().out


def test_show_lists_cells_and_does_not_search_for_them_twice(
    kernels: Workbench, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = kernels.path / "contracts/l2norm.yaml"
    contract = load(file.read_bytes(), "c.yaml")
    monkeypatch.setenv("XDG_CACHE_HOME", str(kernels.path))
    assert main(["contract", "show", str(file)]) == 0
    shown = capsys.readouterr().out
    assert all(f"    {cell.id}\n" in shown for cell in cells(contract, "l2norm"))
    monkeypatch.setattr(bot.cells, "_known", {})
    monkeypatch.setattr(bot.cells, "_pairwise", None)
    # What `show` has found serves the plan too.
    with Repository(kernels.path) as repository:
        analyse(repository, Request(head=None))
    assert main(["contract", "show", str(file)]) == 0
    assert capsys.readouterr().out == shown


def test_diff_reads_commits_and_tells_a_new_name_in_one_line(
    kernels: Workbench, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(kernels.path)
    path = "contracts/l2norm.yaml"
    text = (kernels.path / path).read_text().replace("x.", "rows_.").replace("      x:", "      v:")
    kernels.write({path: text.replace("rows_.", "v.").replace("bf16: 3.0e-3", "bf16: 4.0e-3")})
    assert main(["contract", "diff", f"main:{path}", path]) == 1
    assert capsys.readouterr().out.splitlines() == [
        "weaker   entry_points.l2norm.args: renamed x -> v, and so in 18 other places",
        "weaker   entry_points.l2norm.outputs.y.budget.bf16: 0.003 -> 0.004",
    ]
    assert main(["contract", "diff", f"main:{path}", f"main:{path}"]) == 0
    assert capsys.readouterr().out == "no difference\n"
    assert main(["contract", "diff", "main:l2norm.yaml", path]) == 1
    assert "main has no file l2norm.yaml; paths start at the root" in capsys.readouterr().err
    assert main(["contract", "diff", f"nowhere:{path}", path]) == 1
    assert "`nowhere` is no commit here" in capsys.readouterr().err


def test_new_name_of_an_argument_that_a_variable_has_too(contract_text: bytes) -> None:
    """`eps: {value: eps}`: the argument has a new name, the variable keeps its own."""
    renamed = contract_text.replace(b"      eps: {value: eps}", b"      epsilon: {value: eps}")
    renamed = renamed.replace(b'when: "eps ', b'when: "epsilon ')
    (found,) = sentences(edits(load(contract_text, "c.yaml"), load(renamed, "c.yaml")))
    said = "entry_points.l2norm.args: renamed eps -> epsilon, and so in 2 other places"
    assert found == ("weaker", said)


def test_long_values_are_shown_where_they_part(contract_text: bytes) -> None:
    trusted = load(contract_text, "c.yaml")
    long = "eps: {value: " + " + ".join(["eps"] * 25)
    ends = [load(edited(contract_text, ("eps: {value: eps", f"{long} + {n}")), "c") for n in (1, 2)]
    ((_, said),) = sentences(edits(*ends))
    assert said.startswith("entry_points.l2norm.args.eps.value: ...")
    assert said.endswith('+ eps + 2"')
    dropped = edited(
        contract_text, ('          d3: {set: {D: 3}, when: "x.shape[-1] <= 16"}\n', "")
    )
    ((_, said),) = sentences(edits(trusted, load(dropped, "c.yaml")))
    assert said == "entry_points.l2norm.axes.width.values.d3: removed"


def test_contract_of_the_guide_has_no_fault() -> None:
    guide = (ROOT / "docs/contracts.md").read_text()
    contract = load(guide.split("```yaml\n")[1].split("```")[0].encode(), "guide")
    assert check_cells(contract) == []
    assert edits(contract, contract) == []
