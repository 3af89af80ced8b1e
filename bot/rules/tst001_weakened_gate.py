"""What: a change that makes tests accept more than before.

That is a limit of a comparison raised, a comparison, a row or a test dropped, a skip added, a
reference, the harness or the comparison itself edited.

Why: a kernel that became wrong passes when the gate moves along with it. Speed-ups of public
history raised limits fourfold and dropped the ragged lengths on which they failed. Sometimes it is
right to do so; then a person says so. Where the same change edits kernels it is an error.

Bad:
    -assert_close("dq", ref_dq, tri_dq, 0.005)
    +assert_close("dq", ref_dq, tri_dq, 0.02)

Good:
    assert_close("dq", ref_dq, tri_dq, 0.005)

Limits: reads tests, references and harness files as the policy names them, and functions that its
`comparisons` name wherever they stand. Tests and functions that move or are renamed are followed
by name or, unchanged, by body. Rows are compared as text over the argument names that both sides
have, and only where they stand in literal lists. Not seen: smaller inputs inside a test, seeds, a
comparison whose operands are computed in another way, helpers in test files. A skip whose
condition is narrowed counts as a new one. Documentation, annotations and layout never count.

Source: shared rule catalogue, row weakened-gate.
"""

# SPDX-License-Identifier: MIT

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

from bot.gates import Axis, Limit, Unit, cells, likeness, meaning_of, units
from bot.globs import matches
from bot.kernels import Sources, device_code
from bot.model import Confidence, Severity
from bot.rules import Context, Hit, Tree

_Key = tuple[str, str]
# From here on a new function counts as the old one under another name.
_ALIKE = 0.5


@dataclass(frozen=True, slots=True)
class _Pair:
    """A function before and after, where it stands now (or stood), and what file it was in."""

    path: str
    kind: str
    name: str
    before: Unit
    after: Unit | None
    line: int


def compare(context: Context) -> Iterator[Hit]:
    """Everything that the change weakens."""
    if context.everything:
        return
    gates = _Gates(context)
    found = {
        (pair.path, *weakness): None
        for pair in gates.pairs
        for weakness in _weaknesses(context, pair)
    }
    for path, message, line, is_certain in (
        *found,
        *gates.edited_harness(),
        *gates.deleted_files(),
    ):
        yield Hit(
            path=path,
            line=line,
            end_line=line,
            message=message + gates.reason,
            severity=Severity.ERROR if gates.reason else Severity.WARNING,
            confidence=Confidence.HIGH if is_certain else Confidence.MEDIUM,
        )


