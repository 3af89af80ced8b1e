"""What a tree shows of itself before it has a policy: packages, ops, entry points, backends, tests.

Everything is read as text. Folder words such as `ops` are conventions and stand below as constants;
no repository's own names do.
"""

# SPDX-License-Identifier: MIT

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

from bot.impact import Index
from bot.kernels import Sources, Target, dotted, is_kernel
from bot.policy import Python
from bot.source import Definition, Summary

__all__ = [
    "ASIDE", "BACKENDS", "DOCS", "INIT", "TESTS", "Backend", "EntryPoint", "Op", "Root", "Survey",
    "below", "short_name", "survey",
]  # fmt: skip

# Where repositories of this kind keep what: there is nothing else in the text that tells.
OPS, MODULES, BACKENDS = "ops", "modules", "backends"
SHARED = frozenset({"common", "utils", BACKENDS})
SOURCES = frozenset({"", "src", "python"})
TESTS = frozenset({"tests", "test", "testing"})
ASIDE = frozenset(
    {"benchmark", "benchmarks", "demo", "demos", "eval", "evals", "example", "examples"}
)
DOCS = frozenset({"doc", "docs", "image", "images", "assets", "figures"})
# pytest's own names of test files, and of the file with shared fixtures.
TEST_FILE = re.compile(r"(?:test_.*|.*_test)\.py")
# Names of what others are compared with, and of the halves that an autograd function calls itself.
REFERENCES = frozenset({"naive", "ref", "reference", "torch"})
HALVES = ("_fwd", "_bwd")
KERNELS = frozenset({"jit"})
INIT = "__init__.py"
# From this share on, a folder that so many of its neighbours import is shared code.
MANY = 1 / 3
MAX_HOPS = 8
# A test file that imports more ops than this is about the whole.
FEW = 3


class EntryPoint(NamedTuple):
    """An exported function. `reason` says why there is no signature."""

    name: str
    target: str
    path: str = ""
    line: int = 0
    signature: str = ""
    tensors: tuple[str, ...] = ()
    operation: str = ""
    alias_of: str = ""
    reason: str = ""


class Backend(NamedTuple):
    """Another implementation: where it lies, what its class says, which functions it replaces."""

    name: str
    path: str
    variable: str = ""
    priority: int | None = None
    functions: frozenset[str] = frozenset()


@dataclass(slots=True)
class Op:
    """A folder (or module) that exports functions."""

    name: str
    place: str
    entry_points: list[EntryPoint]
    references: list[str] = field(default_factory=list)
    backends: list[Backend] = field(default_factory=list)
    operations: dict[str, list[str]] = field(default_factory=dict)
    kernels: int = 0
    shared: list[str] = field(default_factory=list)
    tests: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def holds(self, path: str) -> bool:
        """Whether a path is the op's own."""
        return below(path, self.place)


@dataclass(slots=True)
class Root:
    """A package: its folder, and the places of ops and modules in it, empty where it has none.

    `members` are the folders and modules directly in each of the three. `shared` are those of
    `ops` that are no ops, `widely_used` those of the package that much of it imports.
    """

    path: str
    ops: str = ""
    modules: str = ""
    members: dict[str, list[str]] = field(default_factory=dict)
    shared: list[str] = field(default_factory=list)
    widely_used: frozenset[str] = frozenset()


@dataclass(slots=True)
class Survey:
    """The whole tree."""

    paths: list[str]
    roots: list[Root]
    ops: list[Op]
    backends: list[Backend]
    dispatchers: list[str]
    kernels: int
    references: list[str]
    test_globs: list[str]
    tests: list[str]
    stray_tests: list[str]
    notes: list[str]


def survey(
    paths: Iterable[str], summaries: Mapping[str, Summary], files: Mapping[str, bytes | None]
) -> Survey:
    """Read a tree.

    Args:
        paths: all its paths, Python or not.
        summaries: of its Python files.
        files: the texts of those.
    """
    return _Reader(sorted(paths), summaries, files).survey()


def below(path: str, place: str) -> bool:
    """Whether a path is a place or lies in it; everything lies in the empty one."""
    return path == place or not place or path.startswith(f"{place}/")


