"""`fla-bot init`: a starting policy, and a draft contract for each op, for a tree without them.

What the text of the tree does not tell stands in the files as unknown. Nothing here decides
anything: every area is without a required contract, no lane is required, contracts are drafts.
"""

# SPDX-License-Identifier: MIT

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

import yaml

from bot import contract as contract_file
from bot import policy as policy_file
from bot.cache import Cache, cache_folder
from bot.change import Repository
from bot.errors import UserError
from bot.files import write_whole
from bot.globs import matches
from bot.policy import Policy
from bot.runners import DEVICES, Runner, is_workflow, runners
from bot.survey import (
    ASIDE,
    BACKENDS,
    DOCS,
    INIT,
    TESTS,
    Backend,
    EntryPoint,
    Op,
    Root,
    Survey,
    below,
    short_name,
    survey,
)
from bot.text import printable
from bot.trees import Files, summaries
from bot.trusted import POLICY_PATH

__all__ = ["Adoption", "Written", "adopt", "write"]

FOLDER = POLICY_PATH.rpartition("/")[0]
WIDTH = 100
# Files of every repository, by the tools that read them.
CI = (
    *("/.github/", "/.gitlab-ci.yml", "/.circleci/", "/.buildkite/", "/.travis.yml", "/.ci/"),
    *("/azure-pipelines.yml", "/Jenkinsfile"),
)
BUILD = (
    *("/pyproject.toml", "/setup.py", "/setup.cfg", "/MANIFEST.in", "/requirements*", "/*.lock"),
    *("/constraints*", "/environment*.y*ml", "/Makefile", "/CMakeLists.txt", "/Dockerfile*"),
    *("/tox.ini", "/noxfile.py", "/pytest.ini", "/.pytest.ini", "/.coveragerc"),
)
PROSE = (
    *("*.md", "*.rst", "*.png", "*.jpg", "*.jpeg", "*.gif", "*.svg", "*.pdf", "*.bib"),
    *("/LICENSE*", "/LICENCE*", "/NOTICE*", "/AUTHORS*", "/CITATION*", "/CHANGELOG*"),
)
ALWAYS = frozenset({"/.github/", "/pyproject.toml", "*.md", "/LICENSE*"})
DEFAULT_TIMEOUT_S = 3600
_OPERATION = re.compile(r"[A-Za-z_][\w.]{0,119}", re.ASCII)
_IDENTIFIER = re.compile(r"[A-Za-z_]\w{0,39}", re.ASCII)
_TARGET = re.compile(r"[A-Za-z_][\w.]{0,119}:[A-Za-z_]\w{0,79}", re.ASCII)
_PLAIN = re.compile(r"[A-Za-z_][\w.-]*", re.ASCII)
_RESERVED = frozenset({"null", "true", "false"})


@dataclass(frozen=True, slots=True)
class Adoption:
    """Texts by path, and what a person should know of how they came about."""

    commit: str
    policy: Policy
    texts: dict[str, str]
    seen: Survey
    notes: list[str]


class Written(NamedTuple):
    """What happened to a file."""

    path: str
    outcome: Literal["written", "replaced", "unchanged", "kept"]


class _Area(NamedTuple):
    name: str
    globs: list[str]
    risk: str = "normal"
    comment: str = ""


def adopt(repository: Repository, ref: str = "HEAD", cache: Cache | None = None) -> Adoption:
    """Read a commit and compose the files; nothing is written."""
    commit = repository.commit(ref, "--at")
    store = cache or Cache(cache_folder() / "init.json")
    files = summaries(repository, commit, store)
    store.save()
    tree = repository.tree(commit)
    seen = survey(tree, files, Files(repository, commit))
    workflows = {
        path: repository.read_path(commit, path) or b"" for path in tree if is_workflow(path)
    }
    machines, notes = runners(workflows)
    areas = _areas(seen, b"\n".join(workflows.values()).decode(errors="replace"))
    text = "".join(f"{line}\n" for line in _policy_lines(seen, areas, machines, notes))
    policy = policy_file.load(text.encode(), POLICY_PATH)
    drafts, left_out = _drafts(seen)
    nowhere = [path for path in seen.paths if policy.place(path)[0] is None]
    return Adoption(
        commit=commit,
        policy=policy,
        texts={**drafts, POLICY_PATH: text},
        seen=seen,
        notes=[
            *notes,
            *seen.notes,
            *left_out,
            *(f"{path}: in no area" for path in nowhere),
        ],
    )


