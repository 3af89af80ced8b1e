"""What the contract of l2norm cannot say: refusals, empty input, the module."""

from __future__ import annotations

import pytest
import torch

from fla.modules import L2Norm
from fla.modules.l2norm import l2norm
from fla.modules.l2norm_naive import naive_l2norm

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@pytest.mark.parametrize(
    ("x", "eps", "error", "words"),
    [
        (torch.ones(2, 3, dtype=torch.int32), 1e-6, TypeError, "x: expected a float32"),
        ([1.0], 1e-6, TypeError, "got list"),
        (torch.ones(()), 1e-6, ValueError, "1 <= D <= 8192"),
        (torch.ones(2, 0), 1e-6, ValueError, "1 <= D <= 8192"),
        (torch.ones(1, 8193), 1e-6, ValueError, "1 <= D <= 8192"),
        (torch.ones(2, 3), 0.0, ValueError, "eps: expected a positive number"),
        (torch.ones(2, 3), float("nan"), ValueError, "eps: expected a positive number"),
    ],
)
def test_refusals(x: object, eps: float, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        l2norm(x, eps)  # type: ignore[arg-type]


def test_no_rows_give_no_rows() -> None:
    x = torch.ones(0, 5, device=DEVICE, requires_grad=True)
    y = l2norm(x)
    y.sum().backward()
    assert y.shape == (0, 5)
    assert x.grad is not None


def test_vector_and_module() -> None:
    x = torch.randn(7, device=DEVICE)
    torch.testing.assert_close(L2Norm()(x), naive_l2norm(x))


def test_nan_stays_in_its_row() -> None:
    x = torch.randn(3, 5, device=DEVICE)
    x[1, 2] = float("nan")
    y = l2norm(x)
    assert torch.isnan(y[1]).all()
    torch.testing.assert_close(y[[0, 2]], naive_l2norm(x[[0, 2]]))
