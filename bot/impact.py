"""Tells which tests, definitions and entry points a change affects, by definition.

Works on summaries of two trees, never on files. It errs to the wide side: what cannot be followed
by definition is followed by file, what cannot be followed by file selects every test, and each
such step leaves a reason.
"""

# SPDX-License-Identifier: MIT

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

from bot.globs import matches
from bot.source import Definition, Import, Summary

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from bot.policy import Python

__all__ = ["Affected", "Impact", "Index", "Widening", "impact"]


class Affected(NamedTuple):
    """A definition that behaves differently, or may."""

    path: str
    name: str
    kind: str
    line: int


class Widening(NamedTuple):
    """Why more was selected than the changed definitions reach.

    `scope` is file, package, imports or all.
    """

    path: str
    scope: str
    reason: str


@dataclass(frozen=True, slots=True)
class Impact:
    """The answer. `because` names, for each test, the changed definition or file that led to it."""

    tests: tuple[str, ...] = ()
    changed: tuple[Affected, ...] = ()
    definitions: tuple[Affected, ...] = ()
    entry_points: tuple[Affected, ...] = ()
    kernels: tuple[Affected, ...] = ()
    widened: tuple[Widening, ...] = ()
    unreached: tuple[str, ...] = ()
    because: Mapping[str, str] = field(default_factory=dict)


def impact(base: Index, head: Index, changed: Iterable[str]) -> Impact:
    """Return what a change from `base` to `head` affects.

    Args:
        base: the tree before.
        head: the tree after.
        changed: paths that differ, Python or not, deleted ones included.
    """
    return _Query(base, head).answer(sorted(set(changed)))


def _fits(template: str, name: str) -> bool:
    """Match a template whose stars stand for anything; linear, for templates are untrusted."""
    first, *middle, last = template.split("*")
    if not name.startswith(first):
        return False
    position = len(first)
    for piece in middle:
        found = name.find(piece, position)
        if found < 0:
            return False
        position = found + len(piece)
    return name.endswith(last) and len(name) - len(last) >= position


class _Use(NamedTuple):
    """A place where a file gets hold of a name of another file."""

    path: str
    alias: str
    owner: int


def _module_names(path: str, packages: Collection[str]) -> list[str]:
    """Return the dotted names by which a file can be imported, the full one first.

    The shorter one starts at the first folder that is no package: a folder on the import path,
    like `src`, a folder of scripts or of tests.
    """
    parts = path.removesuffix(".py").split("/")
    folders = parts[:-1]
    if parts[-1] == "__init__":
        parts.pop()
    start = len(folders)
    while start and "/".join(folders[:start]) in packages:
        start -= 1
    names = [".".join(parts), ".".join(parts[start:])]
    return [name for name in dict.fromkeys(names) if name] or [""]