def write(root: Path, texts: Mapping[str, str], *, force: bool) -> list[Written]:
    """Write whole files or none of each; one that is there is kept, unless forced.

    Raises:
        UserError: the folder cannot be written to, or is a link.
    """
    done = []
    try:
        for path, text in texts.items():
            target = root / path
            target.parent.mkdir(exist_ok=True)
            if target.parent.is_symlink() or target.is_symlink():
                raise UserError(f"{path}: a link; what it leads to is not written to")
            done.append(Written(path, _write_one(target, text.encode(), force=force)))
    except OSError as error:
        raise UserError(f"{error.filename or root}: {error.strerror or error}") from error
    return done


def _write_one(
    target: Path, content: bytes, *, force: bool
) -> Literal["written", "replaced", "unchanged", "kept"]:
    before = target.read_bytes() if target.exists() else None
    if before is not None and (before == content or not force):
        return "unchanged" if before == content else "kept"
    write_whole(target, content)
    return "written" if before is None else "replaced"


# Areas: the first that matches wins, so that what is special comes first.


def _areas(seen: Survey, workflows: str) -> list[_Area]:
    folders = {path.partition("/")[0] for path in seen.paths if "/" in path}
    roots = {part for root in seen.roots for part in _source_roots(root)}
    special = roots | TESTS | ASIDE | DOCS | {FOLDER, *_hidden(seen)}
    rest = sorted(folders - special)
    packages = [top for top in rest if f"{top}/{INIT}" in seen.paths]
    others = [top for top in rest if top not in packages]
    run = [top for top in others if any(p in workflows for p in seen.paths if below(p, top))]
    areas = [
        _Area("contract", [f"/{FOLDER}/"], "high"),
        _Area("ci", [*_present(CI, seen), *_folders(run)], "high", _run_comment(run)),
        _Area("build", _present(BUILD, seen), "high"),
        _Area("tests", [*_folders(sorted(folders & TESTS)), *_inner_tests(seen), "conftest.py"]),
        _Area("docs", [*_present(PROSE, seen), *_folders(sorted(folders & DOCS))], "low"),
        _Area("benchmarks", _folders(sorted(folders & ASIDE)), "low"),
        *(area for root in seen.roots for area in _named_areas(root, seen)),
        *(_Area(_area_word(top), _folders([top])) for top in packages),
        _Area("sources", _folders(sorted(roots - {root.path for root in seen.roots}))),
        _Area("tools", _folders([top for top in others if top not in run])),
        # Dot files of the future too: what they belong to does not depend on their names.
        _Area("project", ["/.*"]),
    ]
    known = [glob for area in areas for glob in area.globs]
    alone = [path for path in seen.paths if "/" not in path and not matches(path, known)]
    areas.append(_Area("root-files", [*map(_glob, alone)], comment="unknown: what these are for."))
    return _named_apart(area for area in areas if area.globs)


def _hidden(seen: Survey) -> list[str]:
    return sorted({top for path in seen.paths if (top := path.partition("/")[0])[0] == "."})


def _named_areas(root: Root, seen: Survey) -> Iterator[_Area]:
    """With several packages, the package's name stands in front."""
    prefix = f"{_area_word(short_name(root.path) or 'top')}-" if len(seen.roots) > 1 else ""
    for area in _package_areas(root, seen):
        yield area._replace(name=f"{prefix}{area.name}")