def _parts(path: str) -> list[str]:
    return path.split("/")


def _is_own(path: str) -> bool:
    """Neither a test nor something that stands beside the package."""
    return not (TESTS | ASIDE | DOCS).intersection(_parts(path)[:-1])


def test_globs(summaries: Mapping[str, Summary]) -> list[str]:
    """One glob for each place that holds files in which pytest would find tests."""
    globs = set()
    for path, summary in summaries.items():
        *folders, name = _parts(path)
        is_aside = ASIDE.intersection(folders) and not TESTS.intersection(folders)
        if (
            not is_aside
            and TEST_FILE.fullmatch(name)
            and any(item.name.startswith(("test", "Test")) for item in summary.definitions)
        ):
            end = next((i + 1 for i, part in enumerate(folders) if part in TESTS), 0)
            inner = [*(folders[:1] if end > 1 else []), "**"][: end - 1 if end > 1 else 0]
            place = [*inner, folders[end - 1], "**"] if end else [*folders[:1], "**"]
            stem = "test_*.py" if name.startswith("test_") else "*_test.py"
            globs.add("/" + "/".join([*(place if folders else []), stem]))
    return sorted(globs)


class _Reader:
    """One reading of a tree."""

    def __init__(
        self,
        paths: list[str],
        summaries: Mapping[str, Summary],
        files: Mapping[str, bytes | None],
    ) -> None:
        self.paths, self.summaries = paths, summaries
        self.files, self.sources = files, Sources(files)
        self.test_globs = test_globs(summaries)
        self.index = Index(summaries, Python(tests=self.test_globs or ["/tests/"]))
        self.notes = [
            f"{path}:{summary.fault.line}: cannot be read as Python: {summary.fault.message}"
            for path, summary in sorted(summaries.items())
            if summary.fault
        ]

    def survey(self) -> Survey:
        """All of it."""
        roots = self._roots()
        ops = [op for root in roots for op in self._ops(root)]
        _name_apart(ops)
        stray = self._assign_tests(ops)
        return Survey(
            paths=self.paths,
            roots=roots,
            ops=sorted(ops, key=lambda op: op.name),
            backends=self.backends,
            dispatchers=sorted(self.dispatchers),
            kernels=sum(self._kernels(path) for path in self.summaries),
            references=[p for p in self.summaries if _is_reference(short_name(p)) and _is_own(p)],
            test_globs=self.test_globs,
            tests=sorted(self.index.test_files),
            stray_tests=stray,
            notes=self.notes,
        )

    # Packages and the places in them.

    def _roots(self) -> list[Root]:
        folders = {path.rpartition("/")[0] for path in self.summaries if _is_own(path)}
        places = {
            "/".join(parts[: parts.index(OPS) + 1])
            for folder in folders
            if OPS in (parts := _parts(folder))
        }
        outer = {place.rpartition("/")[0] for place in places}
        roots = [Root(path) for path in sorted(outer or self._packages())]
        for root in roots:
            stem = f"{root.path}/" if root.path else ""
            root.ops = f"{stem}{OPS}" if f"{stem}{OPS}" in places else ""
            inside = any(below(folder, f"{stem}{MODULES}") for folder in folders)
            root.modules = f"{stem}{MODULES}" if inside else "" if root.ops else root.path
            places_of_root = filter(None, (root.path, root.ops, root.modules))
            root.members = {place: self._members(place) for place in places_of_root}
            root.shared = sorted(self._shared(root))
            root.widely_used = self._widely_used(root)
        return roots

    def _packages(self) -> list[str]:
        """Without a folder of ops: the packages at the top, or in a folder of sources."""
        found = [
            path.removesuffix(f"/{INIT}")
            for path in self.summaries
            if path.endswith(f"/{INIT}") and _is_own(path)
        ]
        return [place for place in found if place.rpartition("/")[0] in SOURCES]

    def _members(self, place: str) -> list[str]:
        """Folders with Python and modules that lie directly in a place."""
        found = set()
        for path in self.summaries:
            if path.startswith(f"{place}/") and _is_own(path):
                head, slash, _ = path[len(place) + 1 :].partition("/")
                if slash or head != INIT:
                    found.add(f"{place}/{head}")
        return sorted(found)

    def _shared(self, root: Root) -> Iterator[str]:
        """Members of a place of ops that are no ops: by their word, or because many import them."""
        members = root.members.get(root.ops, [])
        for member in members:
            others = [other for other in members if other != member]
            users = {path for file in self._own(member) for path in self.index.importers[file]}
            count = sum(any(below(path, other) for path in users) for other in others)
            if short_name(member) in SHARED or (len(others) >= FEW and count >= MANY * len(others)):
                yield member

    def _widely_used(self, root: Root) -> frozenset[str]:
        """Members of the package itself that much of the rest imports."""
        own = [path for path in self.summaries if root.path and below(path, root.path)]
        found = set()
        for member in root.members.get(root.path, []):
            inside = set(self._own(member))
            users = {p for file in inside for p in self.index.importers[file]} - inside
            if len(users.intersection(own)) >= MANY * len(own):
                found.add(member)
        return frozenset(found)

    def _own(self, place: str) -> list[str]:
        found = [path for path in self.summaries if below(path, place)]
        for path in found:
            self.index.importers.setdefault(path, set())
        return found

    # Ops and entry points.

    def _ops(self, root: Root) -> Iterator[Op]:
        for place in root.members.get(root.ops, []):
            if place not in root.shared and (op := self._op(place)):
                yield op
        for place in root.members.get(root.modules, []):
            # Anything may stand among modules: only what has kernels of its own is taken.
            is_clear = any(self._kernels(path) for path in self._own(place))
            if is_clear and short_name(place) not in SHARED and (op := self._op(place)):
                yield op

    def _op(self, place: str) -> Op | None:
        path = place if place.endswith(".py") else f"{place}/{INIT}"
        op = Op(short_name(place), place, [])
        points = {name: self._entry_point(name, at) for name, at in self._names(path, place, op)}
        found = [point for _, point in sorted(points.items()) if point]
        # What others are compared with promises nothing itself, unless it is all there is.
        op.entry_points = [point for point in found if not _is_reference(point.name)] or found
        if not found:
            return None
        own = self._own(place)
        op.kernels = sum(self._kernels(file) for file in own)
        op.references = sorted(self._references(own))
        op.backends = [item for item in self.backends if op.holds(item.path)]
        op.shared = sorted(self._imported(op))
        for name, operation in self._dispatched(own):
            op.operations.setdefault(operation, []).append(name)
        return op

    def _names(self, path: str, place: str, op: Op) -> list[tuple[str, str]]:
        """Public names of an op, each with the file to look it up in."""
        is_module = path == place
        listed = self.summaries[path].exports if path in self.summaries else ()
        found = list(self._exports(path, place)) if path in self.summaries else []
        if found and (listed or not is_module):
            return found
        op.notes.append("nothing says what is public here: taken is what other files import")
        outside = [file for file in self._own(place) if not _is_half(file)]
        return [
            (item.name, file)
            for file in outside
            for item in self.summaries[file].definitions
            if item.kind == "function" and self._is_used_outside(file, item.name, place)
        ]

    def _is_used_outside(self, path: str, name: str, place: str) -> bool:
        if name.startswith("_") or name.endswith(HALVES):
            return False
        uses = [use for module in self.index.names[path] for use in self._uses(module, name)]
        return any(not below(use, place) for use in uses)

    def _uses(self, module: str, name: str) -> list[str]:
        return [use.path for use in self.index.uses.get((module, name), ())]

    def _exports(self, path: str, place: str, hops: int = MAX_HOPS) -> Iterator[tuple[str, str]]:
        """Names that a file offers: `__all__`, or what is not hidden, also by star imports.

        What it imports from elsewhere than `place` is its own only where `__all__` says so.
        """
        summary = self.summaries[path]
        if summary.exports is not None:
            yield from ((name, path) for name in summary.exports)
            return
        for entry in summary.imports:
            module = self.index.module_of(path, entry)
            target = self.index.modules.get(module)
            if entry.is_typing_only or entry.owner >= 0 or not target or not below(target, place):
                continue
            if entry.name == "*" and hops:
                yield from self._exports(target, place, hops - 1)
            elif entry.name and not entry.alias.startswith("_"):
                yield entry.alias, path
        for item in summary.definitions:
            if item.kind in ("function", "variable") and not item.name.startswith("_"):
                yield item.name, path

    def _entry_point(self, name: str, path: str) -> EntryPoint | None:
        """The function behind an exported name; None where it is something else."""
        public = f"{self.index.names[path][-1]}:{name}"
        found = self._function(path, name)
        if isinstance(found, str):
            listed = name in (self.summaries[path].exports or ())
            return EntryPoint(name, public, reason=found) if found and listed else None
        home = f"{self.index.names[found.path][-1]}:{found.name}"
        return EntryPoint(
            name=name,
            # A caller's path, unless the rest of fla-bot would not find the function by it.
            target=public if _finds(self.sources, public, found) else home,
            path=found.path,
            line=found.node.lineno,
            signature=_signature(found.node.args, skip_first=found.is_forward),
            tensors=tuple(_tensors(found.node.args)),
            operation=self._operation(found.path, found.name),
            alias_of=home if found.name != name else "",
        )

    def _function(self, path: str, name: str) -> _Found | str:
        """The definition behind a name, or why there is none; an empty text: it is no function."""
        origin = self._origin(path, name)
        if origin is None:
            is_module = any(f"{own}.{name}" in self.index.modules for own in self.index.names[path])
            return "" if is_module else "it is not defined in this repository by that name"
        module = self.sources.module(origin[0])
        if module is None:
            return f"{origin[0]} cannot be read"
        targets = self.sources.find_all(module, origin[1])
        functions = [function for target in targets for function in _functions(target)]
        if len(functions) != len(targets):
            return ""
        if len({ast.dump(function.node.args) for function in functions}) > 1:
            return f"{origin[0]} defines it more than once, with other parameters"
        _, value = self.sources.constant(module, origin[1])
        is_plain = isinstance(value, _PLAIN)
        return functions[0] if functions else "" if is_plain else f"{origin[0]} computes it"

    def _origin(self, path: str, name: str, hops: int = MAX_HOPS) -> tuple[str, str] | None:
        """Where a name is defined, through star imports as well."""
        found = self.index.origin(path, name)
        if found or not hops:
            return found
        for entry in self.summaries[path].imports:
            target = self.index.modules.get(self.index.module_of(path, entry))
            if entry.name == "*" and target and target != path:
                found = self._origin(target, name, hops - 1)
                if found:
                    return found
        return None

    def _references(self, own: list[str]) -> Iterator[str]:
        """Functions of an op that its results may be compared with, by their names."""
        for path in own:
            module = self.index.names[path][-1]
            for item in self.summaries[path].definitions:
                is_public = item.kind == "function" and not item.name.startswith("_")
                if is_public and (_is_reference(item.name) or _is_reference(short_name(path))):
                    yield f"{module}:{item.name}"

    def _imported(self, op: Op) -> set[str]:
        """Places outside of the op, in the same package, whose code it imports directly."""
        top = _parts(op.place)[0]
        return {
            module
            for path in self._own(op.place)
            for entry in self.summaries[path].imports
            if (module := self.index.module_of(path, entry)) in self.index.modules
            and not op.holds(self.index.modules[module])
            and below(self.index.modules[module], top)
        }

    # Kernels, dispatch and backends.

    def _kernels(self, path: str) -> int:
        return sum(_is_kernel(item) for item in self.summaries[path].definitions)

    @cached_property
    def dispatchers(self) -> set[str]:
        """Decorators with a text as argument whose definition lies among backends."""
        found = set()
        for path, summary in self.summaries.items():
            for item in summary.definitions:
                for mark in item.decorators:
                    head, _, rest = mark.name.partition(".")
                    if rest or not mark.arguments or not isinstance(mark.arguments[0], str):
                        continue
                    origin = self._origin(path, head)
                    if origin and BACKENDS in _parts(origin[0].removesuffix(".py")):
                        found.add(origin[1])
        return found

    def _operation(self, path: str, name: str) -> str:
        named = (op for function, op in self._dispatched([path]) if function == name)
        return next(named, "")

    def _dispatched(self, own: list[str]) -> Iterator[tuple[str, str]]:
        """Functions that a dispatcher may replace, and the operation's name."""
        for path in own:
            for item in self.summaries[path].definitions:
                for mark in item.decorators:
                    is_named = mark.arguments and isinstance(mark.arguments[0], str)
                    if mark.name.rpartition(".")[2] in self.dispatchers and is_named:
                        yield item.name, str(mark.arguments[0])

    @cached_property
    def backends(self) -> list[Backend]:
        """Folders and modules in a folder of backends, with what their registered class says."""
        places: dict[str, list[str]] = {}
        for path in self.summaries:
            parts = _parts(path)
            if BACKENDS in parts[:-2] or (BACKENDS in parts[:-1] and parts[-1] != INIT):
                end = parts.index(BACKENDS) + 2
                if _is_own(path) and not parts[end - 1].startswith("_"):
                    places.setdefault("/".join(parts[:end]), []).append(path)
        registered = self._registered()
        # The folder that defines the dispatcher holds no backends, but a registry of them.
        hosts = {origin.rpartition("/")[0] for origin in self._dispatcher_files()}
        return [
            registered.get(place) or Backend(short_name(place), place)
            for place in sorted(places)
            if place.rpartition("/")[0] not in hosts or place in registered
        ]

    def _dispatcher_files(self) -> set[str]:
        return {
            path
            for path, summary in self.summaries.items()
            if BACKENDS in _parts(path)
            and any(
                item.name in self.dispatchers and item.kind == "function"
                for item in summary.definitions
            )
        }

    def _registered(self) -> dict[str, Backend]:
        """Backends by place, from `registry.register(Class())`."""
        found = {}
        for path in sorted(self.summaries):
            if BACKENDS not in _parts(path) or b"register(" not in (self.files.get(path) or b""):
                continue  # most files among backends are kernels: not worth a parse
            module = self.sources.module(path)
            if module:
                for name in _registrations(module.tree):
                    backend = self._backend(path, name)
                    if backend:
                        found[backend.path] = backend
        return found

    def _backend(self, path: str, name: str) -> Backend | None:
        origin = self._origin(path, name)
        module = self.sources.module(origin[0]) if origin else None
        found = self.sources.find(module, name) if module else None
        parts = _parts(found.module.path) if found else []
        if not found or not isinstance(found.node, ast.ClassDef) or BACKENDS not in parts[:-1]:
            return None
        end = parts.index(BACKENDS) + 2
        if parts[end - 1] == INIT:
            return None
        values = dict(_class_values(found.node))
        priority = values.get("priority")
        return Backend(
            name=short_name(parts[end - 1]),
            path="/".join(parts[:end]),
            variable=next((v for k, v in values.items() if "env" in k and isinstance(v, str)), ""),
            priority=priority if type(priority) is int else None,
            functions=frozenset(n.name for n in found.node.body if isinstance(n, ast.FunctionDef)),
        )

    # Tests.

    def _assign_tests(self, ops: list[Op]) -> list[str]:
        """Give each test file to the ops that it seems to be about; return the others."""
        stray = []
        for path in sorted(self.index.test_files):
            used = self._uses_of(path)
            reached = [op for op in ops if any(op.holds(file) for file in used)]
            stem = path.removesuffix(".py")
            named = [
                op for op in reached if re.search(rf"(?:\b|_){re.escape(op.name)}(?:\b|_)", stem)
            ]
            best = max((len(op.name) for op in named), default=0)
            chosen = [op for op in named if len(op.name) == best] or reached
            if not chosen or len(chosen) > FEW:
                stray.append(path)
                continue
            for op in chosen:
                op.tests.append(path)
        return stray

    def _uses_of(self, path: str) -> set[str]:
        """The files that define what a file imports."""
        found = set()
        for entry in self.summaries[path].imports:
            module = self.index.module_of(path, entry)
            target = self.index.modules.get(module)
            inner = self.index.modules.get(f"{module}.{entry.name}")
            origin = self._origin(target, entry.name) if target and entry.name else None
            found |= {place for place in (inner, origin[0] if origin else None, target) if place}
        return found