class Index:
    """Indices over the summaries of one tree; the costly ones are built when asked for.

    `summaries` are those of all Python files by path, `settings` what the policy says of tests,
    dispatch and harmless files.
    """

    def __init__(self, summaries: Mapping[str, Summary], settings: Python) -> None:
        self.summaries = summaries
        self.settings = settings
        self.names: dict[str, list[str]] = {}
        self.modules: dict[str, str] = {}
        self.uses: dict[tuple[str, str], list[_Use]] = {}
        self.aliases: dict[str, list[_Use]] = {}
        self.strings: dict[str, list[tuple[str, int]]] = {}
        self._heads: dict[str, dict[str, list[str]]] = {}
        self._next: dict[str, tuple[str, ...]] = {}
        self._closures: dict[frozenset[str], set[str]] = {}
        self._module_users: dict[str, list[_Use]] = {}
        self._name_modules()
        self._index_imports()

    def _name_modules(self) -> None:
        suffix = "/__init__.py"
        packages = {path.removesuffix(suffix) for path in self.summaries if path.endswith(suffix)}
        self.packages = packages
        # Python takes a package before a module of the same name.
        for path in sorted(self.summaries, key=lambda item: not item.endswith(suffix)):
            self.names[path] = _module_names(path, packages)
            self.modules.setdefault(self.names[path][0], path)
        for path, names in self.names.items():
            self.modules.setdefault(names[-1], path)
        self.tops = {name.partition(".")[0] for name in self.modules}

    def module_of(self, path: str, entry: Import) -> str:
        """Return the absolute name of the module that an import names."""
        if not entry.level:
            return entry.module
        package = self.names[path][0]
        if not path.endswith("__init__.py"):
            package = package.rpartition(".")[0]
        for _ in range(entry.level - 1):
            package = package.rpartition(".")[0]
        return ".".join(part for part in (package, entry.module) if part)

    def _index_imports(self) -> None:
        for path, summary in self.summaries.items():
            for entry in summary.imports:
                if not entry.level and entry.module.partition(".")[0] not in self.tops:
                    continue
                if not entry.is_typing_only:
                    self._index_import(path, entry)
            for text, indices in summary.strings.items():
                self.strings.setdefault(text, []).extend((path, index) for index in indices)

    def _index_import(self, path: str, entry: Import) -> None:
        module = self.module_of(path, entry)
        if entry.name:
            use = _Use(path, entry.alias, entry.owner)
            self.uses.setdefault((module, entry.name), []).append(use)
            submodule = f"{module}.{entry.name}"
            if submodule in self.modules:
                self.aliases.setdefault(submodule, []).append(use)
        elif entry.alias != module:
            use = _Use(path, entry.alias, entry.owner)
            self.aliases.setdefault(module, []).append(use)
        else:
            # `import a.b.c` binds `a` and makes `a.b` and `a.b.c` reachable through it.
            parts = module.split(".")
            for end in range(1, len(parts) + 1):
                name = ".".join(parts[:end])
                self.aliases.setdefault(name, []).append(_Use(path, name, entry.owner))

    def heads(self, path: str) -> dict[str, list[str]]:
        """Return a file's references by their first component."""
        known = self._heads.get(path)
        if known is None:
            known = self._heads[path] = {}
            for name in self.summaries[path].references:
                known.setdefault(name.partition(".")[0], []).append(name)
        return known

    def users_of_head(self, path: str, head: str) -> Iterator[int]:
        """Yield the definitions of a file that use a name, with or without attributes."""
        references = self.summaries[path].references
        for name in self.heads(path).get(head, ()):
            yield from references[name]

    def users_of_dotted(self, path: str, dotted: str) -> Iterator[int]:
        """Yield the definitions of a file that use a dotted name or an attribute of it."""
        references = self.summaries[path].references
        for name in self.heads(path).get(dotted.partition(".")[0], ()):
            if name == dotted or name.startswith(dotted + "."):
                yield from references[name]

    @cached_property
    def test_files(self) -> frozenset[str]:
        """Paths of the test files."""
        globs = self.settings.tests
        return frozenset(path for path in self.summaries if matches(path, globs))

    @cached_property
    def dispatched(self) -> dict[str, list[tuple[str, int]]]:
        """Functions that a dispatcher may replace, by name."""
        found: dict[str, list[tuple[str, int]]] = {}
        for path, index, item in self._items():
            if item.kind == "function" and self._is_dispatched(item):
                found.setdefault(item.name, []).append((path, index))
        return found

    def _is_dispatched(self, item: Definition) -> bool:
        names = self.settings.dispatchers
        return any(mark.name.rpartition(".")[2] in names for mark in item.decorators)

    @cached_property
    def methods(self) -> dict[str, list[tuple[str, int]]]:
        """Methods by their own name."""
        found: dict[str, list[tuple[str, int]]] = {}
        for path, index, item in self._items():
            if item.kind == "method":
                found.setdefault(item.name.partition(".")[2], []).append((path, index))
        return found

    def _items(self) -> Iterator[tuple[str, int, Definition]]:
        for path, summary in self.summaries.items():
            for index, item in enumerate(summary.definitions):
                yield path, index, item

    @cached_property
    def dynamic_modules(self) -> list[str]:
        """Modules that may export more names than their text says."""
        return [
            name
            for path, summary in self.summaries.items()
            if summary.has_dynamic_exports
            for name in self.names[path]
        ]

    def module_users(self, module: str) -> list[_Use]:
        """Return where a module is at hand under a local name, through re-exports too."""
        known = self._module_users.get(module)
        if known is None:
            known = self._module_users[module] = self._find_module_users(module)
        return known

    def _find_module_users(self, module: str) -> list[_Use]:
        found: list[_Use] = []
        queue = list(self.aliases.get(module, ()))
        seen: set[_Use] = set()
        while queue:
            use = queue.pop()
            if use in seen:
                continue
            seen.add(use)
            found.append(use)
            if use.owner < 0 and "." not in use.alias:
                for name in self.names[use.path]:
                    queue += self.uses.get((name, use.alias), ())
        return found

    def origin(self, path: str, name: str) -> tuple[str, str] | None:
        """Follow a local name to the file that defines it; None when that is outside the tree."""
        seen: set[tuple[str, str]] = set()
        while (path, name) not in seen:
            seen.add((path, name))
            summary = self.summaries[path]
            entry = next(
                (item for item in summary.imports if item.alias == name and item.owner < 0), None
            )
            if entry is None:
                is_bound = any(item.name == name for item in summary.definitions)
                return (path, name) if is_bound else None
            target = self.modules.get(self.module_of(path, entry))
            if target is None or not entry.name:
                return None
            path, name = target, entry.name
        return None

    @cached_property
    def importers(self) -> dict[str, set[str]]:
        """For each file the files that import it by name, at any level of nesting."""
        found: dict[str, set[str]] = {}
        for path, summary in self.summaries.items():
            for target in self._import_targets(path, summary):
                found.setdefault(target, set()).add(path)
        return found

    def _import_targets(self, path: str, summary: Summary) -> Iterator[str]:
        for entry in summary.imports:
            if entry.is_typing_only:
                continue
            module = self.module_of(path, entry)
            for name in (module, f"{module}.{entry.name}"):
                if name in self.modules:
                    yield self.modules[name]
        for text in summary.strings:
            yield from self._string_targets(text)

    def _string_targets(self, text: str) -> Iterator[str]:
        if "*" in text:
            yield from (path for name, path in self.modules.items() if _fits(text, name))
        elif text in self.modules:
            yield self.modules[text]

    def tests_that_import(self, packages: Iterable[str]) -> list[str]:
        """Return the test files that themselves import a package or a module in it."""
        names = tuple(packages)
        prefixes = tuple(f"{name}." for name in names)
        return [
            path
            for path in self.test_files
            for module in {self.module_of(path, item) for item in self.summaries[path].imports}
            if module in names or module.startswith(prefixes)
        ]

    @cached_property
    def helpers(self) -> dict[str, set[str]]:
        """Test files without tests, each with the test files that use it, also through others."""
        found: dict[str, set[str]] = {}
        for path in self.test_files:
            if not self.has_tests(path):
                users = self.import_closure([path]) & self.test_files
                served = {user for user in users if self.has_tests(user)}
                if served:
                    found[path] = served
        return found

    def has_unknown_effect(self, path: str, item: Definition) -> bool:
        """Tell whether a definition is module-level code that changes something out of sight."""
        heads = {name.partition(".")[0] for name in item.writes}
        return item.kind == "statement" and not any(self.origin(path, head) for head in heads)

    def has_tests(self, path: str) -> bool:
        """Tell whether pytest finds tests in a file."""
        return any(
            item.name.startswith(("test", "Test")) for item in self.summaries[path].definitions
        )

    def import_closure(self, paths: Iterable[str]) -> set[str]:
        """Return the files whose import runs one of `paths`, and those themselves."""
        found = set(paths)
        queue = list(found)
        while queue:
            path = queue.pop()
            reached = self.importers.get(path, set())
            if path.endswith("__init__.py"):
                # Importing a module runs the `__init__` of every package above it.
                reached = reached.union(self.package_members(path))
            queue += reached - found
            found |= reached
        return found

    def sources_of(self, paths: Iterable[str]) -> set[str]:
        """Return the files that importing `paths` runs, and those themselves."""
        key = frozenset(path for path in paths if path in self.summaries)
        if key not in self._closures:
            found: set[str] = set()
            queue = list(key)
            while queue:
                path = queue.pop()
                if path not in found:
                    found.add(path)
                    queue += self._runs(path)
            self._closures[key] = found
        return self._closures[key]

    def _runs(self, path: str) -> tuple[str, ...]:
        """The files that importing one file runs next: what it imports, and its packages."""
        known = self._next.get(path)
        if known is None:
            folders = path.split("/")[:-1]
            inits = ("/".join([*folders[:n], "__init__.py"]) for n in range(1, len(folders) + 1))
            targets = dict.fromkeys(self._import_targets(path, self.summaries[path]))
            targets |= dict.fromkeys(init for init in inits if init in self.summaries)
            known = self._next[path] = tuple(targets)
        return known

    def package_members(self, init: str) -> list[str]:
        """Return the files whose import runs a package's `__init__`."""
        folder = init.removesuffix("__init__.py")
        return [path for path in self.summaries if path.startswith(folder)]

    def subtree(self, conftest: str) -> list[str]:
        """Return the files that see the fixtures of a conftest."""
        folder = conftest.removesuffix("conftest.py")
        return [path for path in self.summaries if path.startswith(folder)]


