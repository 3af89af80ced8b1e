"""The functions that a worker calls, by what it is told at its start."""

# SPDX-License-Identifier: MIT

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from bot.tree import load

__all__ = ["Function", "functions"]

Function = Callable[..., Any]


def functions(order: Mapping[str, Any], tree: Path) -> dict[str, Function]:
    """By target. `keywords`: what a target calls its arguments, or None for one that is gone."""
    keywords = order.get("keywords", {})
    return {
        target: _renamed(_load(target, tree), keywords.get(target, {}))
        for target in order["targets"]
    }


def _load(target: str, tree: Path) -> Function:
    """A target that is not there (an entry point newer than this tree) fails when it is called."""
    try:
        return load(target, tree)
    except Exception as error:  # noqa: BLE001  # importing runs code of the tree under test
        reason = error

    def absent(**_: Any) -> None:
        raise reason

    return absent


def _renamed(function: Function, names: Mapping[str, str | None]) -> Function:
    if not names:
        return function

    @functools.wraps(function)
    def call(**given: Any) -> Any:
        kept = ((names.get(name, name), value) for name, value in given.items())
        return function(**{name: value for name, value in kept if name is not None})

    return call