class _Gates:
    """Both sides of the files that decide what passes."""

    def __init__(self, context: Context) -> None:
        self.context = context
        self.names = context.policy.python.comparisons
        edited = {item.path for item in context.impact.changed}
        self.renamed = {
            file.old_path: file.path
            for file in context.change.files
            if file.old_path in edited or file.path in edited
        }
        self.before = self._units(context.base, self.renamed.keys())
        self.after = self._units(context.head, self.renamed.values())

    def _units(self, tree: Tree, paths: Iterable[str]) -> dict[_Key, Unit]:
        found: dict[_Key, Unit] = {}
        for path in sorted(set(paths)):
            summary = tree.summaries.get(path)
            if summary is None or summary.fault is not None:
                continue
            kind = kind_of(self.context, path)
            if not kind and not any(item.name in self.names for item in summary.definitions):
                continue
            module = tree.sources.module(path)
            if module is not None:
                found.update(((path, name), u) for name, u in units(module, self.names).items())
        return found

    @cached_property
    def reason(self) -> str:
        """What makes it worse: kernels edited in the same change."""
        names = sorted(changed_kernels(self.context))
        return f", in a change that also edits `{names[0]}`" if names else ""

    @cached_property
    def pairs(self) -> list[_Pair]:
        """Each unit of the base with what became of it."""
        return list(self._paired())

    def _paired(self) -> Iterator[_Pair]:
        anchors: dict[str, int] = {}
        for (path, name), before in self.before.items():
            here = self.renamed[path]
            kind = kind_of(self.context, path)
            where = self._successor(here, kind, name, before)
            after = self.after[where] if where else None
            place = where[0] if where else here
            if after is not None:
                anchors[place] = after.end_line if name else anchors.get(place, 1)
            line = after.line if after else anchors.get(here, 1)
            yield _Pair(place, kind, name, before, after, line)

    def edited_harness(self) -> Iterator[tuple[str, str, int, bool]]:
        """One weakness for each harness file: what it does to tests cannot be told from here."""
        changed: dict[str, dict[str, int]] = {}
        for item in self.context.impact.changed:
            path = self.renamed.get(item.path, item.path)
            if kind_of(self.context, item.path) == "harness":
                changed.setdefault(path, {})[item.name or "a statement"] = item.line
        for path, names in changed.items():
            listed = ", ".join(f"`{name}`" for name in sorted(names)[:3])
            more = f" and {len(names) - 3} more" if len(names) > 3 else ""
            message = f"harness is edited: {listed}{more}"
            yield path, message, min(names.values()), True

    def deleted_files(self) -> Iterator[tuple[str, str, int, bool]]:
        """One weakness for each test file of which nothing is left."""
        lost: dict[str, list[_Pair]] = {}
        for pair in self.pairs:
            if pair.after is None and pair.before.is_test and pair.kind == "test":
                lost.setdefault(pair.path, []).append(pair)
        kept = {name for _, name in self.after}
        for path, pairs in lost.items():
            if path not in self.context.head.summaries:
                count = f"{len(pairs)} tests are" if len(pairs) > 1 else "1 test is"
                message = f"{count} removed with their file, first `{pairs[0].name}`"
                yield path, message, 1, not {pair.name for pair in pairs} <= kept

    def _successor(self, here: str, kind: str, name: str, before: Unit) -> _Key | None:
        """The unit at head that a unit of the base became, by name or by what it does."""
        if (here, name) in self.after:
            return here, name
        if not name:
            return None
        new = [key for key in self.after if key not in self.before and key[1]]
        named = [key for key in new if key[1] == name]
        if named:
            return named[0]
        # A helper of a test file is no gate by itself: not worth the time.
        worth = before.is_test or kind != "test"
        alike = {
            key: likeness(self.after[key], before)
            for key in (new if worth else ())
            if self.after[key].is_test == before.is_test
        }
        best = max(alike, key=lambda key: alike[key], default=None)
        return best if best is not None and alike[best] >= _ALIKE else None


def kind_of(context: Context, path: str) -> str:
    """Which part of the gate a path is; empty for code under test."""
    python = context.policy.python
    if matches(path, python.harness):
        return "harness"
    if matches(path, python.references):
        return "reference"
    return "test" if matches(path, python.tests) else ""


def changed_kernels(context: Context) -> set[str]:
    """Kernels and launchers that the change edits, adds or removes."""
    found = set()
    for item in context.impact.changed:
        if not kind_of(context, item.path):
            for tree in (context.base, context.head):
                found |= {item.name} & _device_code(tree.sources, item.path)
    return found


def _device_code(sources: Sources, path: str) -> set[str]:
    module = sources.module(path)
    return device_code(module) if module else set()


_Weakness = tuple[str, int, bool]


def _weaknesses(context: Context, pair: _Pair) -> Iterator[_Weakness]:
    """Message, place and whether it is certain."""
    decides = pair.name.rpartition(".")[2] in context.policy.python.comparisons
    if pair.name and (pair.kind == "reference" or decides):
        yield from _edited(context, pair, "comparison" if decides else pair.kind)
    if pair.kind != "test":
        return
    if pair.after is None:
        if pair.before.is_test and pair.path in context.head.summaries:
            yield f"test `{pair.name}` is removed", pair.line, True
        return
    where = f"in `{pair.name}`" if pair.name else "of the module"
    yield from _raised(where, pair.before.limits, pair.after.limits)
    yield from _skipped(where, pair.before, pair.after)
    if pair.name:
        yield from _uncompared(where, pair.before, pair.after)
    if pair.before.is_test:
        yield from _dropped_rows(pair.name, pair.before.axes, pair.after.axes, pair.after.line)


