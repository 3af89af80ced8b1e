"""Static checks, one module a rule: its name gives code and name, its docstring is the manual.

A rule knows nothing of other rules. It has one of two functions. `check(sources, paths)` yields
hits in one tree. It is given the files that the change touches, unless the rule has a function
`suspects(context)` that yields hits at head where the change can have caused some; where there
are any, `check` looks at the merge base, and what stood there is not reported.
`compare(context)` yields hits of the change itself.
"""

# SPDX-License-Identifier: MIT

from __future__ import annotations

import ast
import importlib
import io
import pkgutil
import re
import sys
import tokenize
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from types import ModuleType

from bot.contract import Contract
from bot.impact import Impact
from bot.kernels import Sources
from bot.model import Change, Confidence, Finding, Severity, Suppression, digest
from bot.policy import Policy
from bot.source import Summary

__all__ = ["Context", "Hit", "Result", "Tree", "code_of", "explain", "inspect", "rules", "touched"]

_IGNORE = re.compile(r"#\s*fla-bot:\s*ignore\[([A-Z0-9, ]+)\]\s*(.*)")
_UNREADABLE = ("API000", "unreadable-source")


@dataclass(frozen=True, slots=True)
class Hit:
    """What a rule yields. The message names no line: it must be equal at base and head."""

    path: str
    line: int
    end_line: int
    message: str
    witness: str = ""
    severity: Severity = Severity.ERROR
    confidence: Confidence = Confidence.HIGH


@dataclass(frozen=True, slots=True)
class Tree:
    """The Python files of one side: parsed on demand, and summaries of all of them."""

    sources: Sources
    summaries: Mapping[str, Summary]


@dataclass(frozen=True, slots=True)
class Context:
    """What a rule may look at. `everything`: report what was there before, too (`--all`)."""

    change: Change
    policy: Policy
    contracts: Mapping[str, Contract]
    base: Tree
    head: Tree
    impact: Impact
    everything: bool = False


@dataclass(frozen=True, slots=True)
class Result:
    """Findings, and suppressions that the change adds, or that silence what it adds.

    Each of these needs a person's word.
    """

    findings: list[Finding]
    suppressions: list[Suppression]


def rules() -> list[ModuleType]:
    """All rule modules, in the order of their codes."""
    names = sorted(info.name for info in pkgutil.iter_modules(__path__))
    return [importlib.import_module(f"{__name__}.{name}") for name in names]


def code_of(rule: ModuleType) -> tuple[str, str]:
    """`bot.rules.cal001_call_binding` is CAL001, `call-binding`."""
    code, _, name = rule.__name__.rpartition(".")[2].partition("_")
    return code.upper(), name.replace("_", "-")


def explain(word: str) -> str | None:
    """The manual of a rule, by code or name."""
    if word.lower() in [name.lower() for name in _UNREADABLE]:
        return f"{' '.join(_UNREADABLE)}\n\n{_unreadable.__doc__}"
    for rule in rules():
        code, name = code_of(rule)
        if word.lower() in (code.lower(), name):
            return f"{code} {name}\n\n{(rule.__doc__ or '').strip()}"
    return None


def inspect(context: Context) -> Result:
    """Run every rule and take out what is suppressed on its line."""
    found = list(_unreadable(context))
    for rule in rules():
        hits = rule.compare(context) if hasattr(rule, "compare") else _added(rule, context)
        found += [_finding(code_of(rule), hit) for hit in hits]
    found.sort(key=lambda finding: (finding.path, finding.line, finding.code))
    return _suppressed(context, found)


def _unreadable(context: Context) -> Iterator[Finding]:
    """A file that cannot be parsed is itself a finding: no rule has seen it."""
    for path in touched(context):
        fault = context.head.summaries[path].fault
        if fault is not None:
            line = max(1, fault.line)
            python = ".".join(map(str, sys.version_info[:2]))
            message = f"Python {python} cannot parse it: {fault.message}"
            yield _finding(_UNREADABLE, Hit(path, line, line, message))


def touched(context: Context) -> list[str]:
    """The Python files whose own lines the change touches, or all of them."""
    if context.everything:
        return sorted(context.head.summaries)
    return [file.path for file in context.change.files if file.path in context.head.summaries]