def _named_apart(areas: Iterable[_Area]) -> list[_Area]:
    found: list[_Area] = []
    for area in areas:
        name, count = area.name, 1
        while any(name == other.name for other in found):
            count += 1
            name = f"{area.name}-{count}"
        found.append(area._replace(name=name, globs=list(dict.fromkeys(area.globs))))
    return found


def _run_comment(run: list[str]) -> str:
    return f"Workflows run files of {', '.join(run)}." if run else ""


def _inner_tests(seen: Survey) -> list[str]:
    """Tests that do not lie in a folder of tests at the top: their files, and their folders."""
    globs = [glob for glob in seen.test_globs if glob.split("/")[1] not in TESTS]
    words = {part for glob in globs for part in glob.split("/") if part in TESTS}
    return [*globs, *(f"**/{word}/" for word in sorted(words))]


def _present(globs: Iterable[str], seen: Survey) -> list[str]:
    return [
        glob
        for glob in globs
        if glob in ALWAYS or any(matches(path, [glob]) for path in seen.paths)
    ]


def _folders(places: Iterable[str]) -> list[str]:
    return [_glob(place, is_folder=True) for place in places]


def _glob(path: str, *, is_folder: bool = False) -> str:
    return f"/{_quoted(path)}{'/' if is_folder else ''}"


def _quoted(path: str) -> str:
    """A path as a glob: what means something to a glob, or is no text, stands for any character."""
    return "".join(c if c.isalnum() or c in "/._-+=@,~%" else "?" for c in path)


def _member_glob(place: str) -> str:
    return _glob(place, is_folder=not place.endswith(".py"))


def _package_areas(root: Root, seen: Survey) -> Iterator[_Area]:
    yield from _backend_areas(root, seen)
    ops = {op.place for op in seen.ops}
    if root.ops:
        rest = [p for p in root.members[root.ops] if p not in ops and short_name(p) != BACKENDS]
        common = [_glob(f"{root.ops}/{INIT}"), *map(_member_glob, rest)]
        yield _Area("ops-common", common, "high", "Shared by ops, or exports no function.")
        yield _Area("ops", list(_captures(root.ops, seen)))
    if root.modules:
        rest = [place for place in root.members[root.modules] if place not in ops]
        places = [f"{root.modules}/{INIT}", *rest]
        if root.modules != root.path:
            yield _Area("modules-common", [*map(_member_glob, places)])
            yield _Area("module", list(_captures(root.modules, seen)))
        elif any(below(op.place, root.path) for op in seen.ops):
            yield _Area("package-common", [*map(_member_glob, places)])
            yield _Area("module", list(_captures(root.path, seen)))
    if root.path and root.modules != root.path:
        inner = root.widely_used - {root.ops, root.modules}
        wide = [*map(_member_glob, sorted(inner)), _glob(f"{root.path}/{INIT}")]
        yield _Area("shared", wide, "high", "Much of the package imports these.")
        for place in root.members[root.path]:
            if place not in {root.ops, root.modules, *inner} and not place.endswith(".py"):
                yield _Area(_area_word(short_name(place)), [_member_glob(place)])
    if root.path:
        yield _Area("package", [_glob(root.path, is_folder=True)])


def _area_word(name: str) -> str:
    word = re.sub(r"[^a-z0-9_-]", "-", name.lower())
    return word if word[0].isalpha() else f"x{word}"


def _captures(place: str, seen: Survey) -> Iterator[str]:
    """`{op}` for a folder, and for a module where some op is one."""
    ops = [op.place for op in seen.ops if op.place.rpartition("/")[0] == place]
    are_modules = [op.endswith(".py") for op in ops]
    if not all(are_modules) or not ops:
        yield f"/{_quoted(place)}/{{op}}/"
    if any(are_modules):
        yield f"/{_quoted(place)}/{{op}}.py"


