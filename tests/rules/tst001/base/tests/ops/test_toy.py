import pytest
import torch

TOL = {torch.float32: 1e-4, torch.bfloat16: 1e-2}
LENGTHS = [1, 63, 64]


@pytest.mark.parametrize("B", [1, 2])
@pytest.mark.parametrize("T", LENGTHS)
def test_rows(B, T):
    assert_close("o", B, T, 0.005)


@pytest.mark.parametrize(("B", "T"), [pytest.param(*row, id=str(row)) for row in [(1, 63), (2, 64)]])
def test_new_axis(B, T):
    assert_close("o", B, T, 0.005)


def test_limits(x, y):
    tolerance = 1e-3 if x else 1e-4
    assert_close("o", x, y, 0.005)
    assert_close("dq", x, y, 0.005)
    assert_close("dk", x, y, ratio=0.008)
    assert_close("dv", x, y, 0.008)
    torch.testing.assert_close(x, y, rtol=1e-3, atol=1e-5)
    assert (x - y).abs().max() < 1e-3
    assert len(x) < 3


def test_dropped(x, y):
    assert_close("o", x, y, 0.005)
    assert_close("dq", x, y, 0.005)


def test_looped(x, y):
    assert_close("o", x, y, 0.005)
    assert_close("dq", x, y, 0.005)


def test_skipped(x, y):
    assert_close("o", x, y, 0.005)


def test_skipped_inside(x, y):
    if x > 64:
        pytest.skip("too large")
    assert_close("o", x, y, 0.005)


def test_renamed(x, y):
    z = compute(x, old_name=y)
    assert_close("o", x, z, 0.005)
    assert_close("dq", x, z, 0.005)


def test_removed(x):
    for item in x:
        assert item


def helper(x):
    return x
