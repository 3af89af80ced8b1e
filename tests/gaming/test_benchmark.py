"""Hostile and honest code through the benchmark's own processes, on the CPU."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from bot.evidence import RowEvidence
from bot.judge.benchmark import speed
from bot.model import Verdict
from tests.gaming.bench import HONEST, evidence, measure, verdicts

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
        "    key = tuple(x.flatten()[::37].tolist()[:8])\n"
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
PATCHES = (
    "import time\ntime.perf_counter = time.monotonic = lambda: 0.0\n"
    "time.perf_counter_ns = lambda: 0\ntorch.cuda.Event.elapsed_time = lambda *_: 1e-9\n"
    "torch.cuda.synchronize = lambda *_: None\n"
)


def test_patched_timers_do_not_hide_a_slowdown(tmp_path: Path) -> None:
    [row] = measure(tmp_path, f"{HONEST}\n{SLOW}\n{PATCHES}")
    found = speed(row)
    assert found is not None
    assert found.word == "slower"
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


def test_what_a_restart_leaves_behind_is_ended_before_the_next(tmp_path: Path) -> None:
    sign = tmp_path / "alive"
    daemon = (
        "import os, time\n"
        "if os.fork() == 0:\n"
        "    os.setsid()\n"
        f"    with open({str(sign)!r}, 'a') as log: log.write(f'{{os.getpid()}}\\n')\n"
        "    time.sleep(60)\n"
        "    os._exit(0)"
    )
    measure(tmp_path, f"{HONEST}\n{daemon}", restarts=3)
    pids = [int(line) for line in sign.read_text().split()]
    assert len(pids) == 3
    assert not any(_runs(pid) for pid in pids[:2])


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
    assert names == {f"{n}{part}" for n in ("y", "dx", "dw") for part in ("", ".vector")}
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
    rows: list[RowEvidence] = measure(tmp_path, f"{HONEST}\n{spy}", restarts=2, quads=2)
    lines = [line.split() for line in (tmp_path / "seen").read_text().splitlines()]
    # Warm-up and first calls use slot 0 again; every timed call has inputs of its own.
    timed = sum(rows[0].calls * (len(r.head) + 1) for r in rows[0].restarts)
    assert len({x for x, _ in lines}) >= timed