class _Found(NamedTuple):
    """A function; `is_forward`: of an autograd function, whose first parameter is the context."""

    path: str
    name: str
    node: ast.FunctionDef
    is_forward: bool = False


# Values of exported names that are surely no functions.
_PLAIN = ast.Constant | ast.Dict | ast.List | ast.Tuple | ast.Set | ast.JoinedStr | ast.BinOp


def _functions(target: Target) -> Iterator[_Found]:
    """What a target stands for, if it is a function; `Function.apply` takes what `forward` does."""
    node, path = target.node, target.module.path
    if isinstance(node, ast.FunctionDef) and not is_kernel(node) and not target.attribute:
        yield _Found(path, node.name, node)
    elif isinstance(node, ast.ClassDef) and target.attribute == "apply":
        for item in node.body:
            if isinstance(item, ast.FunctionDef) and item.name == "forward":
                yield _Found(path, node.name, item, is_forward=True)


def short_name(path: str) -> str:
    """The last part of a path, without `.py`."""
    return path.rpartition("/")[2].removesuffix(".py")


def _is_half(path: str) -> bool:
    """Tests, backends and references of an op are no entry points of it."""
    return _is_reference(short_name(path)) or BACKENDS in _parts(path)


def _is_reference(name: str) -> bool:
    return bool(REFERENCES.intersection(name.split("_")))


