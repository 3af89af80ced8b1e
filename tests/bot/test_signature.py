"""Signatures that contracts promise."""

from __future__ import annotations

import pytest

from bot.contract import Compatibility, EntryPoint
from bot.kernels import Sources
from bot.signature import keywords, signature_faults

PROMISED = "x, y, eps=1e-6, *, scale=None"


def faults(actual: str, promised: str = PROMISED, target: str = "pkg:f") -> str:
    files = {
        "pkg/__init__.py": b"from pkg.deep import f\n",
        "pkg/deep.py": f"def f({actual}): ...\n".encode(),
    }
    point = EntryPoint(
        target=target,
        compatibility=Compatibility(signature=promised),
        args={"x": {"dims": ["N"]}, "eps": {"value": 1.0}},  # type: ignore[dict-item]
        open=["reference"],
    )
    return signature_faults(point, Sources(files))


@pytest.mark.parametrize(
    "actual",
    [
        PROMISED,
        "x, y, eps=0.000001, *, scale=None",
        "x, y, eps=1e-6, more=3, *, scale=None, other=1",
        "x, y, eps=1e-6, *, scale=None, **kwargs",
    ],
)
def test_signature_that_takes_every_promised_call(actual: str) -> None:
    assert faults(actual) == ""


@pytest.mark.parametrize(
    ("actual", "words"),
    [
        ("x, y, eps=1e-5, *, scale=None", "`eps` has the default 1e-05, promised 1e-06"),
        ("x, y, eps=1e-6", "`scale` is gone"),
        ("x, y, eps, *, scale=None", "`eps` has the default none"),
        ("y, x, eps=1e-6, *, scale=None", "positions are y, x, eps"),
        ("x, y, z, eps=1e-6, *, scale=None", "`z` is new and has no default"),
        ("y, *, scale=None", "`x` is no parameter"),
        ("x, *, y, eps=1e-6, scale=None", "positions are x, promised x, y, eps"),
    ],
)
def test_signature_that_breaks_a_caller(actual: str, words: str) -> None:
    assert words in faults(actual)


def test_any_default_may_be_promised() -> None:
    assert faults("x, y, eps=9, *, scale=None", "x, y, eps=..., *, scale=None") == ""


def test_function_that_is_gone_is_named() -> None:
    assert faults(PROMISED, target="pkg:g") == "there is no pkg:g"
    assert faults(PROMISED, target="nopkg:f") == "there is no nopkg:f"


def test_arguments_that_a_later_contract_calls_otherwise() -> None:
    def point(**args: dict[str, object]) -> EntryPoint:
        return EntryPoint(target="pkg:f", args=args, open=["reference"])  # type: ignore[arg-type]

    old = point(x={"dims": ["N"]}, eps={"value": 1.0}, on={"value": True})
    new = point(x={"dims": ["N"]}, epsilon={"value": 1.0}, extra={"value": None})
    assert keywords(old, new) == {"eps": "epsilon", "on": None}
    assert keywords(old, old) == {}
