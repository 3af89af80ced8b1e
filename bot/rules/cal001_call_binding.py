"""What: a call, `Function.apply` or `kernel[grid](...)` that does not fit its callee's signature.

Why: a renamed or added parameter that one caller missed fails only when that path runs, and many
paths of a kernel repository run on hardware that the author does not have. 22 of 222 mined bugs.
The broken caller usually stands in a file that the change does not touch: callers of every
signature that the change edits are looked at, too.

Bad:
    def scale(x, factor): ...
    scale(x, factr=2)

Good:
    scale(x, factor=2)

Limits: sees callees that are found without running anything: functions, constructors and static
methods of the tree, through imports (also inside functions), re-exports and plain aliases. Where a
name has several meanings, the call must fit none of them. Not seen: `self.f(...)`, callables in
variables and dictionaries, `functools.partial`, star imports. `*args` and `**kwargs` at the call
hide missing arguments. Decorators: jit, heuristics, autotune, well-known ones that keep the
signature, and decorators of the tree that pass `*args, **kwargs` on; others hide the function.

Source: shared rule catalogue, row call-binding.
"""

# SPDX-License-Identifier: MIT

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from bot.kernels import (
    Binding,
    Call,
    Imported,
    Module,
    Sources,
    Target,
    calls,
    dotted,
    is_kernel,
    last_part,
    launched,
    provided_names,
)
from bot.rules import Context, Hit, Tree, touched
from bot.source import Summary

# Triton takes these at every launch, whatever the kernel's own parameters are.
_LAUNCH_OPTIONS = frozenset(
    {"num_warps", "num_stages", "num_ctas", "maxnreg", "warmup", "launch_pdl", "grid", "debug"}
    | {"waves_per_eu", "matrix_instr_nonkdim", "kpack", "launch_cooperative_grid", "stream"}
)
# These keep the signature of what they decorate.
_TRANSPARENT = frozenset(
    {"torch.compile", "torch.compiler.disable", "torch.no_grad", "torch.inference_mode"}
    | {"torch.enable_grad", "torch.jit.ignore", "torch.autograd.function.once_differentiable"}
    | {"functools.cache", "functools.lru_cache"}
)
_CHANGES_MAPPING = frozenset({"pop", "update", "setdefault", "popitem", "clear"})


@dataclass(frozen=True, slots=True)
class _Callee:
    """A signature to bind to.

    `skipped`: leading parameters that the caller does not give. `provided`: what decorators fill
    in. `renamed`: old keyword names that a decorator translates. `is_open`: it may fill in more.
    """

    name: str
    arguments: ast.arguments
    skipped: int = 0
    provided: frozenset[str] = frozenset()
    renamed: frozenset[str] = frozenset()
    is_open: bool = False
    is_launch: bool = False


def check(sources: Sources, paths: Sequence[str]) -> Iterator[Hit]:
    """Every call in the given files."""
    for path in paths:
        module = sources.module(path)
        if module is not None:
            for call in calls(module):
                yield from _hit(sources, module, call)


def suspects(context: Context) -> Iterator[Hit]:
    """Calls in definitions that the change edits, and calls of what it gives another signature."""
    sources = context.head.sources
    if context.everything:
        yield from check(sources, touched(context))
        return
    narrowed = _narrowed(context)
    for path in sorted({*touched(context), *_importers(context.head, narrowed)}):
        edited = _edited_lines(context, path)
        names = _local_names(context.head.summaries[path], narrowed)
        lines = edited | _lines_with(context.head.summaries[path], names)
        module = sources.module(path) if lines else None
        for call in calls(module, lines) if module else ():
            if call.node.lineno in edited or not names.isdisjoint(call.name.split(".")):
                yield from _hit(sources, module, call)


def _hit(sources: Sources, module: Module | None, call: Call) -> Iterator[Hit]:
    problem = _call_problem(sources, module, call) if module else None
    if module and problem:
        node = call.node
        yield Hit(module.path, node.lineno, node.end_lineno or node.lineno, problem)