_Node = tuple[str, int | str]


class _Spread:
    """Walks from changed definitions to all that use them, in one tree.

    A node is a definition `(path, index)` or a module-level name `(path, name)`.
    """

    def __init__(self, tree: Index, barred: Collection[_Node] = ()) -> None:
        self.tree = tree
        self.barred = barred
        self.cause: dict[_Node, str] = {}
        self.tests: dict[str, str] = {}
        self._queue: list[_Node] = []
        self._because = ""

    def start(self, node: _Node, because: str) -> None:
        """Mark a node as affected by a change."""
        self._because = because
        self._push(node)

    def start_twins(self, node: _Node) -> None:
        """A changed dispatched function puts in doubt the methods that stand in for it."""
        path, key = node
        if not isinstance(key, int):
            return
        name = self.tree.summaries[path].definitions[key].name
        if name in self.tree.dispatched:
            for other, index in self.tree.methods.get(name, ()):
                owner = self.tree.summaries[other].definitions[index].name.partition(".")[0]
                self._push((other, index))
                self._push((other, owner))

    def run(self, *, is_enough_one: bool = False) -> None:
        """Follow all references, or only until some test is reached."""
        while self._queue and not (is_enough_one and self.tests):
            node = self._queue.pop()
            self._because = self.cause[node]
            path, key = node
            if isinstance(key, int):
                self._leave_definition(path, key)
            else:
                self._leave_name(path, key)

    def _push(self, node: _Node) -> None:
        if node not in self.cause and node not in self.barred:
            self.cause[node] = self._because
            self._queue.append(node)

    def _push_all(self, path: str, indices: Iterable[int]) -> None:
        for index in indices:
            self._push((path, index))

    def _leave_definition(self, path: str, index: int) -> None:
        item = self.tree.summaries[path].definitions[index]
        if item.kind == "main":
            return
        if path in self.tree.test_files and self._is_run_by_pytest(path, item):
            self.tests.setdefault(path, self._because)
        if item.kind == "statement":
            self._leave_statement(path, item)
        elif item.kind == "method":
            self._leave_method(path, item)
        else:
            if item.kind == "class":
                self._push_dispatched(self._methods_of(path, item.name))
            self._push((path, item.name))
        if item.kind in ("function", "method"):
            for name in item.writes:
                self._push((path, name))

    def _is_run_by_pytest(self, path: str, item: Definition) -> bool:
        """Tests, what runs before them, and all of a test file that only helps others."""
        names = (item.name, item.name.rpartition(".")[2])
        starts = ("test", "Test", "pytestmark", "setup", "teardown", "setUp", "tearDown")
        is_run = any(name.startswith(starts) for name in names)
        return is_run or item.kind in ("class", "statement") or not self.tree.has_tests(path)

    def _leave_statement(self, path: str, item: Definition) -> None:
        """A registration ties together what it names: who has one may get hold of the others."""
        for name in item.writes:
            origin = self.tree.origin(path, name.partition(".")[0])
            if origin is not None:
                self._push(origin)
        if path.endswith("conftest.py"):
            self.take_subtree(path)
        elif self.tree.has_unknown_effect(path, item):
            # What the module does when it is imported has changed, not only what it holds.
            for test in self.tree.import_closure([path]) & self.tree.test_files:
                self.tests.setdefault(test, self._because)

    def _leave_method(self, path: str, item: Definition) -> None:
        owner, _, name = item.name.partition(".")
        replaced = self._replaced_by(name)
        self._push_dispatched([name] if replaced else self._methods_of(path, owner))
        self._push((path, owner))

    def _methods_of(self, path: str, owner: str) -> list[str]:
        prefix = f"{owner}."
        definitions = self.tree.summaries[path].definitions
        return [item.name[len(prefix) :] for item in definitions if item.name.startswith(prefix)]

    def _push_dispatched(self, methods: Iterable[str]) -> None:
        for method in methods:
            for node in self._replaced_by(method):
                self._push(node)

    def _replaced_by(self, method: str) -> list[tuple[str, int]]:
        """Return the dispatched functions that a method implements or, `f_verifier`, guards."""
        name = method
        while name:
            if name in self.tree.dispatched:
                return self.tree.dispatched[name]
            name = name.rpartition("_")[0]
        return []

    def _leave_name(self, path: str, name: str) -> None:
        tree = self.tree
        self._push_all(path, tree.users_of_head(path, name))
        self._leave_fixture(path, name)
        for module in tree.names[path]:
            self._push_uses(tree.uses.get((module, name), ()))
            self._leave_star(path, module, name)
            self._leave_dotted(module, name)
        for module in tree.dynamic_modules:
            self._push_uses(tree.uses.get((module, name), ()))
            for use in tree.module_users(module):
                self._push_all(use.path, tree.users_of_dotted(use.path, f"{use.alias}.{name}"))

    def _push_uses(self, uses: Iterable[_Use]) -> None:
        for use in uses:
            self._push((use.path, use.alias if use.owner < 0 else use.owner))

    def _leave_star(self, path: str, module: str, name: str) -> None:
        exports = self.tree.summaries[path].exports
        is_exported = not name.startswith("_") if exports is None else name in exports
        if is_exported:
            for use in self.tree.uses.get((module, "*"), ()):
                self._push((use.path, name))

    def _leave_dotted(self, module: str, name: str) -> None:
        """Follow `module.name` where the module or a package above it is at hand as a value."""
        tree = self.tree
        for path, index in tree.strings.get(f"{module}.{name}", ()):
            self._push((path, index))
        package, rest = module, name
        while package:
            for use in tree.module_users(package):
                self._push_all(use.path, tree.users_of_dotted(use.path, f"{use.alias}.{rest}"))
            package, _, last = package.rpartition(".")
            rest = f"{last}.{rest}"
        for use in tree.module_users(module):
            # The module itself is passed on: to `getattr`, to `monkeypatch`.
            self._push_all(use.path, tree.summaries[use.path].references.get(use.alias, ()))
            if not use.alias and use.owner >= 0:
                self._push((use.path, use.owner))

    def _leave_fixture(self, path: str, name: str) -> None:
        tree = self.tree
        names, is_autouse = self._fixture_names(path, name)
        reach = {path}
        for conftest in self._conftests_that_load(path):
            if is_autouse or name.startswith("pytest_"):
                self.take_subtree(conftest)
            reach.update(tree.subtree(conftest))
        for other in sorted(reach):
            for fixture in names:
                self._push_all(other, tree.summaries[other].requests.get(fixture, ()))

    def _conftests_that_load(self, path: str) -> list[str]:
        """A conftest loads itself and the modules that it names as plugins."""
        tree = self.tree
        found = [path] if path.endswith("conftest.py") else []
        for module in tree.names[path]:
            for user, index in tree.strings.get(module, ()):
                if tree.summaries[user].definitions[index].name == "pytest_plugins":
                    found.append(user)
        return found

    def _fixture_names(self, path: str, name: str) -> tuple[set[str], bool]:
        """Return by which names tests may ask for a fixture, and whether they get it unasked."""
        names = {name}
        is_autouse = False
        for item in self.tree.summaries[path].definitions:
            if item.name == name:
                for mark in item.decorators:
                    if mark.name.rpartition(".")[2] in self.tree.settings.fixtures:
                        keywords = dict(mark.keywords)
                        names.add(str(keywords.get("name", name)))
                        is_autouse = is_autouse or keywords.get("autouse") is True
        return names, is_autouse

    def take_subtree(self, conftest: str) -> None:
        """Select all tests below a conftest."""
        for path in self.tree.subtree(conftest):
            if path in self.tree.test_files:
                self.tests.setdefault(path, self._because)


