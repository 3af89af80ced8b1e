"""The eighth of the ten ways: changes that hide what they do, and those that only a person may let
through. `test_scenarios.py` has the others.
"""

from __future__ import annotations

import pytest

from bot.github.case import RowId
from tests.conftest import ROOT
from tests.github.stage import AWAITED, BOOKS, KERNEL, LINK, SUBMODULE, Content, Odd, Stage
from tests.github.world import Pull

LOOSER = ("fp32: 2.0e-7", "fp32: 2.0e-5")
LANES = {"interpret:cpu", "correctness:sm90"}
TEXT = (ROOT / KERNEL).read_text()
CONTRACT = (BOOKS / "l2norm.yaml").read_text()
Files = dict[str, Content]


def borrowing(module: str) -> Files:
    """A kernel whose tile comes from another module."""
    text = TEXT.replace("import torch\n", f"import torch\nfrom {module} import TILE as OTHER\n", 1)
    return {KERNEL: text.replace("TILE // columns", "OTHER // columns")}


def run_all(stage: Stage, pull: Pull, *, rms: float = 1e-8) -> set[str]:
    """Approve, and run whatever the plan asks for; the lanes that ran."""
    stage.approve(pull)
    rows = {run.id: RowId.parse(run.inputs["plan"]) for run in stage.runs()}
    mine = [run for run in stage.runs() if rows[run.id].number == pull.number]
    for run in mine:
        stage.execute(run, rms=rms)
    return {rows[run.id].lane for run in mine}


WRONG: Files = {KERNEL: TEXT.replace("min(32, TILE // columns)", "min(16, TILE // columns)")}
BELOW_DOCS = {"docs/kernel.py": "TILE = 4096\n", **borrowing("docs.kernel")}
LINKED = {
    "fla/modules/tile.py": Odd(LINK, "../hidden/tile.py"),
    "fla/hidden/tile.py": "TILE = 4096\n",
    **borrowing("fla.modules.tile"),
}
# What the gated branch has already, and the change that makes the kernel wrong.
HIDDEN: dict[str, tuple[Files, Files]] = {
    "attribute -diff": ({}, {".gitattributes": "*.py -diff\n", **WRONG}),
    "attribute binary": ({}, {".gitattributes": "*.py binary\n", **WRONG}),
    "attribute generated": ({}, {"fla/.gitattributes": "*.py linguist-generated\n", **WRONG}),
    "attribute merged before": ({".gitattributes": "*.py -diff -text\n"}, WRONG),
    "filter": ({}, {".gitattributes": "*.py filter=lfs diff=lfs merge=lfs\n", **WRONG}),
    "code below docs": (BELOW_DOCS, {"docs/kernel.py": "TILE = 1\n"}),
    "code moves below docs": ({}, {**BELOW_DOCS, "docs/kernel.py": "TILE = 1\n"}),
    "submodule": ({"fla/third": Odd(SUBMODULE, "1" * 40)}, {"fla/third": Odd(SUBMODULE, "2" * 40)}),
    "new link": ({"fla/hidden/tile.py": "TILE = 1\n"}, LINKED),
    "behind a link": (LINKED, {"fla/hidden/tile.py": "TILE = 1\n"}),
}


@pytest.mark.parametrize(
    ("before", "change"),
    HIDDEN.values(),
    ids=HIDDEN,
)
def test_what_hides_a_kernel_asks_for_its_lanes_and_gets_red(
    gated: Stage, before: Files, change: Files
) -> None:
    if before:
        gated.merge(before)
    pull = gated.open(files=change)
    gated.settle()
    assert gated.ready(pull) in AWAITED
    for job in gated.case(pull).report.plan.jobs:
        assert job.required
    assert run_all(gated, pull, rms=0.5) == LANES
    assert gated.ready(pull) == "failure"
    assert "budget: y rms error 0.5" in gated.comments(pull)[0]


@pytest.mark.parametrize("attribute", ["-diff", "binary", "linguist-generated"])
def test_attributes_hide_no_changed_line(gated: Stage, attribute: str) -> None:
    plain = gated.open("bob", WRONG)
    hidden = gated.open("alice", {".gitattributes": f"*.py {attribute}\n", **WRONG})
    gated.settle()
    shown = [{job.op: job.because for job in gated.case(pull).report.plan.jobs if job.lane in LANES}
             for pull in (plain, hidden)]  # fmt: skip
    assert shown[0]["l2norm"]
    assert shown[0] == shown[1]


