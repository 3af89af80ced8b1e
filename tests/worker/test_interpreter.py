"""bf16 in the interpreter against PyTorch, which rounds to nearest even too."""

from __future__ import annotations

import os

import pytest

torch = pytest.importorskip("torch")
triton = pytest.importorskip("triton")
tl = triton.language
pytestmark = pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") != "1", reason="needs Triton's interpreter"
)

SIZE = 64


@pytest.fixture(autouse=True)
def _mended() -> None:
    from bot.worker.interpreter import install

    install()


@triton.jit
def arithmetic_kernel(x, y, out, SIZE: tl.constexpr):
    o = tl.arange(0, SIZE)
    b_x, b_y = tl.load(x + o), tl.load(y + o)
    tl.store(out + o, b_x + b_y)
    tl.store(out + SIZE + o, b_x * b_y)
    tl.store(out + 2 * SIZE + o, b_x - b_y)
    tl.store(out + 3 * SIZE + o, tl.where(b_x > b_y, b_x, b_y))
    tl.store(out + 4 * SIZE + o, -b_x)
    tl.store(out + 5 * SIZE + o, (b_x.to(tl.float32) * 1.0009765625).to(tl.bfloat16))
    tl.store(out + 6 * SIZE + o, tl.maximum(b_x, b_y))
    tl.store(out + 7 * SIZE + o, tl.zeros([SIZE], dtype=tl.bfloat16) + b_x)


@triton.jit
def product_kernel(x, y, wide, half, total, SIZE: tl.constexpr):
    o = tl.arange(0, SIZE)
    at = o[:, None] * SIZE + o[None, :]
    b_x, b_y = tl.load(x + at), tl.load(y + at)
    b_z = tl.dot(b_x, b_y)
    tl.store(wide + at, b_z)
    tl.store(half + at, b_z.to(tl.bfloat16))
    tl.store(total + o, tl.sum(b_x, 1))


def bits(value: torch.Tensor) -> torch.Tensor:
    return value.contiguous().view(torch.int16)


def numbers(*shape: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    spread = torch.randint(-20, 20, shape, generator=generator)
    return (torch.randn(shape, generator=generator) * 2.0**spread).to(torch.bfloat16)


def test_arithmetic_has_the_bits_of_torch() -> None:
    x, y = numbers(2, SIZE)
    out = torch.empty(8, SIZE, dtype=torch.bfloat16)
    arithmetic_kernel[(1,)](x, y, out, SIZE=SIZE)
    scaled = (x.float() * 1.0009765625).to(torch.bfloat16)
    due = [x + y, x * y, x - y, torch.where(x > y, x, y), -x, scaled, torch.maximum(x, y), x]
    for row, (found, wanted) in enumerate(zip(out, due, strict=True)):
        assert torch.equal(bits(found), bits(wanted)), row


def test_products_are_taken_of_widened_operands() -> None:
    generator = torch.Generator().manual_seed(1)
    x, y = (torch.randn(SIZE, SIZE, generator=generator).bfloat16() for _ in range(2))
    wide, half = torch.empty(SIZE, SIZE), torch.empty(SIZE, SIZE, dtype=torch.bfloat16)
    total = torch.empty(SIZE, dtype=torch.bfloat16)
    product_kernel[(1,)](x, y, wide, half, total, SIZE=SIZE)
    exact = x.double() @ y.double()
    assert float((wide - exact).abs().max()) < 1e-4
    assert torch.equal(bits(half), bits(wide.bfloat16()))
    assert torch.equal(bits(total), bits(x.float().sum(1).bfloat16()))


def test_every_bf16_survives_and_all_ties_go_to_even() -> None:
    from bot.worker.interpreter import narrow, widen

    every = torch.arange(-(1 << 15), 1 << 15).to(torch.int16)
    wide = torch.from_numpy(widen(every.numpy().view("uint16")))
    assert torch.equal(wide.nan_to_num(7.0), every.view(torch.bfloat16).float().nan_to_num(7.0))
    for offset in (0x7FFF, 0x8000, 0x8001):
        between = (wide.view(torch.int32) + offset).view(torch.float32)
        found = torch.from_numpy(narrow(between.numpy()).view("int16")).view(torch.bfloat16)
        due = between.bfloat16()
        assert torch.equal(found.isnan(), due.isnan())
        assert torch.equal(bits(found)[~due.isnan()], bits(due)[~due.isnan()])
