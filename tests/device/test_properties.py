"""Derived calls, and what workers report, without a worker: the call runs in this process."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from bot.cells import Call, call, cells  # noqa: E402
from bot.contract import (  # noqa: E402
    Contract,
    Dispatch,
    load,
)
from bot.device.inputs import cotangent, draw  # noqa: E402
from bot.device.kernels import Report, read_report, undeclared, unprofiled  # noqa: E402
from bot.device.properties import Derivation, applicable, run  # noqa: E402
from bot.evidence import PropertyEvidence  # noqa: E402
from bot.model import Outcome  # noqa: E402
from bot.worker.calls import perform  # noqa: E402

TEXT = """
schema: fla-bot/contract@1
op: sum
status: draft
sources: ["/toy/"]
entry_points:
  total:
    target: toy:total
    variables: {batch: 2, T: 21, H: 2, G: 4, D: 3, C: 8, dtype: fp32, backward: false,
                packed: false, has_initial: false, final: false}
    derived:
      {B: 1 if packed else batch, N: 4 if packed else B, N1: N + 1, GD: G * D}
    args:
      x: {dims: [B, T, G, D], grad: true}
      q: {dims: [B, T, H], grad: true}
      w: {dims: [GD], grad: true}
      initial_state: {dims: [N, G, D], present: has_initial, grad: true}
      output_final_state: {value: final}
      cu_seqlens:
        {dims: [N1], dtype: int64, content: "(0, 1, 1, 9, T)", present: packed, constant: true}
    outputs:
      - {name: o, dims: [B, T, G, D], budget: {fp32: 1.0e-5}}
      - {name: final_state, dims: [N, G, D], present: final, budget: {fp32: 1.0e-5}}
    gradients:
      x: {budget: {fp32: 1.0e-5}}
      q: {budget: {fp32: 1.0e-5}}
      w: {budget: {fp32: 1.0e-5}}
      initial_state: {budget: {fp32: 1.0e-5}}
    axes:
      direction:
        values:
          forward: {set: {backward: false}, when: "True"}
          backward: {set: {backward: true}, when: "True"}
      layout:
        values:
          dense: {set: {packed: false}, when: "True"}
          varlen: {set: {packed: true}, when: "True"}
      states:
        values:
          none: {set: {has_initial: false, final: false}, when: "True"}
          both: {set: {has_initial: true, final: true}, when: "True"}
    properties:
      causal: {exactness: exact, axis: T, step: C, within: [x], bounds: cu_seqlens}
      linear: {exactness: exact, inputs: [x, initial_state], outputs: [o, final_state]}
      permutation: {exactness: exact, axes: [[B, N], [H, G, GD]]}
      split:
        exactness: exact
        axis: T
        length: T
        step: C
        carry: {final_state: initial_state}
        first: {final: true}
        rest: {has_initial: true}
        packed: {bounds: cu_seqlens, axis: N, set: {packed: false, batch: 1}}
    open: [reference, lanes]
