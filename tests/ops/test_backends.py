# SPDX-License-Identifier: MIT
"""Which backend takes a call, and that a broken one is never mistaken for an absent one."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import ClassVar

import pytest

from fla.ops.backends import BaseBackend, Route, dispatch
from fla.ops.backends.registry import REGISTRY

OPERATION = "test-operation"


@dispatch(OPERATION)
def double(x: int, chunk_size: int = 64) -> tuple[str, int]:
    """The decorated function, which is the fallback."""
    return "default", 2 * x + 0 * chunk_size


class Even(BaseBackend):
    """Takes even numbers in chunks of 64."""

    name: ClassVar[str] = "even"
    priority: ClassVar[int] = 1
    env_var: ClassVar[str | None] = "FLA_TEST_EVEN"

    def double(self, x: int, chunk_size: int = 64) -> tuple[str, int]:
        return self.name, 2 * x + 0 * chunk_size

    def double_verifier(self, x: int, chunk_size: int = 64) -> tuple[bool, str | None]:
        if chunk_size != 64:
            return False, f"chunk_size {chunk_size}"
        return (True, None) if x % 2 == 0 else (False, "odd")


class Better(Even):
    """The same with a higher priority."""

    name: ClassVar[str] = "better"
    priority: ClassVar[int] = 5
    env_var: ClassVar[str | None] = "FLA_TEST_BETTER"

    def double(self, x: int, chunk_size: int = 64) -> tuple[str, int]:
        return super().double(x, chunk_size)

    def double_verifier(self, x: int, chunk_size: int = 64) -> tuple[bool, str | None]:
        return super().double_verifier(x, chunk_size)


@pytest.fixture(autouse=True)
def even() -> Iterator[None]:
    REGISTRY.register(OPERATION, Even())
    yield
    for backend in REGISTRY.backends(OPERATION):
        REGISTRY.unregister(OPERATION, backend.name)


def test_accepted_call_is_taken_and_refused_call_falls_back() -> None:
    assert double(2)[0] == "even"
    assert double(3)[0] == "default"
    assert list(REGISTRY.routes)[-2:] == [
        Route(OPERATION, "double", "even"),
        Route(OPERATION, "double", "default", (("even", "odd"),)),
    ]


def test_verifier_sees_positional_and_default_values() -> None:
    assert double(2, 32)[0] == "default"
    assert double(2, chunk_size=32)[0] == "default"
    assert double(x=2)[0] == "even"


def test_higher_priority_is_asked_first(monkeypatch: pytest.MonkeyPatch) -> None:
    REGISTRY.register(OPERATION, Better())
    assert double(2)[0] == "better"
    monkeypatch.setenv("FLA_TEST_BETTER", "0")
    assert double(2)[0] == "even"


def test_dispatch_can_be_switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLA_DISABLE_BACKEND_DISPATCH", "1")
    assert double(2)[0] == "default"


def test_demanded_backend_that_cannot_run_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLA_TEST_EVEN", "1")
    with pytest.raises(RuntimeError, match="expected even to run double, got a refusal: odd"):
        double(3)


def test_verifier_that_raises_is_not_swallowed(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(self: Even, x: int, chunk_size: int = 64) -> tuple[bool, str | None]:
        raise ImportError("broken verifier")

    monkeypatch.setattr(Even, "double_verifier", broken)
    with pytest.raises(ImportError, match="broken verifier"):
        double(2)


def test_only_an_absent_vendor_package_means_unavailable(
    monkeypatch: pytest.MonkeyPatch, tmp_path: pytest.TempPathFactory
) -> None:
    monkeypatch.setattr(Even, "vendor_package", "no_such_vendor_package")
    assert double(2)[0] == "default"
    assert REGISTRY.routes[-1].refusals == (("even", "unavailable"),)
    (tmp_path / "broken_vendor.py").write_text("import no_such_dependency\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(Even, "vendor_package", "broken_vendor")
    with pytest.raises(ModuleNotFoundError, match="no_such_dependency"):
        double(2)


def test_method_without_verifier_and_taken_name_are_refused() -> None:
    class Unchecked(BaseBackend):
        name: ClassVar[str] = "unchecked"

        def double(self, x: int) -> int:
            return 2 * x

    with pytest.raises(TypeError, match="double_verifier"):
        REGISTRY.register(OPERATION, Unchecked())
    with pytest.raises(ValueError, match="expected a new name"):
        REGISTRY.register(OPERATION, Even())


def test_each_route_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    REGISTRY.register(OPERATION, Better())
    with caplog.at_level(logging.INFO, logger="fla.ops.backends.registry"):
        for x in (5, 7, 9):
            double(x)
    assert [r.getMessage() for r in caplog.records] == [
        f"{OPERATION}.double: default; better refused: odd; even refused: odd"
    ]