@dataclass(slots=True)
class _Difference:
    """What differs in one file: nodes of the head tree, nodes of the base tree, and doubts."""

    path: str
    head: list[_Node] = field(default_factory=list)
    base: list[_Node] = field(default_factory=list)
    doubts: list[str] = field(default_factory=list)

    @property
    def is_empty(self) -> bool:
        return not (self.head or self.base or self.doubts)


_NOTHING = Summary()


def _difference(path: str, base: Summary | None, head: Summary | None) -> _Difference:
    before, after = base or _NOTHING, head or _NOTHING
    found = _Difference(path)
    for side, summary in (("base", before), ("head", after)):
        if summary.fault is not None:
            line, message = summary.fault
            found.doubts.append(f"cannot be parsed at {side}, line {line}: {message}")
    _compare_definitions(found, before, after)
    _compare_imports(found, before, after)
    if path.endswith("__init__.py") and not (found.head or found.base) and base and head:
        # The order of imports in a package decides what a circular import finds.
        order = [[e for e in side.imports if e.owner < 0] for side in (before, after)]
        if order[0] != order[1]:
            found.doubts.append("imports are reordered")
    if before.exports != after.exports:
        names = set(before.exports or ()) ^ set(after.exports or ())
        # A file that is gone has names only in the tree before.
        nodes = found.base if head is None else found.head
        nodes += [(path, name) for name in sorted(names)]
    if not (found.head or found.base) and before.order != after.order:
        found.doubts.append("module-level statements are reordered")
    return found


