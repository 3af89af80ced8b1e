"""Static checks, one module a rule: its name gives code and name, its docstring is the manual.

A rule yields hits and knows nothing of other rules.
"""

# SPDX-License-Identifier: MIT

from __future__ import annotations

import importlib
import pkgutil
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import ModuleType

from bot.kernels import Sources
from bot.model import Change, Confidence, Finding, Severity

__all__ = ["Context", "Hit", "code_of", "findings", "rules"]


@dataclass(frozen=True, slots=True)
class Hit:
    """What a rule yields. The message names no line: it must be equal at base and head."""

    path: str
    line: int
    end_line: int
    message: str


@dataclass(frozen=True, slots=True)
class Context:
    """What a rule may look at: the Python files of one tree, and the paths to report on."""

    sources: Sources
    paths: tuple[str, ...]


def rules() -> list[ModuleType]:
    """All rule modules, in the order of their codes."""
    names = sorted(info.name for info in pkgutil.iter_modules(__path__))
    return [importlib.import_module(f"{__name__}.{name}") for name in names]


def code_of(rule: ModuleType) -> tuple[str, str]:
    """`bot.rules.cal001_call_binding` is CAL001, `call-binding`."""
    code, _, name = rule.__name__.rpartition(".")[2].partition("_")
    return code.upper(), name.replace("_", "-")


def findings(
    change: Change, base: Mapping[str, bytes | None], head: Mapping[str, bytes | None]
) -> list[Finding]:
    """What the rules find at head and did not find at the merge base."""
    files = [file for file in change.files if file.path.endswith(".py")]
    new = Context(Sources(head), tuple(f.path for f in files if f.status != "deleted"))
    old = Context(Sources(base), tuple(f.old_path for f in files if f.status != "added"))
    renamed = {file.old_path: file.path for file in files}
    result = [_unreadable(path, head[path]) for path in new.paths if head.get(path) is not None]
    found = [finding for finding in result if finding is not None]
    for rule in rules():
        found += _added(rule, rule.check(new), rule.check(old), renamed)
    return sorted(found, key=lambda finding: (finding.path, finding.line, finding.code))


def _unreadable(path: str, text: bytes | None) -> Finding | None:
    """A file that cannot be parsed is itself a finding: no rule has seen it."""
    import ast

    try:
        ast.parse(text or b"")
    except (SyntaxError, ValueError, RecursionError) as error:
        line = getattr(error, "lineno", None) or 1
        reason = getattr(error, "msg", None) or str(error)
        return _finding(("API000", "unreadable-source"), Hit(path, line, line, reason))
    return None


def _added(
    rule: ModuleType, new: Iterable[Hit], old: Iterable[Hit], renamed: Mapping[str, str]
) -> Iterator[Finding]:
    known = Counter((renamed.get(hit.path, hit.path), hit.message) for hit in old)
    for hit in new:
        if known[hit.path, hit.message]:
            known[hit.path, hit.message] -= 1
        else:
            yield _finding(code_of(rule), hit)


def _finding(rule: tuple[str, str], hit: Hit) -> Finding:
    return Finding(
        code=rule[0],
        name=rule[1],
        path=hit.path,
        line=hit.line,
        end_line=hit.end_line,
        severity=Severity.ERROR,
        confidence=Confidence.HIGH,
        message=hit.message,
    )


Check = Callable[[Context], Iterator[Hit]]
