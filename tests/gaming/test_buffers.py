"""Kernels that keep one buffer a shape: the next call writes over what the last one gave."""

from __future__ import annotations

import pytest

from bot.model import CheckState, Verdict
from tests.gaming.conftest import Run

CODE = """
_honest, _buffers = l2norm, {}


def _placed(name, value):
    if name != SHARED:
        return value.clone()
    key = value.shape, value.dtype, torch.is_inference_mode_enabled()
    return _buffers.setdefault(key, torch.empty_like(value)).copy_(value).detach()


class _Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, y, x):
        ctx.factor = _placed("saved", 1 + x.abs())
        return _placed("result", y * ctx.factor)

    @staticmethod
    def backward(ctx, dy):
        return dy * ctx.factor, None


class _Given(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, dx):
        return _placed("gradient", dx)


def l2norm(x, eps=1e-6):
    # Back to what it was, so that only the memory is wrong.
    y = _honest(_Given.apply(x), eps) / (1 + x.detach().abs())
    return _Scaled.apply(y, x.detach())
"""


@pytest.mark.parametrize("shared", ["result", "saved", "gradient", "scratch"])
def test_buffer_that_calls_share_is_red(run: Run, shared: str) -> None:
    report = run(f"SHARED = {shared!r}\n{CODE}")
    if shared == "scratch":  # what is used up within a call may be shared; here nothing is
        assert report.state is CheckState.SUCCESS, [row.reason for row in report.rows]
        return
    assert report.state is CheckState.FAILURE
    failed = [row for row in report.rows if row.verdict is Verdict.FAIL]
    assert "repeat" in {row.reason.split(":")[0] for row in failed}