def _edited_lines(context: Context, path: str) -> set[int]:
    """The lines of the definitions that the change edits or brings, or that use edited imports."""
    summary = context.head.summaries[path]
    old_path = next((f.old_path for f in context.change.files if f.path == path), None)
    if old_path is None:
        return set()
    old = context.base.summaries.get(old_path, Summary())
    known = {(item.name, item.digest) for item in old.definitions}
    imported = {entry.alias.partition(".")[0] for entry in {*summary.imports} - {*old.imports}}
    return {
        line
        for item in summary.definitions
        if (item.name, item.digest) not in known
        for line in range(item.line, item.end_line + 1)
    } | _lines_with(summary, imported)


def _local_names(summary: Summary, names: set[str]) -> set[str]:
    """The names, and what imports call them here."""
    return names | {entry.alias for entry in summary.imports if entry.name in names}


def _lines_with(summary: Summary, names: set[str]) -> set[int]:
    """The lines of the definitions that use one of the names."""
    users = (
        {
            index
            for used, indices in summary.references.items()
            if not names.isdisjoint(used.split("."))
            for index in indices
        }
        if names
        else set()
    )
    found = (summary.definitions[index] for index in users)
    return {line for item in found for line in range(item.line, item.end_line + 1)}


@dataclass(frozen=True, slots=True)
class _Signature:
    """How calls of a name, or of its methods, bind.

    `context`: what else decides. `leads_here`: some definition of the tree may be meant.
    """

    context: str
    forms: dict[str, ast.arguments]
    leads_here: bool

    def allows(self, later: _Signature) -> bool:
        """Whether every call that binds to this one binds to a later one, too."""
        return self.context == later.context and all(
            name in later.forms and _is_wider(spec, later.forms[name])
            for name, spec in self.forms.items()
        )


def _is_wider(old: ast.arguments, new: ast.arguments) -> bool:
    before = [item.arg for item in (*old.posonlyargs, *old.args)]
    after = [item.arg for item in (*new.posonlyargs, *new.args)]
    names = {item.arg for item in (*new.args, *new.kwonlyargs)}
    needed = {*_required(new, after)} - {*_required(old, before)}
    gone = {item.arg for item in (*old.args, *old.kwonlyargs)} - names
    stars = (old.vararg and not new.vararg) or (old.kwarg and not new.kwarg)
    return after[: len(before)] == before and not (needed or gone or stars)


def _narrowed(context: Context) -> set[str]:
    """Names of changed files that do not take every call that they took before.

    A name that is new or gone is of no interest: nobody could use it before, or can now. Files are
    matched by the name under which they are imported: `utils.py` may become `utils/__init__.py`.
    """
    before: dict[str, _Signature] = {}
    after: dict[str, _Signature] = {}
    for file in context.change.files:
        old, new = (
            tree.summaries.get(path)
            for tree, path in ((context.base, file.old_path), (context.head, file.path))
        )
        if _code(old) != _code(new):
            before |= _signatures(context.base.sources, file.old_path)
            after |= _signatures(context.head.sources, file.path)
    return {
        name.rpartition(".")[2]
        for name in before.keys() & after.keys()
        if before[name].leads_here
        and after[name].leads_here
        and not before[name].allows(after[name])
    }


def _code(summary: Summary | None) -> object:
    if summary is None:
        return None
    return [(item.name, item.digest) for item in summary.definitions], summary.imports


def _signatures(sources: Sources, path: str) -> dict[str, _Signature]:
    module = sources.module(path)
    if module is None:
        return {}
    return {
        f"{module.name}.{name}": _signature(sources, module, bindings)
        for name, bindings in module.bindings.items()
    }


