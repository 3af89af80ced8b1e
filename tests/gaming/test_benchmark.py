"""Hostile and honest code through the benchmark's own processes, on the CPU."""

from __future__ import annotations

import math
import os
import tempfile
import time
from pathlib import Path

import pytest
import torch

from bot.device.bench import Bench
from bot.device.rows import Row, Times
from bot.device.runner import Failed, Runner, wait_for
from bot.evidence import RowEvidence
from bot.judge.benchmark import speed
from bot.model import Outcome, Verdict
from tests.gaming.bench import (
    CONTRACT,
    GATED,
    GATED_CONTRACT,
    HONEST,
    contract,
    evidence,
    measure,
    program,
    verdicts,
)  # fmt: skip

CPU = "benchmark:cpu"
HOSTILE = {
    "garbage-after-forty-calls": (
        "_scan, _calls = scan, []\n"
        "def scan(x, w):\n"
        "    _calls.append(1)\n"
        "    return _scan(x, w) * (1.5 if len(_calls) > 40 else 1.0)",
        "audit: y of a timed call",
    ),
    "cache-by-address": (
        "_scan, _cache = scan, {}\n"
        "def scan(x, w):\n"
        "    if x.data_ptr() not in _cache: _cache[x.data_ptr()] = _scan(x, w)\n"
        "    return _cache[x.data_ptr()].clone()",
        "audit: y of a timed call",
    ),
    "cache-by-fingerprint": (
        "_scan, _cache = scan, {}\n"
        "def scan(x, w):\n"
        # Few values would change with every "go", and such a cache would never be hit.
        "    key = x.shape, round(float(x.mean()), 0)\n"
        "    if key not in _cache: _cache[key] = _scan(x, w)\n"
        "    return _cache[key].clone()",
        "audit: y of a timed call",
    ),
    "every-other-call-skipped": (
        "_scan, _last = scan, []\n"
        "def scan(x, w):\n"
        "    if len(_last) % 2 == 0: _last.append(_scan(x, w)); return _last[-1]\n"
        "    _last.append(None); return _last[-2].clone()",
        "audit: y of a timed call",
    ),
    "thread-that-finishes-later": (
        "import threading, time\n"
        "_scan = scan\n"
        "def _late(x, w, y): time.sleep(0.2); y.copy_(_scan(x, w))\n"
        "def scan(x, w):\n"
        "    y = torch.full_like(x, float('nan'))\n"
        "    threading.Thread(target=_late, args=(x, w, y), daemon=True).start()\n"
        "    return y",
        "audit: y of a timed call",
    ),
    "half-the-precision": (
        "_scan = scan\ndef scan(x, w): return _scan(x.bfloat16(), w.bfloat16()).float()",
        "audit: y of a timed call",
    ),
    "computes-before-go": (
        "from bot.worker import timing\n"
        "_poison, _ready = timing.Bench._poison, []\n"
        "def poison(self, row):\n"
        "    _poison(self, row)\n"
        "    _ready[:] = [self._call(row, i) for i in range(len(row.slots.inputs))]\n"
        "def calls(self, row): row.results = list(_ready)\n"
        "timing.Bench._poison, timing.Bench._calls = poison, calls",
        "audit: y of a timed call",
    ),
    "the-harness-does-nothing": (
        "from bot.worker import timing\n"
        "_calls, _done = timing.Bench._calls, []\n"
        "def calls(self, row):\n"
        "    _done.append(1)\n"
        "    if len(_done) < 4: _calls(self, row)\n"
        "    else: row.results = [[torch.empty_like(i['x'])] for i in row.slots.inputs]\n"
        "timing.Bench._calls = calls",
        "audit:",
    ),
    "says-done-at-once": (
        "import os, stat\n"
        "_scan = scan\n"
        "def scan(x, w):\n"
        "    for fd in range(3, 64):\n"
        "        try:\n"
        "            if stat.S_ISSOCK(os.fstat(fd).st_mode): os.write(fd, b'D')\n"
        "        except OSError: pass\n"
        "    return _scan(x, w)",
        "protocol:",
    ),
    "returns-its-input": ("def scan(x, w): return x", "alias:"),
    "raises": ("def scan(x, w): raise MemoryError", "raised:"),
    "ends-the-process": ("import os\ndef scan(x, w): os._exit(0)", "worker-died:"),
    "ends-at-import": ("import os\nos._exit(0)", "worker-died:"),
    "absent": ("del scan", "raised:"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_code_is_red_for_the_right_reason(name: str, tmp_path: Path) -> None:
    code, reason = HOSTILE[name]
    found = evidence(measure(tmp_path, f"{HONEST}\n{code}\n"), lane=CPU)
    verdict, said = verdicts(found, lane=CPU)["scan/fwd"]
    assert verdict is Verdict.FAIL, said
    assert said.startswith(reason)


def test_one_that_hangs_costs_its_timeout_once(tmp_path: Path) -> None:
    began = time.monotonic()
    hangs = f"{HONEST}\nimport time\ndef scan(x, w): time.sleep(1e6)"
    found = evidence(measure(tmp_path, hangs, rows=("scan/fwd", "scan/both"), timeout_s=1.5))
    said = verdicts(found)
    assert time.monotonic() - began < 30
    assert all(verdict is Verdict.FAIL for verdict, _ in said.values())
    assert any(reason.startswith("timeout:") for _, reason in said.values())


SLOW = "import time as _time\n_slow = scan\ndef scan(x, w): _time.sleep(0.02); return _slow(x, w)"
STATE_MEMO = """
from bot.worker import timing
_scan, _states, _capture = scan, {}, timing.Bench._capture
def capture(self, order): _capture(self, order); _states.clear()
def scan(q, x, w):
    key = x.data_ptr()
    if key not in _states: _states[key] = _scan(torch.ones_like(q), x, w)
    return q * _states[key]
timing.Bench._capture = capture
"""


def test_state_of_an_earlier_go_is_not_the_state_of_this_one(tmp_path: Path) -> None:
    toy = {"text": GATED_CONTRACT, "reference": GATED, "base": GATED}
    rows = measure(tmp_path, GATED + STATE_MEMO, **toy)
    verdict, said = verdicts(evidence(rows), lane=CPU, text=GATED_CONTRACT)["scan/fwd"]
    assert verdict is Verdict.FAIL, said
    assert said.startswith("audit: ")
    honest = measure(tmp_path / "honest", GATED, **toy)
    verdict, said = verdicts(evidence(honest), lane=CPU, text=GATED_CONTRACT)["scan/fwd"]
    assert verdict is Verdict.PASS, said


LAZY = """
from bot.worker import timing
class Lazy(list):
    def __init__(self, bench, row):
        calls = range(len(row.slots.inputs))
        super().__init__(bench._call(row, i) if i % 2 else None for i in calls)
        self.bench, self.row = bench, row
    def __getitem__(self, slot):
        if list.__getitem__(self, slot) is None:
            self[slot] = self.bench._call(self.row, slot)
        return list.__getitem__(self, slot)
def calls(self, row): row.results = Lazy(self, row)
def poison(self, row): row.results = []
timing.Bench._calls, timing.Bench._poison = calls, poison
"""


def test_slots_that_are_computed_when_they_are_asked_for_are_red(tmp_path: Path) -> None:
    slow = f"{HONEST}\n{SLOW.replace('0.02', '0.004')}\n"
    [row] = measure(tmp_path, slow + LAZY, base=slow)
    found = speed(row)
    assert found is not None
    assert found.ratio.mean < math.log(0.8)  # it looks faster, by half of it
    # The lane of a GPU, where time decides; here it only is shown.
    verdict, said = verdicts(evidence([row]))["scan/fwd"]
    assert verdict is Verdict.FAIL, said
    assert said.startswith("deferred: ")


SKIPS_A_SLOT = """
from bot.worker import timing
def calls(self, row):
    row.results = [self._call(row, slot) for slot in range(len(row.slots.inputs) - 1)]
    row.results.append([torch.zeros_like(row.results[0][0])])
timing.Bench._calls = calls
"""


def test_one_slot_of_eight_that_is_never_computed_is_red_in_each_block(tmp_path: Path) -> None:
    [row] = measure(tmp_path, HONEST + SKIPS_A_SLOT, quads=1, restarts=3)
    parts = [a for a in row.audits if a.output == "y.slots" and a.error > a.limit]
    assert {(a.restart, a.slot) for a in parts} == {(n, row.calls - 1) for n in range(3)}


def test_patch_moves_every_argument_and_the_first_token_of_a_sequence() -> None:
    from bot.device.rows import Content, Row

    content = Content("cpu")
    for name in ("scan/fwd", "scan/both"):
        row = Row.of(contract(GATED_CONTRACT), name)
        due = {"q", "x", "w"} | ({"d/y"} if name == "scan/both" else set())
        assert {part.key for part in row.patch.parts} == due
        payload = content.payload(row)
        assert len(payload) == 12 * len(due) * row.slots
        for place, part in enumerate(row.patch.parts):
            source = torch.arange(part.vectors * part.count, dtype=torch.float64)
            for slot in range(row.slots):
                flat = torch.full_like(source, -1)
                row.patch.apply(place, flat, source, (payload, slot, row.slots))
                changed = (flat >= 0).view(part.vectors, part.count).all(1)
                assert int(changed.sum()) >= 4
                if part.key != "w":
                    assert part.starts == (0, 16)
                    assert changed[list(part.starts)].any()


PATCHES = (
    "import time\ntime.perf_counter = time.monotonic = lambda: 0.0\n"
    "time.perf_counter_ns = lambda: 0\ntorch.cuda.Event.elapsed_time = lambda *_: 1e-9\n"
    "torch.cuda.synchronize = lambda *_: None\n"
)


def test_patched_timers_do_not_hide_a_slowdown(tmp_path: Path) -> None:
    [row] = measure(tmp_path, f"{HONEST}\n{SLOW}\n{PATCHES}")
    found = speed(row)
    assert found is not None
    assert found.ratio.mean > math.log(1.2)
    assert found.head_ms > 20 > found.base_ms


def test_sleep_in_warm_up_changes_no_count(tmp_path: Path) -> None:
    lazy = (
        "import time\n_scan, _calls = scan, []\n"
        "def scan(x, w):\n"
        "    _calls.append(1)\n"
        "    if len(_calls) < 12: time.sleep(0.02)\n"
        "    return _scan(x, w)"
    )
    rows = measure(tmp_path, f"{HONEST}\n{lazy}")
    assert {len(times) for r in rows[0].restarts for times in (r.base, r.head)} == {6}
    assert rows[0].calls == 8


def test_what_a_restart_leaves_behind_is_ended_before_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor is anything of head there when the merge base is measured alone."""
    sign = tmp_path / "alive"
    daemon = (
        "import os, time\n"
        "if os.fork() == 0:\n"
        "    os.setsid()\n"
        f"    with open({str(sign)!r}, 'a') as log: log.write(f'{{os.getpid()}}\\n')\n"
        "    time.sleep(60)\n"
        "    os._exit(0)"
    )
    alone, calibrate = list[list[int]](), Bench._calibrate

    def calibrate_alone(bench: Bench, row: Row) -> None:
        alone.append([pid for pid in map(int, sign.read_text().split()) if _runs(pid)])
        calibrate(bench, row)

    monkeypatch.setattr(Bench, "_calibrate", calibrate_alone)
    measure(tmp_path, f"{HONEST}\n{daemon}", restarts=3)
    pids = [int(line) for line in sign.read_text().split()]
    assert len(pids) == 5  # first calls, each restart, and costs
    assert not any(_runs(pid) for pid in pids[:4])
    assert alone == [[]]


def test_row_that_is_settled_is_not_measured_again() -> None:
    """Three restarts at least; the looks before the last have half the chance to err."""
    row = Row.of(contract(), "scan/fwd")
    bench = Bench(
        [row], {}, "cuda", quads=1, references={}, show=lambda *_: None,
        edges={"scan/fwd": math.log(1.01)},
    )  # fmt: skip
    for number, head in enumerate((1.001, 1.0, 0.999, 1.0)):
        assert bench._is_open(row), number
        row.restarts.append(Times("base", blocks={"base": [1.0] * 4, "head": [head] * 4}))
        if number == 2:
            break
    assert not bench._is_open(row)
    row.restarts[0].blocks["head"] = [1.006] * 4
    assert bench._is_open(row)
    row.mode = "eager"  # shown, however much is known of it
    assert bench._is_open(row)
    row.fault = "head: raised"
    assert not bench._is_open(row)


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_honest_code_passes_every_audit_forward_and_backward(tmp_path: Path) -> None:
    other_order = HONEST.replace(
        "state * 0.9 + x[:, t] * w", "torch.addcmul(0.9 * state, w, x[:, t])"
    )
    found = evidence(measure(tmp_path, other_order, rows=("scan/fwd", "scan/both")), lane=CPU)
    said = verdicts(found, lane=CPU)
    assert {verdict for verdict, _ in said.values()} == {Verdict.PASS}, said
    both = next(row for row in found.rows if row.row == "scan/both")
    names = {audit.output for audit in both.audits}
    assert names == {f"{n}{part}" for n in ("y", "dx", "dw") for part in ("", ".vector", ".slots")}
    assert {audit.against for row in found.rows for audit in row.audits} == {"base", "reference"}


def test_row_that_only_head_can_run_is_new(tmp_path: Path) -> None:
    found = evidence(measure(tmp_path, HONEST, base="scan = None"), lane=CPU)
    verdict, said = verdicts(found, lane=CPU)["scan/fwd"]
    assert (verdict, said.split(":")[0]) == (Verdict.PASS, "new")


def test_every_slot_and_every_block_has_other_content(tmp_path: Path) -> None:
    spy = (
        "_scan = scan\n"
        "def scan(x, w):\n"
        f"    with open({str(tmp_path / 'seen')!r}, 'a') as log:\n"
        "        log.write(f'{x.double().sum().item()!r} {w.double().sum().item()!r}\\n')\n"
        "    return _scan(x, w)"
    )
    # With few tokens there are not enough places for fresh values: two slots may get the same.
    text = CONTRACT.replace("B: 2, T: 16", "B: 8, T: 64")
    source = f"{HONEST}\n{spy}"
    rows: list[RowEvidence] = measure(tmp_path, source, text=text, restarts=2, quads=2)
    lines = [line.split() for line in (tmp_path / "seen").read_text().splitlines()]
    # Warm-up and first calls use slot 0 again; every timed call has inputs of its own.
    timed = sum(rows[0].calls * (len(r.head) + 1) for r in rows[0].restarts)
    assert len({x for x, _ in lines}) >= timed


HOLDS = """
import os
def _holder():
    try: pid = int(open({file!r}).read())
    except (OSError, ValueError): return False
    return pid != os.getpid() and os.path.exists(f"/proc/{{pid}}/fd")
"""


def test_head_that_holds_all_memory_makes_no_row_new(tmp_path: Path) -> None:
    """A file stands for the memory of a card: while head lives, the merge base gets none of it."""
    file = str(tmp_path / "memory")
    base = f"{HOLDS.format(file=file)}\n{HONEST}\n_scan = scan\n" + (
        "def scan(x, w):\n    if _holder(): raise MemoryError\n    return _scan(x, w)"
    )
    head = f"import os\nopen({file!r}, 'w').write(str(os.getpid()))\n{HONEST}"
    (row,) = measure(tmp_path, head, base=base)
    verdict, said = verdicts(evidence([row]))["scan/fwd"]
    assert verdict is Verdict.NOT_COMPARABLE, said
    assert len(row.restarts[0].alone if row.restarts else [1]) > 0


def test_row_that_neither_arm_can_run_is_not_the_fault_of_head(tmp_path: Path) -> None:
    broken = f"{HONEST}\ndef scan(x, w): raise MemoryError"
    (row,) = measure(tmp_path, broken, base=broken)
    assert row.fault.startswith("base: ")
    assert verdicts(evidence([row]))["scan/fwd"][0] is Verdict.NOT_COMPARABLE


def test_costs_are_not_asked_of_a_process_that_another_row_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`both` of head ends its process in the last restart; `fwd` has nothing to do with it."""
    starts = str(tmp_path / "starts")
    head = f"""{HONEST}
import os
with open({starts!r}, "a") as file: file.write("x")
_number, _scan = os.path.getsize({starts!r}), scan
def scan(x, w):
    if x.requires_grad and _number == 4: os._exit(0)
    return _scan(x, w)
"""
    # On a CPU costs are not asked for; on a card that begins with loading the row.
    monkeypatch.setattr(Bench, "_costs", lambda bench, row: bench._load(row, ("base", "head")))
    rows = measure(tmp_path, head, rows=("scan/fwd", "scan/both"))
    faults = {row.row: row.fault for row in rows}
    assert faults["scan/both"].startswith("head: ")
    assert faults["scan/fwd"] == "" or len(rows[0].restarts) < 3


def test_no_answer_is_left_unread() -> None:
    class Told:
        def __init__(self, fault: str) -> None:
            self.fault, self.waited = fault, False

        def wait(self) -> None:
            self.waited = True
            if self.fault:
                raise Failed(self.fault, Outcome.RAISED)

    told = [Told("base"), Told("head"), Told("")]
    with pytest.raises(Failed, match="base: raised"):
        wait_for(told)  # type: ignore[arg-type]  # what it needs of a runner
    assert all(one.waited for one in told)


NOBODY = 65534


# As in a sandbox: a user without rights, whose processes may look into each other.
AS_NOBODY = f"""
import ctypes, os, sys, torch, triton
from bot.worker import timing
if os.geteuid() == 0:
    os.setgroups([]); os.setgid({NOBODY}); os.setuid({NOBODY})
ctypes.CDLL(None).prctl(4, ctypes.c_ulong(1), 0, 0, 0)
timing.main(sys.argv[1:])
"""


def test_process_that_ends_head_is_closed_to_it() -> None:
    """It has head's user; whoever gets its socket can answer in its place."""
    code = (
        "import ctypes, os\n"
        "_libc, _parent = ctypes.CDLL(None), os.getppid()\n"
        "_pid = os.pidfd_open(_parent)\n"
        "_taken = [fd for fd in range(3, 20) if _libc.syscall(438, _pid, fd, 0) >= 0]\n"
        "try: open(f'/proc/{_parent}/mem', 'r+b').close(); _taken.append('memory')\n"
        "except OSError: pass\n"
        "open('found', 'w').write(repr(_taken))\n"
    )
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o777)
        with program(folder / "tree", f"{HONEST}\n{code}", ("-c", AS_NOBODY), folder) as channel:
            head = Runner("head", channel, 60)
            head.restart(["toy.scan:scan"])
            head.wait_start(60)
            head.close()
        assert (folder / "found").read_text() == "[]"
