# SPDX-License-Identifier: MIT
"""KDA against fp64 autograd of its recurrence, its exact properties, and its refusals."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import kda_reference as ref
import pytest
import torch
import torch.nn.functional as F
from kda_reference import DEVICE, Case

from fla.ops.kda import chunk_kda, fused_recurrent_kda
from fla.ops.kda.fused_recurrent import fused_recurrent_kda_fwd
from fla.ops.kda.gate import fused_kda_gate, naive_kda_gate, naive_kda_lowerbound_gate
from fla.ops.kda.naive import naive_chunk_kda, naive_recurrent_kda
from fla.ops.utils.index import chunk_table, device_chunk_table

pytestmark = [
    # PyTorch says so when fp64 autograd of the reference is the first to multiply on its thread.
    pytest.mark.filterwarnings("ignore:Attempting to run cuBLAS"),
    # Triton's interpreter turns loop bounds, arrays of one element, into numbers.
    pytest.mark.filterwarnings("ignore:Conversion of an array with ndim"),
]

GPU = torch.cuda.is_available()
# Triton's interpreter computes wrong bf16, so the CPU runs fp32 alone.
DTYPES = (torch.float32, torch.bfloat16, torch.float16) if GPU else (torch.float32,)
# Relative RMS limits of outputs and of gradients; decay gradients are differences of large terms.
LIMITS = {
    torch.float32: (2e-5, 2e-4),
    torch.bfloat16: (1e-2, 6e-2),
    torch.float16: (2e-3, 1e-2),
}
DIFFERENCES = ("dg", "dA_log", "ddt_bias")

CASES = [
    Case(),
    Case(T=1),
    Case(T=64, HV=2, gate="softplus", norm=True, sigmoid=True),
    Case(T=65, gate="bounded", norm=True, sigmoid=True, neg_eigval=True, state=False),
    Case(B=2, T=33, HV=2, K=20, V=24, chunk_size=32, state_v_first=True),
    Case(B=2, T=40, gate="bounded", chunk_size=32, disable_recompute=True),
    Case(T=70, H=2, HV=4, gate="softplus", norm=True, gate_scale=1.0),
    Case(T=100, cu_seqlens=(0, 1, 1, 34, 100), gate="softplus", norm=True, sigmoid=True),
    Case(T=100, cu_seqlens=(0, 63, 64, 64, 100), HV=2, use_graph=True),
    Case(T=50, cu_seqlens=(0, 17, 50), chunk_size=32, state_v_first=True, state=False),
]
GPU_CASES = [
    Case(T=257, H=2, HV=2, K=128, V=128, gate="bounded", norm=True, sigmoid=True),
    Case(T=300, K=256, V=256, cu_seqlens=(0, 1, 1, 134, 300), gate="softplus", norm=True),
    Case(T=200, K=100, V=72, HV=3, gate="softplus", sigmoid=True),
    Case(T=130, K=64, V=128, H=2, HV=2, chunk_size=32, gate="bounded"),
    Case(T=500, K=128, V=64, H=2, HV=4, norm=True, gate="softplus", sigmoid=True),
    Case(T=1000, K=64, V=256, gate="bounded", norm=True),
    # Narrow keys beside wide values: ptxas 12.8 breaks such tiles.
    Case(T=130, H=2, HV=2, K=16, V=40, cu_seqlens=(0, 1, 1, 34, 130), gate="bounded"),
    Case(T=130, K=32, V=128, norm=True),
    Case(T=130, K=24, V=72, gate="softplus"),
]


def check(case: Case, dtype: torch.dtype, **changed: torch.Tensor) -> None:
    plain, difference = LIMITS[dtype]
    for name, error in ref.errors(case, dtype, **changed).items():
        limit = difference if name in DIFFERENCES else plain
        assert error < limit, f"{name}: relative error {error:.2e}, limit {limit:.0e}"


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_chunk_agrees_with_recurrence(case: Case, dtype: torch.dtype) -> None:
    check(ref.larger(case) if GPU else case, dtype)


@pytest.mark.gpu
@pytest.mark.skipif(not GPU, reason="sizes for a GPU")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("case", GPU_CASES, ids=lambda case: case.name)
def test_chunk_agrees_at_full_size(case: Case, dtype: torch.dtype) -> None:
    check(case, dtype)


@pytest.mark.parametrize("T", [15, 16, 17, 63] + ([500, 1000] if GPU else []))
def test_chunk_agrees_at_odd_lengths(T: int) -> None:
    check(Case(T=T, norm=True, gate="bounded", sigmoid=True), torch.float32)


def test_naive_forms_agree_in_fp64() -> None:
    x = {n: t.double() for n, t in ref.inputs(Case(B=2, T=37, HV=2), torch.float32).items()}
    state = x.pop("initial_state")
    o, s = naive_recurrent_kda(**x, initial_state=state, output_final_state=True)
    oc, sc = naive_chunk_kda(**x, initial_state=state, output_final_state=True, chunk_size=16)
    assert o.dtype == s.dtype == torch.float64
    torch.testing.assert_close(oc, o, rtol=0, atol=1e-12)
    torch.testing.assert_close(sc, s, rtol=0, atol=1e-12)


def test_naive_takes_unbatched_state_and_returns_dtype_of_v() -> None:
    x = ref.inputs(Case(B=2, T=5), torch.bfloat16)
    state = x.pop("initial_state")[0]
    o, s = naive_recurrent_kda(**x, initial_state=state, output_final_state=True)
    both, _ = naive_recurrent_kda(**x, initial_state=torch.stack([state, state]))
    assert o.dtype == torch.bfloat16
    assert s.dtype == torch.float32
    assert torch.equal(o, both)


def stress(name: str, case: Case) -> dict[str, torch.Tensor]:
    x = ref.inputs(case, torch.float32)
    g, beta, k = x["g"], x["beta"], x["k"]
    return {
        "slow gates": {"g": g * 1e-3},
        "fast gates": {"g": g * 40 - 5},
        "zero decay": {"g": torch.zeros_like(g)},
        "positive gates": {"g": -0.1 * g},
        "mixed channels": {"g": g * torch.logspace(-4, 2, g.shape[-1], device=DEVICE)},
        "beta near 0": {"beta": beta * 1e-6},
        "beta near 1": {"beta": 1 - beta * 1e-4},
        "beta 2^-9": {"beta": torch.full_like(beta, 2**-9), "g": torch.zeros_like(g)},
        "large state": {"initial_state": x["initial_state"] * 1e4},
        "collinear keys": {"k": F.normalize(k[:, :1] + 1e-3 * k, dim=-1)},
    }[name]


@pytest.mark.parametrize(
    "name",
    [
        "slow gates", "fast gates", "zero decay", "positive gates", "mixed channels",
        "beta near 0", "beta near 1", "beta 2^-9", "large state", "collinear keys",
    ],
)  # fmt: skip
def test_stress_values_hold_the_limits(name: str) -> None:
    case = Case(T=130)
    result = ref.errors(case, torch.float32, **stress(name, case))
    # Where a whole gradient is small beside the terms it is the difference of, only they bound it.
    assert max(e for n, e in result.items() if n not in DIFFERENCES) < 2e-4, result
    assert result["dg"] < (2e-2 if name == "fast gates" else 2e-3), result


def test_safe_gate_at_its_bound_does_not_overflow() -> None:
    case = Case(T=128, gate="none")
    x = ref.inputs(case, torch.float32)
    x["g"] = torch.full_like(x["g"], -5.0)
    o, state = ref.chunk_call(case, x, safe_gate=True)
    want, want_state = ref.reference_call(case, {n: t.double() for n, t in x.items()})
    torch.testing.assert_close(o.double(), want, rtol=0, atol=1e-5)
    torch.testing.assert_close(state.double(), want_state, rtol=0, atol=1e-5)


def test_repeated_calls_agree_bitwise() -> None:
    case = Case(T=100, HV=2, gate="softplus", norm=True, sigmoid=True)
    results = []
    for _ in range(2):
        x = {n: t.requires_grad_() for n, t in ref.inputs(case, DTYPES[-1]).items()}
        o, state = ref.chunk_call(case, x)
        grads = torch.autograd.grad([o.float().sum() + state.sum()], list(x.values()))
        results.append([o, state, *grads])
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


def test_outputs_do_not_depend_on_later_tokens() -> None:
    case = Case(T=100, H=1, HV=1)
    x = ref.inputs(case, torch.float32)
    o, _ = ref.chunk_call(case, x)
    t = 40
    for name in ("q", "k", "v", "beta"):
        x[name] = x[name].clone()
        x[name][:, t:] = 0.3
        x[name][:, 64:] = float("nan")
    after, _ = ref.chunk_call(case, x)
    assert torch.equal(after[:, :t], o[:, :t])
    assert torch.isfinite(after[:, :64]).all()


def test_values_and_states_enter_linearly() -> None:
    case = Case(T=70)
    x = ref.inputs(case, torch.float32)
    o, state = ref.chunk_call(case, x)
    x["v"], x["initial_state"] = 2 * x["v"], 2 * x["initial_state"]
    o2, state2 = ref.chunk_call(case, x)
    assert torch.equal(o2, 2 * o)
    assert torch.equal(state2, 2 * state)


def test_heads_and_batch_entries_are_independent() -> None:
    case = Case(B=2, T=66, H=2, HV=2)
    x = ref.inputs(case, torch.float32)
    o, state = ref.chunk_call(case, x)
    one, one_state = ref.chunk_call(case, {n: t[1:].contiguous() for n, t in x.items()})
    assert torch.equal(one, o[1:])
    assert torch.equal(one_state, state[1:])
    flipped = {n: t.flip(1 if n == "initial_state" else 2) for n, t in x.items()}
    back, _ = ref.chunk_call(case, flipped)
    assert torch.equal(back.flip(2), o)


def test_split_at_a_chunk_edge_hands_the_state_over() -> None:
    case = Case(T=128)
    x = ref.inputs(case, torch.float32)
    o, state = ref.chunk_call(case, x)
    halves = [{n: t[:, s] for n, t in x.items() if n != "initial_state"} for s in
              (slice(0, 64), slice(64, 128))]  # fmt: skip
    first, mid = ref.chunk_call(case, {**halves[0], "initial_state": x["initial_state"]})
    second, last = ref.chunk_call(case, {**halves[1], "initial_state": mid})
    assert torch.equal(torch.cat([first, second], 1), o)
    assert torch.equal(last, state)


def test_intermediate_states_are_those_before_each_chunk() -> None:
    case = Case(T=100, HV=2)
    x = ref.inputs(case, torch.float32)
    with torch.inference_mode():
        _, _, h = ref.chunk_call(case, x, return_intermediate_states=True)
        _, _, turned = chunk_kda(
            **{n: t for n, t in x.items() if n != "initial_state"},
            initial_state=x["initial_state"].transpose(-1, -2),
            return_intermediate_states=True,
            state_v_first=True,
        )
    assert h.shape == (1, 2, 2, 16, 16)
    assert torch.equal(h[:, 0], x["initial_state"])
    first = {n: t[:, :64] for n, t in x.items() if n != "initial_state"}
    _, mid = ref.chunk_call(case, {**first, "initial_state": x["initial_state"]})
    assert torch.equal(h[:, 1], mid)
    assert torch.equal(turned, h.transpose(-1, -2))


@pytest.mark.parametrize("B", [0, 2])
def test_no_tokens_leave_states_as_they_are(B: int) -> None:
    case = Case(B=B, T=0)
    x = {n: t.requires_grad_() for n, t in ref.inputs(case, torch.float32).items()}
    o, state = ref.chunk_call(case, x)
    assert o.shape == (B, 0, 1, 16)
    assert torch.equal(state, x["initial_state"])
    grads = torch.autograd.grad(state.sum(), list(x.values()), allow_unused=True)
    assert torch.equal(grads[-1], torch.ones_like(state))


def test_only_the_state_may_be_used() -> None:
    case = Case(T=40)
    x = {n: t.requires_grad_() for n, t in ref.inputs(case, torch.float32).items()}
    truth = {n: t.detach().double().requires_grad_() for n, t in x.items()}
    got = torch.autograd.grad(ref.chunk_call(case, x)[1].sum(), [x["k"], x["g"]])
    want = torch.autograd.grad(ref.reference_call(case, truth)[1].sum(), [truth["k"], truth["g"]])
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a.double(), b, rtol=1e-4, atol=1e-5)


def test_poisoned_memory_and_guard_bands_do_not_show() -> None:
    """NaN in all fresh memory and round every input.

    Not covered: reads past the guard bands, reads of another tensor's valid numbers, and shared
    memory or registers that a kernel leaves unset.
    """
    case = Case(T=70, HV=2, K=20, V=24, gate="softplus", norm=True, sigmoid=True)

    def run(x: ref.Tensors) -> list[torch.Tensor]:
        x = {n: t.requires_grad_() for n, t in x.items()}
        o, state = ref.chunk_call(case, x)
        return [o, state, *torch.autograd.grad(o.sum() + state.sum(), list(x.values()))]

    def banded(t: torch.Tensor) -> torch.Tensor:
        band = torch.full((t.numel() + 8192,), float("nan"), dtype=t.dtype, device=t.device)
        return band[4096:-4096].copy_(t.flatten()).view_as(t)

    plain = run(ref.inputs(case, torch.float32))
    torch.use_deterministic_algorithms(True)
    try:
        assert torch.utils.deterministic.fill_uninitialized_memory
        assert torch.empty(3).isnan().all()
        poisoned = run({n: banded(t) for n, t in ref.inputs(case, torch.float32).items()})
    finally:
        torch.use_deterministic_algorithms(False)
    assert all(torch.equal(a, b) for a, b in zip(plain, poisoned, strict=True))


@pytest.mark.parametrize("bounded", [False, True])
@pytest.mark.parametrize("parameters", [False, True])
def test_fused_gate_agrees_with_naive(bounded: bool, parameters: bool) -> None:
    case = Case(B=2, T=19, HV=2, K=20, gate="bounded")
    x = ref.inputs(case, torch.float32)
    args = [x["g"], x["A_log"] if parameters or not bounded else None,
            x["dt_bias"] if parameters else None]  # fmt: skip
    ours = [t.clone().requires_grad_() if t is not None else None for t in args]
    truth = [t.double().requires_grad_() if t is not None else None for t in args]
    got = fused_kda_gate(*ours, lower_bound=-4.0 if bounded else None)
    if bounded:
        want = naive_kda_lowerbound_gate(*truth, -4.0, torch.float64)
    else:
        want = naive_kda_gate(*truth, torch.float64)
    assert got.dtype == torch.float32
    torch.testing.assert_close(got.double(), want, rtol=1e-5, atol=1e-6)
    weight = torch.randn_like(got)
    grads = torch.autograd.grad(got, [t for t in ours if t is not None], weight)
    truths = torch.autograd.grad(want, [t for t in truth if t is not None], weight.double())
    for a, b in zip(grads, truths, strict=True):
        assert a.shape == b.shape
        torch.testing.assert_close(a.double(), b, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("state_v_first", [False, True])
@pytest.mark.parametrize("case", [CASES[0], CASES[2], CASES[3], CASES[7]], ids=lambda c: c.name)
def test_recurrent_agrees_with_recurrence(case: Case, state_v_first: bool) -> None:
    x = ref.inputs(case, torch.float32)
    want, want_state = ref.reference_call(case, {n: t.double() for n, t in x.items()})
    if state_v_first and case.state:
        x["initial_state"] = x["initial_state"].transpose(-1, -2).contiguous()
    cu_seqlens = None
    if case.cu_seqlens is not None:
        cu_seqlens = torch.tensor(case.cu_seqlens, device=DEVICE)
    o, state = fused_recurrent_kda(
        **x, output_final_state=True, use_qk_l2norm_in_kernel=case.norm,
        use_gate_in_kernel=case.gate != "none", use_beta_sigmoid_in_kernel=case.sigmoid,
        allow_neg_eigval=case.neg_eigval, lower_bound=-5.0 if case.gate == "bounded" else None,
        state_v_first=state_v_first, cu_seqlens=cu_seqlens,
    )  # fmt: skip
    if state_v_first:
        state = state.transpose(-1, -2)
    torch.testing.assert_close(o.double(), want, rtol=0, atol=1e-5)
    torch.testing.assert_close(state.double(), want_state, rtol=0, atol=1e-5)


def test_recurrent_refuses_only_the_backward() -> None:
    x = {n: t.requires_grad_() for n, t in ref.inputs(Case(T=3), torch.float32).items()}
    o, _ = fused_recurrent_kda(**x)
    with pytest.raises(NotImplementedError, match="backward"):
        o.sum().backward()


def pool_of(x: ref.Tensors, slots: list[int], size: int) -> torch.Tensor:
    state = x["initial_state"]
    pool = torch.randn(size, *state.shape[1:], device=DEVICE)
    pool[slots] = state
    return pool


def test_decode_updates_its_slots_and_no_other() -> None:
    case = Case(B=3, T=1, HV=2)
    x = ref.inputs(case, torch.float32)
    want, want_state = ref.reference_call(case, {n: t.double() for n, t in x.items()})
    pool = pool_of(x, [5, 0, 3], 7)
    before = pool.clone()
    indices = torch.tensor([5, 0, 3], dtype=torch.int32, device=DEVICE)
    del x["initial_state"]
    o, state = fused_recurrent_kda_fwd(
        **x, A_log=None, dt_bias=None, initial_state=pool, scale=None, ssm_state_indices=indices
    )
    assert state is pool
    torch.testing.assert_close(o.double(), want, rtol=0, atol=1e-5)
    torch.testing.assert_close(pool[[5, 0, 3]].double(), want_state, rtol=0, atol=1e-5)
    assert torch.equal(pool[[1, 2, 4, 6]], before[[1, 2, 4, 6]])


def test_decode_takes_a_strided_pool_an_output_and_padding_slots() -> None:
    x = ref.inputs(Case(B=2, T=1), torch.float32)
    del x["initial_state"]
    wide = torch.randn(4, 2, 1, 16, 16, device=DEVICE)
    before = wide.clone()
    out = torch.empty_like(x["v"])
    indices = torch.tensor([2, -1], dtype=torch.int32, device=DEVICE)
    o, _ = fused_recurrent_kda_fwd(
        **x, A_log=None, dt_bias=None, initial_state=wide[:, 0], scale=None,
        ssm_state_indices=indices, out=out,
    )  # fmt: skip
    assert o is out
    part = {n: t[:1] for n, t in x.items()}
    want, state = naive_recurrent_kda(**part, initial_state=before[2:3, 0], output_final_state=True)
    torch.testing.assert_close(out[:1], want, rtol=0, atol=1e-5)
    torch.testing.assert_close(wide[2:3, 0], state, rtol=0, atol=1e-5)
    before[2, 0] = wide[2, 0]
    assert torch.equal(wide, before)


def test_decode_of_drafts_writes_a_state_for_every_token() -> None:
    x = ref.inputs(Case(T=5), torch.float32)
    del x["initial_state"]
    pool = torch.randn(7, 1, 16, 16, device=DEVICE)
    before = pool.clone()
    int32 = {"dtype": torch.int32, "device": DEVICE}
    fused_recurrent_kda_fwd(
        **x, A_log=None, dt_bias=None, initial_state=pool, scale=None,
        cu_seqlens=torch.tensor([0, 2, 5], **int32),
        ssm_state_indices=torch.tensor([[0, 1, 3], [4, 5, 6]], **int32),
        num_accepted_tokens=torch.tensor([2, 1], **int32),
    )  # fmt: skip
    for start, read, slots in ((0, 1, [0, 1]), (2, 4, [4, 5, 6])):
        for t, slot in enumerate(slots):
            part = {n: v[:, start : start + t + 1] for n, v in x.items()}
            _, want = naive_recurrent_kda(
                **part, initial_state=before[read : read + 1], output_final_state=True
            )
            torch.testing.assert_close(pool[slot : slot + 1], want, rtol=0, atol=1e-5)
    assert torch.equal(pool[[2, 3]], before[[2, 3]])


REFUSED = {
    "chunk_size": ({"chunk_size": 16}, ValueError, "`chunk_size` must be either 32 or 64"),
    "cp_context": ({"cp_context": object()}, NotImplementedError, "cp_context: expected None"),
    "no gate": ({"use_gate_in_kernel": True}, ValueError, "A_log: expected"),
    "neg_eigval": ({"allow_neg_eigval": True}, ValueError, "allow_neg_eigval: expected"),
    "safe_gate": (
        {"use_gate_in_kernel": True, "safe_gate": True, "lower_bound": -6.0},
        ValueError,
        "lower_bound: expected",
    ),
    "training h": ({"return_intermediate_states": True}, ValueError, "return_intermediate_states"),
    "state dtype": ({"initial_state": torch.zeros(1, 2, 16, 8).half()}, TypeError, "initial_state"),
    "states": ({"initial_state": torch.zeros(2, 2, 16, 8)}, ValueError, "initial_state: expected"),
    "v dtype": ({"v": torch.zeros(1, 9, 2, 8).half()}, TypeError, "v: expected dtype"),
    "g dtype": ({"g": torch.zeros(1, 9, 2, 16).double()}, TypeError, "g: expected dtype"),
    "g shape": ({"g": torch.zeros(1, 9, 1, 16)}, ValueError, "g: expected shape"),
    "k shape": ({"k": torch.zeros(1, 9, 2, 16)}, ValueError, "k: expected shape"),
    "heads": ({"q": torch.zeros(1, 9, 3, 16)}, ValueError, "v: expected a number of heads"),
    "K": ({"q": torch.zeros(1, 9, 1, 257)}, ValueError, "q: expected a head dimension"),
    "no tensor": ({"beta": 1.0}, TypeError, "beta: expected a tensor"),
    "device": ({"k": torch.zeros(1, 9, 1, 16, device="meta")}, ValueError, "k: expected device"),
    "cu float": ({"cu_seqlens": torch.tensor([0.0, 9.0])}, TypeError, "cu_seqlens: expected dtype"),
    "cu rank": ({"cu_seqlens": torch.tensor([9])}, ValueError, "cu_seqlens: expected shape"),
    "cu values": (
        {"cu_seqlens": torch.tensor([0, 9]), "cu_seqlens_cpu": torch.tensor([0, 8])},
        ValueError,
        "cu_seqlens: expected rising",
    ),
    "max_num_seqs": (
        {"cu_seqlens": torch.tensor([0, 4, 9]), "max_num_seqs": 1},
        ValueError,
        "max_num_seqs: expected",
    ),
    "both layouts": (
        {"state_v_first": True, "transpose_state_layout": True},
        ValueError,
        "transpose_state_layout: expected",
    ),
    "unknown": ({"use_gate": True}, TypeError, "use_gate"),
}


def small() -> ref.Tensors:
    x = {n: torch.zeros(1, 9, 1, 16) for n in "qk"} | {"v": torch.zeros(1, 9, 2, 8)}
    return x | {"g": torch.zeros(1, 9, 2, 16), "beta": torch.zeros(1, 9, 2)}


@pytest.mark.filterwarnings("ignore:transpose_state_layout is deprecated")
@pytest.mark.parametrize("name", REFUSED)
def test_bad_input_is_refused_before_launch(name: str) -> None:
    change, error, message = REFUSED[name]
    with pytest.raises(error, match=message):
        chunk_kda(**(small() | change))


def test_values_are_checked_on_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLA_CHECK_VALUES", "1")
    with pytest.raises(ValueError, match="g: expected numbers, got NaN"):
        chunk_kda(**(small() | {"g": torch.full((1, 9, 2, 16), float("nan"))}))
    with pytest.raises(ValueError, match="cu_seqlens: expected rising"):
        chunk_kda(**small(), cu_seqlens=torch.tensor([0, 5, 3, 9]))


def test_old_name_of_the_state_layout_warns() -> None:
    case = Case(T=3)
    x = ref.inputs(case, torch.float32)
    _, want = ref.chunk_call(case, x)
    x["initial_state"] = x["initial_state"].transpose(-1, -2).contiguous()
    with pytest.warns(DeprecationWarning, match="state_v_first"):
        _, state = chunk_kda(**x, output_final_state=True, transpose_state_layout=True)
    assert torch.equal(state.transpose(-1, -2), want)


def test_chunk_tables_agree_and_are_kept_by_identity_and_version() -> None:
    cu_seqlens = torch.tensor([0, 1, 1, 130, 300], device=DEVICE)
    indices, offsets = chunk_table(cu_seqlens, 64, 300)
    assert indices.tolist() == [[0, 0], [2, 0], [2, 1], [2, 2], [3, 0], [3, 1], [3, 2]]
    assert offsets.tolist() == [0, 1, 1, 4, 7]
    padded, same = device_chunk_table(cu_seqlens, 64, 300, 4)
    assert padded.shape == (300 // 64 + 4, 2)
    assert torch.equal(padded[:7], indices)
    assert (padded[7:, 0] == -1).all()
    assert torch.equal(same, offsets)
    assert chunk_table(cu_seqlens, 64, 300)[0] is indices
    cu_seqlens[3] = 129
    assert chunk_table(cu_seqlens, 64, 300)[0] is not indices


def test_tokens_of_no_sequence_get_zeros_under_graphs() -> None:
    x = {
        n: t.requires_grad_() for n, t in ref.inputs(Case(T=40, state=False), torch.float32).items()
    }
    cu_seqlens = torch.tensor([0, 5, 30], dtype=torch.int32, device=DEVICE)
    torch.use_deterministic_algorithms(True)
    try:
        o, _ = chunk_kda(**x, cu_seqlens=cu_seqlens, use_graph=True, max_num_seqs=4)
        grads = torch.autograd.grad(o.sum(), list(x.values()))
    finally:
        torch.use_deterministic_algorithms(False)
    for t in (o, *grads):
        assert torch.isfinite(t).all()
        assert not t[:, 30:].any()


def test_import_probes_no_device() -> None:
    code = (
        "import fla.ops.kda, fla.utils, torch\n"
        "assert fla.utils._platform.cache_info().currsize == 0\n"
        "assert not torch.cuda.is_initialized()\n"
        "assert fla.utils.device_platform and isinstance(fla.utils.IS_NVIDIA_HOPPER, bool)\n"
    )
    root = Path(__file__).resolve().parents[2]
    subprocess.run([sys.executable, "-c", code], check=True, cwd=root)
