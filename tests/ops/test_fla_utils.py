# SPDX-License-Identifier: MIT
"""The comparison that other tests rely on must itself be able to fail; guards must guard."""

from __future__ import annotations

import pytest
import torch

import fla.utils
from fla.ops.utils.cache import FLA_CACHE_MODE
from fla.utils import assert_close, input_guard


def test_assert_close_fails_past_the_ratio_and_passes_below(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ref = torch.ones(100)
    assert_close("x", ref, ref * 1.001, 0.002)
    for name in ("CI", "FLA_CI_ENV", "GITHUB_ACTIONS"):
        monkeypatch.setenv(name, "1")
    with pytest.raises(AssertionError, match="x: greatest error"):
        assert_close("x", ref, ref * 1.01, 0.002)


def test_assert_close_fails_on_nan_and_on_shape() -> None:
    with pytest.raises(AssertionError, match="NaN in the result"):
        assert_close("x", torch.ones(2), torch.tensor([1.0, float("nan")]), 1.0)
    with pytest.raises(AssertionError, match="expected shape"):
        assert_close("x", torch.ones(2), torch.ones(3), 1.0)


def test_assert_close_lets_small_absolute_errors_pass_and_can_only_warn() -> None:
    assert_close("x", torch.zeros(3), torch.full((3,), 5e-7), 1e-9)
    with pytest.warns(UserWarning, match="limit"):
        assert_close("x", torch.ones(3), torch.zeros(3), 0.1, warning=True)


def test_input_guard_makes_contiguous_all_but_kept_tensors() -> None:
    @input_guard(keep=("pool",))
    def strides(x: torch.Tensor, pool: torch.Tensor, scale: float) -> tuple[bool, bool, float]:
        return x.is_contiguous(), pool.is_contiguous(), scale

    t = torch.zeros(3, 4).t()
    assert strides(t, t, scale=2.0) == (True, False, 2.0)
    assert strides(pool=t, x=t, scale=1.0) == (True, False, 1.0)


def test_device_facts_are_there_and_unknown_names_are_not() -> None:
    assert fla.utils.device in ("cpu", "cuda", "xpu", "npu")
    assert fla.utils.device_torch_lib is getattr(torch, fla.utils.device)
    for name in ("NVIDIA", "NVIDIA_HOPPER", "NVIDIA_BLACKWELL", "AMD", "INTEL", "NPU"):
        assert isinstance(getattr(fla.utils, f"IS_{name}"), bool)
    with pytest.raises(AttributeError, match="no_such_fact"):
        _ = fla.utils.no_such_fact


def test_configurations_are_fixed_in_the_source() -> None:
    assert FLA_CACHE_MODE.uses_default_config()