def _key(item: Definition) -> tuple[str, str, str]:
    return item.name, item.kind, item.digest


def _compare_definitions(found: _Difference, before: Summary, after: Summary) -> None:
    old = Counter(_key(item) for item in before.definitions)
    for index, item in enumerate(after.definitions):
        if old[_key(item)]:
            old[_key(item)] -= 1
            continue
        found.head.append((found.path, index))
    names = {item.name for item in after.definitions}
    for index, item in enumerate(before.definitions):
        if not old[_key(item)]:
            continue
        if item.name not in names or item.kind == "statement":
            found.base.append((found.path, index))
        else:
            # One of several definitions of a name is gone: the name means something else now.
            found.head.append((found.path, item.name))


def _compare_imports(found: _Difference, before: Summary, after: Summary) -> None:
    old, new = _module_imports(before), _module_imports(after)
    if any(entry.name == "*" for entry in old ^ new):
        found.doubts.append("a star import is changed")
    path = found.path
    found.head += [(path, name) for name in sorted({_local_name(entry) for entry in new - old})]
    kept = {_local_name(entry) for entry in new}
    gone = {_local_name(entry) for entry in old - new} - kept
    found.base += [(path, name) for name in sorted(gone)]


def _module_imports(summary: Summary) -> set[Import]:
    return {entry for entry in summary.imports if entry.owner < 0 and not entry.is_typing_only}