REPLACED: dict[str, Content] = {
    "link to its neighbour": Odd(LINK, "l2norm_naive.py"),
    "link out of the tree": Odd(LINK, "/etc/passwd"),
    "link that climbs": Odd(LINK, "../../../../etc/passwd"),
    "link to itself": Odd(LINK, "l2norm.py"),
    "submodule": Odd(SUBMODULE, "1" * 40),
}


@pytest.mark.parametrize("entry", REPLACED.values(), ids=list(REPLACED))
def test_source_that_is_no_file_any_more_is_red(gated: Stage, entry: Content) -> None:
    pull = gated.open(files={KERNEL: entry})
    gated.settle()
    # Not even when every lane says that all is well.
    assert run_all(gated, pull) == LANES
    assert gated.ready(pull) == "failure"
    assert "there is no fla.modules.l2norm:l2norm" in gated.comments(pull)[0]


MOVED: Files = {KERNEL: None, "fla/modules/norms.py": TEXT}
RENAMED: dict[str, tuple[Files, str]] = {
    "file": (MOVED, "norms has no contract"),
    "function": ({KERNEL: TEXT.replace("def l2norm(", "def norm(")}, "there is no fla.modules"),
    "file and contract of another": (
        {**MOVED, "contracts/l2norm.yaml": None},
        "norms has no contract",
    ),
}


@pytest.mark.parametrize(("change", "words"), RENAMED.values(), ids=list(RENAMED))
def test_op_that_was_renamed_is_red(gated: Stage, change: Files, words: str) -> None:
    pull = gated.open(files=change)
    gated.settle()
    run_all(gated, pull)
    assert gated.ready(pull) == "failure"
    assert words in gated.comments(pull)[0]


HELPER = "def helper(x):  # fla-bot: ignore[CAL001] it is fine\n    return x\n"
PERSONAL: dict[str, tuple[Files, str]] = {
    "suppression": ({KERNEL: f"{TEXT}\n\n{HELPER}"}, "1 new suppression"),
    "contract deleted": (
        {**WRONG, "contracts/l2norm.yaml": None},
        "the contract of l2norm is removed",
    ),
    "contract looser": (
        {**WRONG, "contracts/l2norm.yaml": CONTRACT.replace(*LOOSER)},
        "2e-07 -&gt; 2e-05",
    ),
    "contract a draft": (
        {**WRONG, "contracts/l2norm.yaml": CONTRACT.replace("enforced", "draft")},
        "draft",
    ),
}


@pytest.mark.parametrize(("change", "words"), PERSONAL.values(), ids=list(PERSONAL))
def test_what_weakens_waits_for_the_word_of_a_person(
    gated: Stage, change: Files, words: str
) -> None:
    gated.world.person("maria", "maintain")  # who wrote it may accept whatever others write
    pull = gated.open("maria", change, fork=True)
    gated.settle()
    assert run_all(gated, pull) == LANES
    assert gated.ready(pull) == "action_required"
    assert words in gated.comments(pull)[0]
    (code,) = {item.accept for item in gated.case(pull).report.checklist if item.accept}
    for login in ("maria", "wes"):
        gated.say(pull, login, f"/fla-bot accept {code}")
        gated.settle()
        assert gated.ready(pull) == "action_required"
    gated.say(pull, "mona", f"/fla-bot accept {code}")
    gated.settle()
    assert gated.ready(pull) == "success"


def test_deleted_contract_still_binds_the_change_that_deletes_it(gated: Stage) -> None:
    pull = gated.open(files={**WRONG, "contracts/l2norm.yaml": None})
    gated.settle()
    assert run_all(gated, pull, rms=0.5) == LANES
    (code,) = {item.accept for item in gated.case(pull).report.checklist if item.accept}
    gated.say(pull, "mona", f"/fla-bot accept {code}")
    gated.settle()
    assert gated.ready(pull) == "failure"