def _backend_areas(root: Root, seen: Survey) -> Iterator[_Area]:
    """Registries first: they decide for all backends, and are no backend's own."""
    hosts = sorted({backend.path.rpartition("/")[0] for backend in seen.backends})
    mine = {host: _host_glob(host, seen) for host in hosts if below(host, root.path)}
    registries = [f"{glob}/{INIT}" for glob in mine.values()]
    dispatchers = [p for p in root.shared if short_name(p) == BACKENDS and p not in mine]
    yield _Area("dispatch", [*map(_member_glob, dispatchers), *_special_first(registries)], "high")
    globs = []
    for host, glob in mine.items():
        files = [b.path.endswith(".py") for b in seen.backends if below(b.path, host)]
        globs += [f"{glob}/{{backend}}/"] if not all(files) else []
        globs += [f"{glob}/{{backend}}.py"] if any(files) else []
    yield _Area("backend", _special_first(globs), "high")


def _host_glob(host: str, seen: Survey) -> str:
    """The folder of backends; an op's may lie at any depth of it."""
    op = next((op for op in seen.ops if op.holds(host)), None)
    parent = op.place.rpartition("/")[0] if op else ""
    return f"/{_quoted(parent)}/{{op}}/**/{BACKENDS}" if parent else f"/{_quoted(host)}"


def _special_first(globs: Iterable[str]) -> list[str]:
    return sorted(dict.fromkeys(globs), key=lambda glob: ("{op}" in glob, glob))


# The policy's text.


def _source_roots(root: Root) -> list[str]:
    places = [root.path] if root.path else [place for place in (root.ops, root.modules) if place]
    return [place.partition("/")[0] for place in places]


def _policy_lines(
    seen: Survey, areas: list[_Area], machines: list[Runner], notes: list[str]
) -> Iterator[str]:
    yield from _comment("Written by `fla-bot init` from the text of the tree alone: a start.")
    yield from _comment(
        "`unknown` marks what the text does not tell; nothing here blocks a change."
    )
    yield from ("schema: fla-bot/policy@1", 'bot_version: ">=0.1"')
    roots = sorted({part for root in seen.roots for part in _source_roots(root)})
    if not roots:
        yield from _comment("unknown: no Python package was found; `src` is a placeholder.")
    for root in seen.roots:
        if "/" in root.path:
            yield from _comment(
                f"unknown: whether packages in {root.path} are imported from there."
            )
    yield f"source_roots: {_list(roots or ['src'])}"
    yield ""
    yield from _python_lines(seen, areas)
    yield ""
    text = "The first area with a matching glob owns a path; `{op}` and `{backend}` are captured."
    yield from _comment(f"{text} Say `contract: required` where each op must have one.")
    yield "areas:"
    for area in areas:
        yield from _area_lines(area)
    yield ""
    yield from _lane_lines(machines, notes)
    yield ""
    yield from _TAIL.splitlines()


_TAIL = """\
# Starting values: head's error may be this many times the merge base's, against the reference.
margins:
  rms: 1.5
  tile: 4.0
  row: 8.0
  tail: 4.0
  slope: 3.0
  slope_floor: 5.0e-4
  anchor: 1.9
  chunked: 0.01
  memory_bound: 0.02

# Largest sizes where a contract is silent.
bounds: {tokens: 1048576, H: 128, K: 256, V: 256, sequences: 1024}
caps: {packs: 256, minutes: 240}
approvals: {run: [admin, maintain, write], accept: [admin, maintain]}
# unknown: what titles and bodies of pull requests must hold (`pull_request`: title, sections).
"""