def _signature(sources: Sources, module: Module, bindings: Sequence[Binding]) -> _Signature:
    context: list[str] = []
    forms: dict[str, ast.arguments] = {}
    for count, binding in enumerate(bindings):
        if isinstance(binding, ast.ClassDef):
            context += [ast.dump(item) for item in (*binding.decorator_list, *binding.bases)]
            methods = [item for item in binding.body if isinstance(item, ast.FunctionDef)]
            called = [item for item in methods if item.decorator_list or item.name == "__init__"]
            forms |= {f"{count} {item.name}": item.args for item in called}
        elif isinstance(binding, ast.FunctionDef):
            forms[str(count)] = binding.args
            context += _decorators(sources, Target(module, binding))
        elif isinstance(binding, ast.Name | ast.Attribute | ast.IfExp):
            context.append(ast.dump(binding))
        else:
            context.append(binding.meaning if isinstance(binding, Imported) else "a value")
    # `exp = libdevice.fast_expf` in one branch: calls of it cannot be judged at all.
    values = [item for item in bindings if isinstance(item, ast.expr)]
    leads_here = all(sources.find_all(module, dotted(item)) for item in values)
    return _Signature("\n".join(context), forms, leads_here)


def _decorators(sources: Sources, target: Target) -> list[str]:
    """What decorators do to a signature: those that keep it count not."""
    items = target.node.decorator_list
    if is_kernel(target.node):
        provided = provided_names(sources, target)
        return [str(provided.is_complete), *sorted(provided.names)]
    kept = {name.rpartition(".")[2] for name in _TRANSPARENT}
    return [ast.dump(item) for item in items if last_part(item) not in kept]


def _importers(tree: Tree, names: set[str]) -> set[str]:
    """Files that get hold of one of the names: by importing it or as an attribute of a module."""
    if not names:
        return set()
    return {
        path
        for path, summary in tree.summaries.items()
        if any(entry.name in names for entry in summary.imports)
        or any("." in used and used.rpartition(".")[2] in names for used in summary.references)
    }


def _call_problem(sources: Sources, module: Module, call: Call) -> str | None:
    """What is wrong with a call; where its callee has several meanings, with the first of them."""
    if not call.name:
        return None
    targets = sources.find_all(module, call.name, call.scope)
    problems = []
    for target in targets:
        callee = _callee(sources, target, call)
        problem = _problem(callee, call.node) if callee else None
        if problem is None:
            return None
        problems.append(problem)
    return problems[0] if problems else None


def _callee(sources: Sources, target: Target, call: Call) -> _Callee | None:
    node = target.node
    if isinstance(node, ast.ClassDef):
        return None if launched(call.node) else _member(target, call.name)
    if isinstance(node, ast.AsyncFunctionDef):
        return None
    kinds = [last_part(item) for item in node.decorator_list]
    if "jit" in kinds:
        if not all(kind == "jit" or kind.endswith(("heuristics", "autotune")) for kind in kinds):
            return None
        names, complete = provided_names(sources, target) if launched(call.node) else (set(), True)
        return _Callee(
            call.name,
            node.args,
            provided=frozenset(names),
            is_open=not complete,
            is_launch=launched(call.node),
        )
    return None if launched(call.node) else _function(sources, target, call.name)


def _function(sources: Sources, target: Target, name: str) -> _Callee | None:
    """A plain function, unless one of its decorators hides its signature."""
    renamed: set[str] = set()
    for decorator in target.node.decorator_list:
        words = _translated(sources, target.module, decorator)
        if words is None:
            return None
        renamed |= words
    assert isinstance(target.node, ast.FunctionDef)
    return _Callee(name, target.node.args, renamed=frozenset(renamed), is_open=bool(renamed))


def _translated(sources: Sources, module: Module, decorator: ast.expr) -> set[str] | None:
    """Keywords that a decorator takes besides the function's own; None if all is possible."""
    func = decorator.func if isinstance(decorator, ast.Call) else decorator
    name = ast.unparse(func)
    if sources.meaning(module, name) in _TRANSPARENT:
        return set()
    found = sources.find(module, name)
    if found is None or not isinstance(found.node, ast.FunctionDef):
        return None
    wrapper = next((w for w in ast.walk(found.node) if _passes_on(w)), None)
    if wrapper is None:
        return None
    if not _edits_keywords(wrapper):
        return set()
    values = (
        [*decorator.args, *(k.value for k in decorator.keywords)]
        if (isinstance(decorator, ast.Call))
        else []
    )
    return {str(value.value) for value in values if isinstance(value, ast.Constant)} or None