def _added(rule: ModuleType, context: Context) -> Iterator[Hit]:
    """Hits at head without those that stood at the merge base."""
    if hasattr(rule, "suspects"):
        found = list(rule.suspects(context))
    else:
        found = list(rule.check(context.head.sources, touched(context)))
    if context.everything or not found:
        yield from found
        return
    renamed = {file.old_path: file.path for file in context.change.files}
    back = {new: old for old, new in renamed.items()}
    before = sorted({back.get(hit.path, hit.path) for hit in found})
    old = rule.check(context.base.sources, [p for p in before if p in context.base.summaries])
    known = Counter((renamed.get(hit.path, hit.path), hit.message) for hit in old)
    for hit in found:
        if known[hit.path, hit.message]:
            known[hit.path, hit.message] -= 1
        else:
            yield hit


def _finding(rule: tuple[str, str], hit: Hit) -> Finding:
    return Finding(
        code=rule[0],
        name=rule[1],
        path=hit.path,
        line=hit.line,
        end_line=hit.end_line,
        severity=hit.severity,
        confidence=hit.confidence,
        message=hit.message,
        witness=hit.witness,
    )


def _suppressed(context: Context, found: Sequence[Finding]) -> Result:
    paths = {finding.path for finding in found} | set(touched(context))
    notes = {path: _notes(context.head.sources.files.get(path)) for path in paths}
    kept, silent = list[Finding](), dict[tuple[str, int], list[Finding]]()
    for finding in found:
        lines = [
            line
            for line in range(finding.line, finding.end_line + 1)
            if finding.code in notes[finding.path].get(line, ({}, ""))[0]
        ]
        for line in lines:
            silent.setdefault((finding.path, line), []).append(finding)
        kept += [] if lines else [finding]
    return Result(kept, list(_new_suppressions(context, notes, silent)))


def _notes(text: bytes | None) -> dict[int, tuple[set[str], str]]:
    """Suppression comments with a reason, by line: codes and reason."""
    if text is None or b"fla-bot:" not in text:
        return {}
    notes = {}
    try:
        for token in tokenize.tokenize(io.BytesIO(text).readline):
            match = _IGNORE.match(token.string) if token.type == tokenize.COMMENT else None
            if match and match[2].strip():
                codes = {code.strip() for code in match[1].split(",")}
                notes[token.start[0]] = (codes, match[2].strip())
    except (tokenize.TokenError, SyntaxError, UnicodeDecodeError):
        return {}
    return notes


def _new_suppressions(
    context: Context,
    notes: Mapping[str, Mapping[int, tuple[set[str], str]]],
    silent: Mapping[tuple[str, int], Sequence[Finding]],
) -> Iterator[Suppression]:
    """The comments that the change adds, and those of the base that silence what it adds."""
    if context.everything:
        return
    renamed = {file.path: file.old_path for file in context.change.files}
    for path in sorted({*renamed, *(path for path, _ in silent)}):
        old = _notes(context.base.sources.files.get(renamed.get(path, path)))
        known = Counter((*sorted(codes), reason) for codes, reason in old.values())
        for line, (codes, reason) in sorted(notes.get(path, {}).items()):
            key, found = (*sorted(codes), reason), silent.get((path, line), ())
            if known[key] and not found:
                known[key] -= 1
                continue
            yield Suppression(
                path=path,
                line=line,
                codes=sorted(codes),
                reason=reason,
                covers=_covered(context.head.sources, path, line, found),
            )


def _covered(sources: Sources, path: str, line: int, found: Sequence[Finding]) -> str:
    """A digest of the smallest statement around a line, and of the findings silenced there."""
    text = sources.files.get(path) or b""
    module, lines = sources.module(path), text.splitlines()
    first, last = 1, len(lines)  # of a file that cannot be parsed, all of it
    for node in ast.walk(module.tree) if module else ():
        if isinstance(node, ast.stmt):
            start = min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", ()))])
            end = node.end_lineno or start
            if start <= line <= end and end - start <= last - first:
                first, last = start, end
    first, last = min([first, *(f.line for f in found)]), max([last, *(f.end_line for f in found)])
    code = b"\n".join(lines[first - 1 : last])
    silenced = [(f.code, f.message, f.witness) for f in found]
    return digest([sha256(code).hexdigest(), *silenced])