def _python_lines(seen: Survey, areas: list[_Area]) -> Iterator[str]:
    yield "python:"
    yield from _test_lines(seen)
    yield from _comment("Select no test, unless a test or something it uses names them.", "  ")
    yield from _items("inert", _inert(seen, areas), "  ")
    yield from _items("entry_points", list(dict.fromkeys(_surface(seen))), "  ")
    if not seen.dispatchers:
        yield from _comment("unknown: no decorator that comes from a folder of backends.", "  ")
    yield f"  dispatchers: {_list(seen.dispatchers or ['dispatch'])}"
    yield from _comment(f"{seen.kernels} functions of this tree have it.", "  ")
    yield "  kernels: [jit]"
    npu = {word for word, device in DEVICES.items() if device == "npu"}
    ascend = {backend.name for backend in seen.backends if npu & set(backend.name.split("_"))}
    if ascend:
        yield f"  ascend_backends: {_list(sorted(ascend))}"


def _test_lines(seen: Survey) -> Iterator[str]:
    if not seen.test_globs:
        yield from _comment("unknown: no file with tests was found.", "  ")
    elif seen.stray_tests:
        count = f"{len(seen.stray_tests)} of {len(seen.tests)}"
        text = f"{count} files with tests are about no single op: no draft names them."
        yield from _comment(text, "  ")
    yield from _items("tests", seen.test_globs or ["test_*.py"], "  ")
    text = (
        "unknown: what is right by definition (`references`), what else decides what tests accept"
    )
    yield from _comment(f"{text} (`harness`).", "  ")
    names = sorted({path.rpartition("/")[2] for path in seen.references})
    if names:
        yield from _comment(f"By name, references may be: {', '.join(names)}.", "  ")


def _inert(seen: Survey, areas: list[_Area]) -> list[str]:
    quiet = ("contract", "ci", "docs", "benchmarks", "tools")
    inert = [glob for area in areas if area.name in quiet for glob in area.globs]
    # Of dot files only those that are here, and none that pytest reads.
    hidden = [_glob(top, is_folder=top not in seen.paths) for top in _hidden(seen)]
    return inert + [glob for glob in hidden if glob not in (*BUILD, *inert)]


def _surface(seen: Survey) -> Iterator[str]:
    """Modules whose public names are for users."""
    yield from (f"{_glob(root.path)}/{INIT}" for root in seen.roots if root.path)
    for place in sorted({op.place.rpartition("/")[0] for op in seen.ops}):
        kinds = {op.place.endswith(".py") for op in seen.ops if below(op.place, place)}
        yield f"{_glob(place)}/{INIT}"
        if False in kinds:
            yield f"{_glob(place)}/*/{INIT}"
        if True in kinds:
            yield f"{_glob(place)}/*.py"


def _area_lines(area: _Area) -> Iterator[str]:
    if area.comment:
        yield from _comment(area.comment, "  ")
    row = f"  - {{area: {_text(area.name)}, globs: {_list(area.globs)}, risk: {area.risk}}}"
    if len(row) <= WIDTH:
        yield row
        return
    yield f"  - area: {_text(area.name)}"
    yield from _items("globs", area.globs, "    ")
    yield f"    risk: {area.risk}"


def _lane_lines(machines: list[Runner], notes: list[str]) -> Iterator[str]:
    yield from _comment(
        "Runners that workflows name. None is required: what fails here only shows."
    )
    yield "lanes:"
    for note in notes:
        yield from _comment(f"unknown: {note}", "  ")
    best: dict[str, Runner] = {}
    for runner in sorted(machines, key=lambda r: (-len(r.tested), -len(r.seen), r.labels)):
        name = ", ".join(runner.labels) or f"group {runner.group}"
        if not runner.device:
            reason = "unknown device: no word says cpu, cuda or npu"
        elif runner.machine in best:
            other = ", ".join(best[runner.machine].labels)
            reason = f"the lane `{runner.machine}` goes to {other}"
        else:
            best[runner.machine] = runner
            continue
        seen = ", ".join(sorted(runner.seen))
        yield from _comment(f"left out: runner {name} (in {seen}): {reason}.", "  ")
    if not best:
        yield from _comment("unknown: which machines run tests; no usable runner was found.", "  ")
        best["cpu"] = Runner((), machine="cpu", device="cpu")
    for machine in sorted(best):
        yield from _lane(best[machine])