def _local_name(entry: Import) -> str:
    return entry.alias.partition(".")[0]


class _Query:
    """One question about two trees."""

    def __init__(self, base: Index, head: Index) -> None:
        self.settings = head.settings
        self.base = base
        self.head = head
        self.spread = _Spread(self.head)
        self.past = _Spread(self.base)
        self.widened: list[Widening] = []
        self.unreached: list[str] = []
        self.dead: dict[Index, set[_Node]] = {self.base: set(), self.head: set()}

    def answer(self, changed: Sequence[str]) -> Impact:
        """Compare, spread, widen where needed."""
        code = [path for path in changed if self._is_python(path)]
        differences = [item for item in map(self._compare, code) if not item.is_empty]
        for item in differences:
            self._start(item)
            self._start_dangling(item)
            if not item.path.endswith("__init__.py"):
                self._start_readers(item.path)
        for path in changed:
            if path not in code:
                self._take_other_file(path)
        self._run()
        if differences:
            self._take_unreadable(changed)
        for item in differences:
            self._widen(item)
        if not (self.spread.tests or self.past.tests):
            for item in differences:
                if not matches(item.path, self.settings.inert):
                    self._take_more(item.path)
        self._take_helpers()
        return self._result(differences)

    def _run(self) -> None:
        self.spread.run()
        self.past.run()

    def _is_python(self, path: str) -> bool:
        return path in self.base.summaries or path in self.head.summaries

    def _compare(self, path: str) -> _Difference:
        found = _difference(path, self.base.summaries.get(path), self.head.summaries.get(path))
        for tree, nodes in ((self.base, found.base), (self.head, found.head)):
            for node in nodes:
                key = node[1]
                item = tree.summaries[path].definitions[key] if isinstance(key, int) else None
                if item is not None and tree.has_unknown_effect(path, item):
                    found.doubts.append(
                        "module-level code is changed that names nothing of the tree"
                    )
        return found

    def _start(self, item: _Difference) -> None:
        for node in item.head:
            self.spread.start(node, self._label(self.head, node))
            self.spread.start_twins(node)
        for node in item.base:
            self.past.start(node, self._label(self.base, node))
        if item.path in self.head.test_files:
            self.spread.tests.setdefault(item.path, item.path)
        if item.path.endswith("conftest.py") and item.path in self.head.summaries and item.doubts:
            self.spread.take_subtree(item.path)

    def _label(self, tree: Index, node: _Node) -> str:
        path, key = node
        name = tree.summaries[path].definitions[key].name if isinstance(key, int) else key
        return f"{path}:{name}" if name else path

    def _start_dangling(self, item: _Difference) -> None:
        """A name that is gone breaks the import of every file that still asks for it."""
        path = item.path
        if path not in self.base.summaries or item.doubts:
            return
        if path not in self.head.summaries:
            for user in sorted(self.base.importers.get(path, ())):
                if user in self.head.summaries and self._still_imports(user, path):
                    self._take_importers(user, f"it imports {path}, which is gone")
            return
        for name in sorted(self._gone_names(item)):
            for module in self.head.names[path]:
                for use in self.head.uses.get((module, name), ()):
                    if f"{module}.{name}" not in self.head.modules:
                        self._take_broken(use, f"it imports {name} of {path}, which is gone")

    def _still_imports(self, user: str, gone: str) -> bool:
        names = set(self.base.names[gone])
        imports = self.head.summaries[user].imports
        asked = {self.head.module_of(user, entry) for entry in imports if not entry.is_typing_only}
        return bool(asked & names) and not names & self.head.modules.keys()

    def _gone_names(self, item: _Difference) -> set[str]:
        summary = self.head.summaries[item.path]
        if summary.has_dynamic_exports or any(entry.name == "*" for entry in summary.imports):
            return set()
        names: set[str] = set()
        for path, key in item.base:
            names.add(
                self.base.summaries[path].definitions[key].name if isinstance(key, int) else key
            )
        kept = {_local_name(entry) for entry in _module_imports(summary)}
        return {name for name in names - kept if name and "." not in name}

    def _take_broken(self, use: _Use, reason: str) -> None:
        if use.owner < 0:
            self._take_importers(use.path, reason)
        else:
            self.spread.start((use.path, use.owner), use.path)

    def _take_other_file(self, path: str) -> None:
        """A file that is no Python: follow who names it; if nobody does, it may concern all."""
        users = self._start_readers(path)
        # What stands at the top builds or configures; that a test names it narrows nothing.
        is_known = "/" in path and self._reached(self.head, users)
        if not matches(path, self.settings.inert) and not is_known:
            self._take_all(path, "it is not known what this file is for")

    def _start_readers(self, path: str) -> list[_Node]:
        """Code that names a file by its path or name may read it, or run it."""
        users: list[_Node] = []
        for name in sorted({path, path.rpartition("/")[2]}):
            users += self.head.strings.get(name, ())
        for node in users:
            self.spread.start(node, path)
        return users

    # Steps of widening, from narrow to wide.

    def _widen(self, item: _Difference) -> None:
        path = item.path
        for reason in item.doubts:
            self._take_importers(path, reason)
        if path.endswith("__init__.py") and path in self.base.summaries:
            self._take_package_users(path)
        if not item.doubts and not self._reaches_test(item):
            self.unreached.append(path)

    def _take_package_users(self, path: str) -> None:
        """Importing any module of a package runs its `__init__` first."""
        tree = self.head if path in self.head.summaries else self.base
        tests = tree.tests_that_import(tree.names[path])
        self._add(tests, path)
        self.widened.append(Widening(path, "package", "the package's __init__ is changed"))

    def _reaches_test(self, item: _Difference) -> bool:
        return self._reached(self.head, item.head) or self._reached(self.base, item.base)

    def _reached(self, tree: Index, nodes: Sequence[_Node]) -> bool:
        trial = _Spread(tree, barred=self.dead[tree])
        for node in nodes:
            trial.start(node, "")
        trial.run(is_enough_one=True)
        if not trial.tests:
            self.dead[tree] |= trial.cause.keys()
        return bool(trial.tests)

    def _take_unreadable(self, changed: Collection[str]) -> None:
        """A file that cannot be parsed may use anything, also when the change leaves it alone."""
        for path, summary in self.head.summaries.items():
            if summary.fault is not None and path not in changed:
                self._take_importers(path, f"cannot be parsed: {summary.fault.message}")

    def _take_more(self, path: str) -> None:
        """No test is reached by definition: try the whole file, its importers, everything."""
        tree = self.head if path in self.head.summaries else self.base
        whole = _Spread(tree)
        for index in range(len(tree.summaries[path].definitions)):
            whole.start((path, index), path)
        whole.run()
        if whole.tests:
            self._add(whole.tests, path)
            reason = "no test reaches what changed, some reach the rest of the file"
            self.widened.append(Widening(path, "file", reason))
        elif self._take_importers(path, "no test reaches any definition of this file"):
            return
        else:
            self._take_all(path, "no test is known to use this file")

    def _take_importers(self, path: str, reason: str) -> bool:
        tree = self.head if path in self.head.summaries else self.base
        tests = tree.import_closure([path]) & tree.test_files
        self.widened.append(Widening(path, "imports", reason))
        self._add(tests, path)
        return bool(tests)

    def _take_all(self, path: str, reason: str) -> None:
        self.widened.append(Widening(path, "all", reason))
        self._add(self.head.test_files, path)

    def _add(self, tests: Iterable[str], because: str) -> None:
        for test in sorted(tests):
            if test not in self.past.tests:
                self.spread.tests.setdefault(test, because)

    def _take_helpers(self) -> None:
        """A test file without tests is affected when most of the files that it serves are."""
        selected = (self.spread.tests.keys() | self.past.tests.keys()) & self.head.test_files
        for helper, served in self.head.helpers.items():
            if helper not in selected and 2 * len(served & selected) > len(served):
                self.spread.tests[helper] = min(served & selected)

    # The result.

    def _result(self, differences: Sequence[_Difference]) -> Impact:
        because = {**self.past.tests, **self.spread.tests}
        tests = [path for path in sorted(because) if path in self.head.test_files]
        affected = dict(self._affected())
        definitions = sorted(affected)
        exported = self._exported()
        return Impact(
            tests=tuple(tests),
            changed=tuple(sorted(set(self._changed(differences)))),
            definitions=tuple(definitions),
            entry_points=tuple(item for item in definitions if item[:2] in exported),
            kernels=tuple(item for item in definitions if self._is_kernel(affected[item])),
            widened=tuple(dict.fromkeys(self.widened)),
            unreached=tuple(self.unreached),
            because={path: because[path] for path in tests},
        )

    def _changed(self, differences: Sequence[_Difference]) -> Iterator[Affected]:
        for difference in differences:
            for tree, nodes in ((self.base, difference.base), (self.head, difference.head)):
                for path, key in nodes:
                    if isinstance(key, int):
                        item = tree.summaries[path].definitions[key]
                        yield Affected(path, item.name, item.kind, item.line)

    def _affected(self) -> Iterator[tuple[Affected, Definition]]:
        """Yield the affected definitions outside of test files."""
        for path, key in self.spread.cause:
            if isinstance(key, int) and path not in self.head.test_files:
                item = self.head.summaries[path].definitions[key]
                yield Affected(path, item.name, item.kind, item.line), item

    def _exported(self) -> set[tuple[str, str]]:
        """Return the affected definitions, by path and name, that packages export."""
        found: set[tuple[str, str]] = set()
        for path, key in self.spread.cause:
            if isinstance(key, int) or not matches(path, self.settings.entry_points):
                continue
            origin = self.head.origin(path, key)
            if origin is not None and key in (self.head.summaries[path].exports or ()):
                found.add(origin)
        return found

    def _is_kernel(self, item: Definition) -> bool:
        marks = {mark.name.rpartition(".")[2] for mark in item.decorators}
        return bool(marks.intersection(self.settings.kernels))
