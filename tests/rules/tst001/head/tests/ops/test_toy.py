import pytest
import torch

TOL = {torch.float32: 1e-4, torch.bfloat16: 4e-2}  # expect: TST001
LENGTHS = [1, 64, 128, 256]
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")


@pytest.mark.parametrize("B", [1, 2])  # expect: TST001
@pytest.mark.parametrize("T", LENGTHS)
def test_rows(B, T):
    """Has a docstring now."""
    assert_close("o", B, T, 0.005)


@pytest.mark.parametrize(
    ("B", "H", "T"), [pytest.param(*row, id=str(row)) for row in [(1, 1, 63), (2, 1, 64), (2, 2, 64)]]
)
def test_new_axis(B, H, T):
    assert_close("o", B, T, 0.005)


def test_limits(x, y):
    tolerance = 1e-3 if x else 1e-3  # expect: TST001
    assert_close("o", x, y, 0.004)
    assert_close("dq", x, y, 0.02)  # expect: TST001
    assert_close("dk", x, y, ratio=0.016)  # expect: TST001
    assert_close("dv", x, y, 0.008, warning=True)  # expect: TST001
    torch.testing.assert_close(x, y, rtol=1e-3, atol=1e-4)  # expect: TST001
    assert (x - y).abs().max() < 2e-3  # expect: TST001
    assert len(x) < 4


def test_dropped(x, y):  # expect: TST001
    assert_close("o", x, y, 0.005)


def test_looped(x, y):
    for name, ref, tri in pairs(x, y):
        assert_close(name, ref, tri, 0.005)


@needs_gpu  # (the mark is reported where it is defined)
def test_skipped(x, y):
    assert_close("o", x, y, 0.005)


def test_skipped_inside(x, y):
    if x > 32:
        pytest.skip("too large")  # expect: TST001
    assert_close("o", x, y, 0.005)


def test_new_name(x, y):
    z = compute(x, new_name=y)
    assert_close("o", x, z, 0.005)
    assert_close("dq", x, z, 0.005)  # expect: TST001 (test_removed stood below)


def helper(x):
    return x + 1


@needs_gpu
def test_added(x):
    pytest.skip("not yet")