def _lane(runner: Runner) -> Iterator[str]:
    yield f'  "tests:{runner.machine}":'
    if runner.seen:
        what = "Runs tests in" if runner.tested else "unknown: runs tests? No step does in"
        files = ", ".join(sorted(runner.tested or runner.seen))
        yield from _comment(f"{what} {files}.", "    ")
    if runner.is_guess and not runner.is_hosted and runner.seen:
        yield from _comment("unknown: the machine's word; the labels hold no single model.", "    ")
    if runner.group:
        yield from _comment(f"unknown: how to ask for the runner group {runner.group}.", "    ")
    yield f"    machine: {_text(runner.machine)}"
    yield f"    device: {runner.device}"
    yield "    required: false"
    yield f"    runs_on: {_list(runner.labels)}"
    if len(runner.images) == 1:
        yield f"    image: {_text(min(runner.images))}"
    elif runner.images:
        yield from _comment(f"unknown: which image of {', '.join(sorted(runner.images))}.", "    ")
    yield f"    timeout_s: {runner.timeout_s or DEFAULT_TIMEOUT_S}"


# Drafts of contracts.


def _drafts(seen: Survey) -> tuple[dict[str, str], list[str]]:
    """The texts by path, and what could not become one."""
    texts, notes = {}, []
    for op in seen.ops:
        path = f"{FOLDER}/{op.name}.yaml"
        points = [point for point in op.entry_points if _is_nameable(point)]
        for point in op.entry_points:
            if point not in points:
                notes.append(f"{op.place}: `{point.name}` is left out: the name is too long")
            elif point.reason:
                notes.append(f"{op.place}: `{point.name}` has no known signature: {point.reason}")
        if not points or not _IDENTIFIER.fullmatch(op.name) or path == POLICY_PATH:
            notes.append(f"{op.place}: no draft, for its name cannot be an op's")
            continue
        text = "".join(f"{line}\n" for line in _draft_lines(op, points, seen))
        try:
            contract_file.load(text.encode(), path)
        except UserError as error:
            notes.append(f"{op.place}: no draft, it would not be read: {error.faults[0]}")
            continue
        texts[path] = text
    return texts, notes


def _is_nameable(point: EntryPoint) -> bool:
    return bool(_IDENTIFIER.fullmatch(point.name) and _TARGET.fullmatch(point.target))


def _draft_lines(op: Op, points: list[EntryPoint], seen: Survey) -> Iterator[str]:
    yield from _comment(
        "Written by `fla-bot init` from the text of the tree alone: a draft, it never blocks."
    )
    yield from _comment(
        "`open` lists what nobody has stated; an enforced contract leaves nothing open."
    )
    yield "schema: fla-bot/contract@1"
    yield f"op: {_text(op.name)}"
    yield "status: draft"
    yield from _comment("unknown: who may accept a weaker contract, largest sizes (`bounds`).")
    yield "owners: []"
    yield from _items("sources", _source_globs(op, seen))
    if op.shared:
        yield from _comment(f"Not its own, but imported by these: {', '.join(op.shared)}.")
    if not op.tests:
        yield from _comment("unknown: no test file is about this op alone.")
    yield from _items("tests", [_glob(path) for path in op.tests])
    for note in op.notes:
        yield from _comment(f"unknown: {note}.")
    yield from _implementation_lines(op)
    yield ""
    yield "entry_points:"
    for point in points:
        yield from _point_lines(point, op)


def _implementation_lines(op: Op) -> Iterator[str]:
    if op.kernels:
        yield from _comment(f"Kernels in these files: {op.kernels}.")
    for operation, names in sorted(op.operations.items()):
        yield from _comment(f"Dispatched as {operation}: {', '.join(sorted(names))}.")
    if op.backends:
        yield from _comment(f"Backends: {', '.join(backend.name for backend in op.backends)}.")
    if op.references:
        yield from _comment(f"May be references, by name: {', '.join(op.references)}.")