OLD, NEW = "x, eps=1e-6", "x, eps=1e-6, scale=1.0"
TAKES = "def l2norm(x: torch.Tensor, eps: float = 1e-6"
PROMISED = CONTRACT.replace("    lanes:", f'    compatibility: {{signature: "{OLD}"}}\n    lanes:')


def test_honest_change_of_a_signature_gets_green_through_accept(stage: Stage) -> None:
    stage.merge({"contracts/l2norm.yaml": PROMISED})
    text = TEXT.replace(TAKES, f"{TAKES}, scale: float = 1.0")
    files = {KERNEL: text, "contracts/l2norm.yaml": PROMISED.replace(OLD, NEW)}
    pull = stage.open(files=files)
    stage.settle()
    assert run_all(stage, pull) == LANES
    assert stage.ready(pull) in AWAITED
    (code,) = {item.accept for item in stage.case(pull).report.checklist if item.accept}
    assert f"/fla-bot accept {code}" in stage.comments(pull)[0]
    stage.say(pull, "alice", f"/fla-bot accept {code}")
    stage.settle()
    assert stage.ready(pull) in AWAITED
    stage.say(pull, "mona", f"/fla-bot accept {code}")
    stage.settle()
    assert stage.ready(pull) == "success"


BROKEN: dict[str, tuple[str, str]] = {
    "gone": ("def l2norm(x: torch.Tensor, epsilon: float = 1e-6", "`eps` is gone"),
    "default": ("def l2norm(x: torch.Tensor, eps: float = 1e-5", "promised 1e-06"),
    "new": (
        "def l2norm(x: torch.Tensor, scale: float, eps: float = 1e-6",
        "is new",
    ),
}


@pytest.mark.parametrize(("now", "words"), BROKEN.values(), ids=list(BROKEN))
def test_signature_that_breaks_its_promise_is_red(gated: Stage, now: str, words: str) -> None:
    gated.merge({"contracts/l2norm.yaml": PROMISED})
    pull = gated.open(files={KERNEL: TEXT.replace(TAKES, now)})
    gated.settle()
    run_all(gated, pull)
    assert gated.ready(pull) == "failure"
    assert words in gated.comments(pull)[0].replace("\\", "")


def test_honest_new_name_of_an_argument_gets_green_through_accept(gated: Stage) -> None:
    text = TEXT.replace(TAKES, BROKEN["gone"][0]).replace("eps > 0", "(eps := epsilon) > 0")
    contract = CONTRACT.replace("      eps: {value: eps}", "      epsilon: {value: eps}")
    pull = gated.open(files={KERNEL: text, "contracts/l2norm.yaml": contract})
    gated.settle()
    run_all(gated, pull)
    for code in {item.accept for item in gated.case(pull).report.checklist if item.accept}:
        gated.say(pull, "mona", f"/fla-bot accept {code}")
    gated.settle()
    assert gated.ready(pull) == "success"


def test_looser_contract_gets_green_through_accept_of_somebody_who_may(stage: Stage) -> None:
    contract = (BOOKS / "l2norm.yaml").read_text()
    files = {**stage.kernel(), "contracts/l2norm.yaml": contract.replace(*LOOSER)}
    pull = stage.open(files=files)
    stage.settle()
    stage.approve(pull)
    for run in stage.runs():
        stage.execute(run)
    assert stage.ready(pull) in AWAITED
    (code,) = {item.accept for item in stage.case(pull).report.checklist if item.accept}
    assert f"/fla-bot accept {code}" in stage.comments(pull)[0]
    for login in ("alice", "wes", "eve"):
        stage.say(pull, login, f"/fla-bot accept {code}")
        stage.settle()
        assert stage.ready(pull) in AWAITED
    stage.say(pull, "olga", f"/fla-bot accept {code}")  # an owner of the contract
    stage.settle()
    assert stage.ready(pull) == "success"
    # A push that changes what was accepted voids it.
    looser = contract.replace("fp32: 2.0e-7", "fp32: 2.0e-4")
    stage.push(pull, {"contracts/l2norm.yaml": looser})
    stage.settle()
    stage.approve(pull)
    for run in stage.runs():
        stage.execute(run)
    assert stage.ready(pull) in AWAITED