"""
CONTRACT: Contract = load(TEXT.encode(), "sum.yaml")
Bug = Callable[..., Any]


def total(
    x: Any,
    q: Any,
    w: Any,
    initial_state: Any = None,
    output_final_state: bool = False,
    cu_seqlens: Any = None,
    *,
    step: Bug = lambda h, **_: h,
    pair: Bug = lambda h: h,
    state: Bug = lambda h: h,
) -> Any:
    """Running sum of x times a gate of its head group and a weight, per sequence."""
    ends = [0, x.shape[1]] if cu_seqlens is None else cu_seqlens.tolist()
    gate = q.repeat_interleave(x.shape[2] // q.shape[2], 2)[..., None] * w.view(x.shape[2:])
    number = x.shape[0] if cu_seqlens is None else len(ends) - 1
    h0 = x.new_zeros(number, *x.shape[2:]) if initial_state is None else initial_state
    o, last = [], []
    for start, end, given in zip(ends, ends[1:], h0.split(x.shape[0]), strict=False):
        h = state(given)
        for t in range(start, end):
            h = step(h, t=t, x=x, end=end) + x[:, t]
            o.append(pair(h) * gate[:, t])
        last.append(h)
    return torch.stack(o, 1), torch.cat(last) if output_final_state else None


def found(function: Callable[..., Any], names: list[Any] | None = None) -> list[PropertyEvidence]:
    """What each cell shows of each property, all of them."""
    evidence = []
    for cell in cells(CONTRACT, "total"):
        plan = call(CONTRACT, cell, 5)
        inputs = {spec.name: draw(spec) for spec in plan.tensors}
        present = [result for result in plan.outputs if result.present]
        directions = [cotangent(result, i) for i, result in enumerate(present)]

        def go(memory: Any) -> Outcome:
            try:
                perform(function, memory.order, memory.memory)
            except ZeroDivisionError:
                return Outcome.RAISED
            return Outcome.RAN

        views = {s.name: inputs[s.name].as_strided(s.shape, s.strides) for s in plan.tensors}
        named = dict(zip((r.name for r in present), directions, strict=True))
        outcome, results = run(plan, views, named, "cpu", go)
        assert outcome is Outcome.RAN
        seeds = directions if plan.gradients else []
        tests = Derivation(CONTRACT, cell, plan, inputs, seeds, results, "cpu", go)
        evidence += tests.test(names or applicable(CONTRACT, cell))
    return evidence


def broken(**bugs: Bug) -> Callable[..., Any]:
    def function(*args: Any, **kwargs: Any) -> Any:
        return total(*args, **kwargs, **bugs)

    return function


def test_what_has_all_properties_shows_them() -> None:
    evidence = found(total)
    assert all(item.equal for item in evidence), [item for item in evidence if not item.equal]
    shown = {(item.name, item.output) for item in evidence}
    assert {name for name, _ in shown} == {"causal", "linear", "permutation", "split"}
    assert {("permutation", "dx"), ("linear", "dq"), ("split", "final_state")} <= shown


def future(h: Any, *, t: int, x: Any, end: int) -> Any:
    return h + 1e-6 * x[:, t + 1] if t + 1 < end else h


@pytest.mark.parametrize(
    ("function", "name"),
    [
        (broken(step=future), "causal"),
        (broken(step=lambda h, **_: h.clamp(max=2.0)), "linear"),
        (broken(pair=lambda h: h + torch.arange(h.shape[1])[:, None]), "permutation"),
        (broken(state=lambda h: h * (1 + 1e-6)), "split"),
    ],
    ids=["reads-the-next-token", "clamp", "knows-its-head", "state-changed"],
)
def test_what_lacks_one_does_not(function: Callable[..., Any], name: str) -> None:
    missed = [item for item in found(function) if not item.equal]
    assert name in {item.name for item in missed}
    assert all(item.note and item.error >= 0 for item in missed)


def test_derived_call_that_fails_is_no_result() -> None:
    calls = iter(range(1000))

    def second_fails(*args: Any, **kwargs: Any) -> Any:
        assert 1 // (1 - next(calls) % 2)
        return total(*args, **kwargs)

    failed = [item for item in found(second_fails, ["linear"]) if item.output == "call"]
    assert failed
    assert not any(item.equal for item in failed)
    assert all("raised" in item.note for item in failed)


def test_same_objects_come_again_with_other_content() -> None:
    seen: list[tuple[int, float, int]] = []

    def look(x: Any, **kwargs: Any) -> Any:
        seen.append((id(x), float(x.sum()), id(kwargs["cu_seqlens"])))
        return total(x, **kwargs)

    packed = next(c for c in cells(CONTRACT, "total") if ("layout", "varlen") in c.values)
    for seed in (1, 2):
        plan: Call = call(CONTRACT, packed, seed)
        views = {s.name: draw(s).as_strided(s.shape, s.strides) for s in plan.tensors}

        def go(memory: Any) -> Outcome:
            perform(look, memory.order, memory.memory)
            return Outcome.RAN

        run(plan, views, {"o": torch.zeros(plan.outputs[0].shape), "final_state": torch.zeros(
            plan.outputs[1].shape)}, "cpu", go)  # fmt: skip
    (first, one, table), (again, other, same) = seen
    assert (first, table) == (again, same)
    assert one != other


REPORT = {
    "launches": {"a_kernel": 2, "no\nname": 1, "negative": -1, "flag": True, "huge": 10**400},
    "configurations": {"a_kernel": 3},
    "unfit": {"a_kernel[1]": "x" * 9999},
    "device": {"a_kernel": 90.0, "void at::native::vectorized_elementwise_kernel<4>": 500.0,
               "sm90_xmma_gemm": 10.0, "nan": float("nan")},
    "routes": [["op", "default", "quick=packed;other=unavailable"], ["op"], 7, ["op", 3, ""]],
}  # fmt: skip


def test_reports_are_read_as_hostile_text() -> None:
    report = read_report(json.dumps(REPORT).encode())
    assert report.launches == {"a_kernel": 2, "no_name": 1}
    assert report.configurations == {"a_kernel": 3}
    assert len(report.unfit["a_kernel[1]"]) == 200
    assert list(report.routes) == [("op", "default", "quick=packed;other=unavailable")]
    dispatch = Dispatch(operation="op", kernels=["a_kernel"])
    assert report.backend(dispatch) == "default"
    assert report.refusal(dispatch, "other") == "unavailable"
    assert undeclared(report, dispatch) == {"sm90_xmma_gemm": 0.1}
    assert unprofiled(Outcome.RAN, report, dispatch) == ""
    ended = unprofiled(Outcome.WORKER_DIED, read_report(b""), dispatch)
    assert ended == "the profiled call ended with worker-died"
    assert unprofiled(Outcome.RAN, read_report(b"{}"), dispatch).endswith("no device time")
    assert unprofiled(Outcome.RAISED, read_report(b""), None) == ""  # nothing is declared there
    for text in (b"", b"[]", b"nonsense", b"[" * 5000, b'{"launches": [], "routes": {}}'):
        assert read_report(text) == Report(routes=[]) or read_report(text) == Report()