def _source_globs(op: Op, seen: Survey) -> list[str]:
    """The op's code, by the endings it has; prose in its folder is no source."""
    if op.place.endswith(".py"):
        return [_glob(op.place)]
    names = [path.rpartition("/")[2] for path in seen.paths if op.holds(path)]
    endings = {name.rpartition(".")[2] for name in names if "." in name[1:]}
    code = [e for e in sorted(endings) if not matches(f"x.{e}", PROSE) and e.isalnum()]
    return [f"/{_quoted(op.place)}/**/*.{ending}" for ending in code]


def _point_lines(point: EntryPoint, op: Op) -> Iterator[str]:
    yield f"  {_text(point.name)}:"
    if point.alias_of:
        yield from _comment(f"Another name of {point.alias_of}.", "    ")
    if point.tensors:
        yield from _comment(f"Tensors, by annotation: {', '.join(point.tensors)}.", "    ")
    missing = ["reference", "args", "outputs", "axes", "lanes", "budgets"]
    yield f"    target: {_text(point.target)}"
    if point.reason:
        yield from _comment(f"unknown: the signature; {point.reason}.", "    ")
        missing.append("signature")
    else:
        yield "    compatibility:"
        yield f"      signature: {_text(point.signature)}"
        yield from _comment("unknown: torch and triton versions that must work.", "      ")
    if point.operation:
        yield from _dispatch_lines(point, op)
    yield f"    open: {_list(missing)}"


def _dispatch_lines(point: EntryPoint, op: Op) -> Iterator[str]:
    if not _OPERATION.fullmatch(point.operation):
        yield from _comment(f"unknown: how to state dispatch as `{point.operation}`.", "    ")
        return
    serving = [backend for backend in op.backends if _serves(backend, point)]
    yield "    dispatch:"
    yield f"      operation: {_text(point.operation)}"
    if serving:
        yield "      backends:"
    for backend in serving:
        facts = {"variable": _text(backend.variable)} if backend.variable else {}
        facts |= {} if backend.priority is None else {"priority": str(backend.priority)}
        row = ", ".join(f"{key}: {value}" for key, value in facts.items())
        yield f"        {_text(backend.name)}: {{{row}}}"
    yield from _comment("unknown: calls that each must accept and reject, their kernels.", "      ")


def _serves(backend: Backend, point: EntryPoint) -> bool:
    names = {point.name, point.alias_of.rpartition(":")[2]}
    return bool(names & backend.functions) and bool(_IDENTIFIER.fullmatch(backend.name))


# YAML, line by line: PyYAML writes no comments.


def _text(value: str) -> str:
    """A scalar; quoted unless it is a plain word."""
    if _PLAIN.fullmatch(value) and value.lower() not in _RESERVED:
        return value
    quoted: str = yaml.safe_dump(value, default_style='"', allow_unicode=True, width=2**31)
    return quoted.rstrip("\n")


def _list(values: Iterable[str]) -> str:
    return f"[{', '.join(map(_text, values))}]"


def _items(key: str, values: list[str], indent: str = "") -> Iterator[str]:
    """A list in one line if it fits, else an item a line."""
    row = f"{indent}{key}: {_list(values)}"
    if len(row) <= WIDTH:
        yield row
        return
    yield f"{indent}{key}:"
    yield from (f"{indent}  - {_text(value)}" for value in values)


def _comment(text: str, indent: str = "") -> list[str]:
    """Comment lines."""
    clean = printable(text.replace("\n", " "))
    width = WIDTH - len(indent) - 2
    lines = textwrap.wrap(clean, width, break_long_words=False, break_on_hyphens=False)
    return [f"{indent}# {line}" for line in lines]
