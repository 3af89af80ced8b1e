"""The lean interpreter against the stock one: the same bits, the same refusals."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
triton = pytest.importorskip("triton")
tl = triton.language
pytestmark = pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") != "1", reason="needs Triton's interpreter"
)

# One process for each interpreter: neither change can be taken back.
CALLS = """
import sys

import torch
import triton
import triton.language as tl
from triton.language import core


@triton.jit
def shifted(x, by, SIZE: tl.constexpr):
    return tl.where(tl.arange(0, SIZE)[:, None] >= by, x, x.to(tl.float32).to(x.dtype) * 0.5)


@triton.jit
def both(x, y, SIZE: tl.constexpr):
    return shifted(x, 3, SIZE) + shifted(y, 1, SIZE), core.maximum(x, y)


@triton.jit
def kernel(x, y, out, count, SIZE: tl.constexpr):
    i = tl.program_id(0)
    o = tl.arange(0, SIZE)
    at = i * SIZE * SIZE + o[:, None] * SIZE + o[None, :]
    keep = (o[:, None] < count) & (o[None, :] >= 0)
    b_x, b_y = tl.load(x + at, mask=keep, other=1.0), tl.load(y + at)
    b_z, b_m = both(b_x, b_y, SIZE)
    b_s = tl.cumsum(tl.sum(b_z.to(tl.float32), 1), 0) / (1 + (i * 7919 - 5) % 3)
    b_d = tl.dot(b_z, tl.trans(b_m)) + b_s[:, None] * tl.exp(-o[None, :].to(tl.float32))
    for j in range(0, count % 5):
        b_d -= tl.full([SIZE, SIZE], 0.125, tl.float32) * j
    b_l, b_r = tl.split(tl.reshape(b_d, [SIZE, SIZE // 2, 2]))
    tl.store(out + at, tl.reshape(tl.join(b_r, b_l), [SIZE, SIZE]).to(out.dtype.element_ty))


if sys.argv[1] == "lean":
    import bot.worker.lean

    bot.worker.lean.install()
    bot.worker.lean.install()
generator = torch.Generator().manual_seed(0)
for dtype in (torch.float32, torch.float16):
    x, y = (torch.randn(2, 16, 16, generator=generator).to(dtype) for _ in range(2))
    for count in (16, 13):
        out = torch.empty_like(x)
        kernel[(2,)](x, y, out, count, SIZE=16)
        print(out.view(torch.uint8).flatten().tolist())
"""


def test_results_have_the_bits_of_the_stock_interpreter(tmp_path: Path) -> None:
    script = tmp_path / "calls.py"
    script.write_text(CALLS)
    stock, lean = (
        subprocess.run(
            [sys.executable, str(script), kind],
            env={**os.environ, "TRITON_INTERPRET": "1"},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for kind in ("stock", "lean")
    )
    assert len(stock.splitlines()) == 4
    assert lean == stock


@pytest.fixture
def _lean() -> None:
    from bot.worker.lean import install

    install()


@pytest.mark.usefixtures("_lean")
@pytest.mark.parametrize(
    ("shape", "error"),
    [([16.0, 16], TypeError), ([True, 16.0], TypeError), ([12], ValueError), ([], TypeError)],
)
def test_shape_that_triton_refuses_is_refused(shape: list[object], error: type[Exception]) -> None:
    known = tl.block_type(tl.float32, [16, 16])
    assert tl.block_type(tl.float32, [16, 16]) == known
    with pytest.raises(error):
        tl.block_type(tl.float32, shape)


@pytest.mark.usefixtures("_lean")
def test_types_differ_as_before() -> None:
    square, wide = (tl.block_type(tl.float32, shape) for shape in ([16, 16], [16, 32]))
    assert square != wide
    assert square != tl.block_type(tl.int32, [16, 16])
    again = tl.block_type(tl.float32, [16, 16])
    assert (again.name, again.numel, list(again.shape)) == (square.name, 256, [16, 16])
    assert tl.float32 not in (tl.float16, tl.bfloat16, square)
    assert tl.pointer_type(tl.float32) == tl.pointer_type(tl.float32)
    assert tl.pointer_type(tl.float32) not in (tl.pointer_type(tl.int32), tl.float32)


@triton.jit
def copy_kernel(x, out, SIZE: tl.constexpr):
    o = tl.arange(0, SIZE)
    tl.store(out + o, tl.load(x + o))


@pytest.mark.usefixtures("_lean")
def test_language_is_as_before_after_a_launch_that_raised() -> None:
    before = tl.load, tl.tensor.__add__, tl.range
    x = torch.ones(16)
    with pytest.raises(Exception, match="power of 2"):
        copy_kernel[(1,)](x, x, SIZE=12)
    assert (tl.load, tl.tensor.__add__, tl.range) == before
    out = torch.zeros(16)
    copy_kernel[(1,)](x, out, SIZE=16)
    assert torch.equal(out, x)
