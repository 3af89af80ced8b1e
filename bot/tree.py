"""Import packages from one given tree, and prove that they came from there."""

# SPDX-License-Identifier: MIT

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

__all__ = ["WRONG_TREE", "TreeFinder", "load"]

WRONG_TREE = 11  # exit status


class TreeFinder(MetaPathFinder):
    """Serves the source roots from a tree, and nothing else that lies in it."""

    def __init__(self, tree: Path, roots: Sequence[str]) -> None:
        self.tree, self.roots = tree, roots

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The spec of `root` or of something inside it; an installed `root` is never used."""
        if name.partition(".")[0] not in self.roots:
            return None
        places = [str(self.tree)] if path is None else list(path)
        spec = PathFinder.find_spec(name, places, target)
        if spec is None:
            raise ModuleNotFoundError(f"no {name} in the tree under test", name=name)
        return spec


def load(target: str, tree: Path) -> Callable[..., Any]:
    """The function behind `module:function`; ends the process if it is not from the tree."""
    name, _, function = target.partition(":")
    module = importlib.import_module(name)
    if not Path(module.__file__ or "/").resolve().is_relative_to(tree):
        sys.exit(WRONG_TREE)
    found: Callable[..., Any] = getattr(module, function)
    return found