def _is_kernel(item: Definition) -> bool:
    return any(mark.name.rpartition(".")[2] in KERNELS for mark in item.decorators)


def _finds(sources: Sources, target: str, wanted: _Found) -> bool:
    """Whether the rest of fla-bot finds a function behind a target."""
    name, _, function = target.partition(":")
    stem = name.replace(".", "/")
    module = sources.module(f"{stem}/{INIT}") or sources.module(f"{stem}.py")
    return bool(
        module
        and any(
            found.node is wanted.node
            for target in sources.find_all(module, function)
            for found in _functions(target)
        )
    )


def _name_apart(ops: list[Op]) -> None:
    """Two places may hold ops of one name; the later ones get their folder's name in front."""
    seen: set[str] = set()
    for op in ops:
        for part in reversed(_parts(op.place)[:-1]):
            if op.name in seen:
                op.name = f"{part}_{op.name}"
        seen.add(op.name)


def _signature(spec: ast.arguments, *, skip_first: bool) -> str:
    """A parameter list without annotations, as `fla-bot check` compares it."""
    copy = ast.parse(f"def f({ast.unparse(spec)}): ...").body[0]
    assert isinstance(copy, ast.FunctionDef)
    if skip_first and (copy.args.posonlyargs or copy.args.args):
        (copy.args.posonlyargs or copy.args.args).pop(0)
    stars = [star for star in (copy.args.vararg, copy.args.kwarg) if star]
    for arg in (*copy.args.posonlyargs, *copy.args.args, *copy.args.kwonlyargs, *stars):
        arg.annotation = None
    return ast.unparse(copy.args)


def _tensors(spec: ast.arguments) -> Iterator[str]:
    for arg in (*spec.posonlyargs, *spec.args, *spec.kwonlyargs):
        if arg.annotation and "Tensor" in ast.unparse(arg.annotation):
            yield arg.arg


def _registrations(tree: ast.Module) -> Iterator[str]:
    """Names of the classes that calls of `register` are given, or an object of them."""
    for call in ast.walk(tree):
        if isinstance(call, ast.Call) and dotted(call.func).rpartition(".")[2] == "register":
            for value in call.args:
                name = dotted(value.func) if isinstance(value, ast.Call) else dotted(value)
                if name and "." not in name:
                    yield name


Value = str | int | float | bool | None


def _class_values(node: ast.ClassDef) -> Iterator[tuple[str, Value]]:
    for item in node.body:
        targets = item.targets if isinstance(item, ast.Assign) else []
        if isinstance(item, ast.AnnAssign):
            targets = [item.target]
        value = item.value if isinstance(item, ast.Assign | ast.AnnAssign) else None
        if isinstance(value, ast.Constant) and not isinstance(value.value, bytes | complex):
            for target in targets:
                if isinstance(target, ast.Name) and value.value is not ...:
                    yield target.id, value.value