def _edited(context: Context, pair: _Pair, kind: str) -> Iterator[_Weakness]:
    folder = pair.path.rpartition("/")[0] + "/"
    if pair.after is None:
        # Where all of an op is gone, nothing is left that could be wrong.
        if any(path.startswith(folder) for path in context.head.summaries):
            yield f"{kind} `{pair.name}` is removed", pair.line, True
    elif meaning_of(pair.before.node) != meaning_of(pair.after.node):
        yield f"{kind} `{pair.name}` is edited", pair.line, True


def _raised(
    where: str, before: Mapping[str, Limit], after: Mapping[str, Limit]
) -> Iterator[_Weakness]:
    for key in after.keys() & before.keys():
        old, new = before[key].values, after[key].values
        same = len(old) == len(new)
        pairs = zip(old, new, strict=True) if same else [(max(old), max(new))]
        worse = [(low, high) for low, high in pairs if high > low]
        if worse:
            low, high = max(worse, key=lambda pair: pair[1] / pair[0] if pair[0] else pair[1])
            message = f"limit `{key}` {where} is raised from {low:g} to {high:g}"
            yield message, after[key].line, True


def _skipped(where: str, before: Unit, after: Unit) -> Iterator[_Weakness]:
    axes = {name for axis in after.axes for name in axis.names}
    axes -= {name for axis in before.axes for name in axis.names}
    new = [key for key in after.skips if key not in before.skips and not _is_about(key, axes)]
    # As many went as came: a condition was edited, and that may have made it narrower.
    is_more = len(after.skips) > len(before.skips)
    for key in new:
        verb = "is new" if is_more else "has another condition"
        yield f"skip `{key}` {where} {verb}", after.skips[key], is_more


def _is_about(condition: str, axes: set[str]) -> bool:
    """Whether a skip leaves out only rows of an axis that was not there before."""
    words = set(re.findall(r"\w+", condition))
    return bool(words & axes) and "or" not in words


def _uncompared(where: str, before: Unit, after: Unit) -> Iterator[_Weakness]:
    for key, line in after.lenient.items():
        label, _, slot = key.rpartition(" ")
        if key not in before.lenient and label in before.comparisons:
            yield f"comparison `{label}` {where} now has `{slot}=True`", line, True
    gone = [key for key in before.comparisons if key not in after.comparisons]
    rewritten = len(gone) + len(after.comparisons) > len(before.comparisons)
    if gone and not rewritten and after.has_loop <= before.has_loop:
        names = ", ".join(f"`{key}`" for key in gone[:3])
        yield f"{len(gone)} comparisons {where} are gone: {names}", after.line, False


def _dropped_rows(
    name: str, before: list[Axis], after: list[Axis], line: int
) -> Iterator[_Weakness]:
    old, new = cells(before), cells(after)
    if not old or not new:
        return
    common = [key for key in old[0] if key in new[0]]
    kept = {tuple(row[key] for key in common) for row in new}
    rows = dict.fromkeys(tuple(row[key] for key in common) for row in old)
    lost = [row for row in rows if row not in kept]
    if lost:
        first = ", ".join(f"{key}={value}" for key, value in zip(common, lost[0], strict=True))
        is_less = len(kept - rows.keys()) < len(lost)
        verb = "drops" if is_less else "replaces"
        message = f"`{name}` {verb} {len(lost)} of {len(rows)} parametrised rows, first {first}"
        yield message, line, is_less