def _passes_on(node: ast.AST) -> bool:
    """`def wrapper(*args, **kwargs): ... return function(*args, **kwargs)`."""
    if not isinstance(node, ast.FunctionDef) or node.args.args or node.args.posonlyargs:
        return False
    if node.args.vararg is None or node.args.kwarg is None:
        return False
    return any(
        isinstance(call, ast.Call)
        and isinstance(call.func, ast.Name)
        and [type(item) for item in call.args] == [ast.Starred]
        and [item.arg for item in call.keywords] == [None]
        for call in ast.walk(node)
    )


def _edits_keywords(wrapper: ast.AST) -> bool:
    assert isinstance(wrapper, ast.FunctionDef)
    assert wrapper.args.kwarg is not None
    name = wrapper.args.kwarg.arg
    for node in ast.walk(wrapper):
        if isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Store):
            return True
        inside = isinstance(node, ast.Subscript) and not isinstance(node.ctx, ast.Load)
        changed = isinstance(node, ast.Attribute) and node.attr in _CHANGES_MAPPING
        if (inside or changed) and dotted(node.value) == name:  # type: ignore[attr-defined]
            return True
    return False


def _member(target: Target, name: str) -> _Callee | None:
    """A constructor, an autograd function's `apply`, or a static or class method."""
    assert isinstance(target.node, ast.ClassDef)
    methods = {item.name: item for item in target.node.body if isinstance(item, ast.FunctionDef)}
    if target.attribute == "apply" and "apply" not in methods:
        if not any(last_part(base) == "Function" for base in target.node.bases):
            return None
        forward = methods.get("forward")
        # Without a setup_context method, forward's first parameter is ctx, which apply supplies.
        skipped = int("setup_context" not in methods)
        return _Callee(name, forward.args, skipped) if forward else None
    if not target.attribute:
        plain = not target.node.decorator_list and not target.node.keywords
        method = methods.get("__init__") if plain and "__new__" not in methods else None
        return _Callee(name, method.args, 1) if method and not method.decorator_list else None
    method = methods.get(target.attribute)
    kinds = [last_part(item) for item in method.decorator_list] if method else []
    if method is None or kinds not in (["staticmethod"], ["classmethod"]):
        return None
    return _Callee(name, method.args, int(kinds == ["classmethod"]))


def _problem(callee: _Callee, node: ast.Call) -> str | None:
    """Why the call does not bind, in words that name callee and argument."""
    spec = callee.arguments
    names = [argument.arg for argument in (*spec.posonlyargs, *spec.args)][callee.skipped :]
    starred = any(isinstance(item, ast.Starred) for item in node.args)
    if not starred and len(node.args) > len(names) and spec.vararg is None:
        most, got = len(names), len(node.args)
        return f"`{callee.name}` takes {most} positional arguments, the call gives {got}"
    taken = set(names[: 0 if starred else len(node.args)])
    keywords = [keyword.arg for keyword in node.keywords]
    for keyword in filter(None, keywords):
        fault = _keyword_fault(callee, keyword, taken)
        if fault:
            return fault
    if starred or None in keywords or callee.is_open:
        return None
    given = taken | set(filter(None, keywords)) | callee.provided
    missing = [name for name in _required(spec, names) if name not in given]
    if missing:
        return f"`{callee.name}` misses {', '.join(f'`{name}`' for name in missing)}"
    return None


def _keyword_fault(callee: _Callee, keyword: str, taken: set[str]) -> str | None:
    spec = callee.arguments
    by_name = {argument.arg for argument in (*spec.args, *spec.kwonlyargs)}
    if keyword in taken & by_name:
        return f"`{callee.name}` gets `{keyword}` twice"
    option = callee.is_launch and keyword in _LAUNCH_OPTIONS
    known = keyword in by_name or keyword in callee.renamed
    if not known and spec.kwarg is None and not option:
        return f"`{callee.name}` has no parameter `{keyword}`"
    return None


def _required(spec: ast.arguments, names: list[str]) -> list[str]:
    needed = names[: max(0, len(names) - len(spec.defaults))] if spec.defaults else names
    pairs = zip(spec.kwonlyargs, spec.kw_defaults, strict=True)
    return [*needed, *(argument.arg for argument, default in pairs if default is None)]
