"""The machines that a repository's workflows run on, as far as their text tells."""

# SPDX-License-Identifier: MIT

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice, product
from typing import Any, NamedTuple

from bot.document import parse
from bot.errors import UserError

__all__ = ["DEVICES", "Runner", "is_workflow", "runners"]

FOLDER = ".github/workflows/"
_EXPRESSION = re.compile(r"\$\{\{\s*(matrix|inputs)\.([\w-]+)\s*\}\}\Z")
_HOSTED = re.compile(r"(ubuntu|windows|macos)-[\w.-]+\Z")
_WORD = re.compile(r"[A-Za-z0-9]+")
# Words of labels that name an architecture although they hold letters and digits, like a model.
_ARCHITECTURES = frozenset({"aarch64", "amd64", "arm64", "x64", "x86"})
# Vendors' words, for what the policy calls a device; ROCm calls its devices `cuda` too.
DEVICES = {
    **dict.fromkeys(("nvidia", "cuda", "amd", "rocm"), "cuda"),
    **dict.fromkeys(("ascend", "npu"), "npu"),
    "cpu": "cpu",
}
_MOST_COMBINATIONS = 32
_MOST_SECONDS = 86_400


@dataclass(slots=True)
class Runner:
    """Labels that jobs ask for. `device` is empty where no word tells it.

    `machine` is the lane's word; `is_guess`: it was not the one model word among the labels. `seen`
    and `tested` are the workflows that name it, and those that run tests on it.
    """

    labels: tuple[str, ...]
    group: str = ""
    machine: str = ""
    device: str = ""
    is_guess: bool = False
    is_hosted: bool = False
    images: set[str] = field(default_factory=set)
    timeout_s: int = 0
    seen: set[str] = field(default_factory=set)
    tested: set[str] = field(default_factory=set)


class _Job(NamedTuple):
    """A job, with the values its workflow's inputs take when it runs, and the words around it."""

    workflow: str
    name: str
    spec: Mapping[str, Any]
    inputs: Mapping[str, tuple[Any, ...]]
    around: tuple[str, ...]


def is_workflow(path: str) -> bool:
    """Whether GitHub runs a file."""
    inner = path.removeprefix(FOLDER)
    return inner != path and "/" not in inner and inner.endswith((".yml", ".yaml"))


def runners(workflows: Mapping[str, bytes]) -> tuple[list[Runner], list[str]]:
    """The runners that workflows ask for, by path and text, and what could not be read."""
    known, notes = {}, []
    for path, text in sorted(workflows.items()):
        try:
            document = parse(text, path)
        except (UserError, RecursionError) as error:
            notes.append(f"skipped, no runner is taken from it: {str(error) or path}")
            continue
        if document.faults:
            notes.append(f"skipped, no runner is taken from it: {document.faults[0]}")
        elif isinstance(document.data, dict):
            known[path] = document.data
    found: dict[tuple[tuple[str, ...], str], Runner] = {}
    for job in _jobs(known):
        for labels, group in _wanted(job, notes):
            runner = found.setdefault((labels, group), Runner(labels, group))
            _take(runner, job)
    for runner in found.values():
        _name(runner)
    return [found[key] for key in sorted(found)], list(dict.fromkeys(notes))


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [] if value is None else [value]


def _jobs(workflows: Mapping[str, Mapping[str, Any]]) -> Iterator[_Job]:
    """Every job that may run; those of a called workflow once for each caller."""
    for path, workflow in workflows.items():
        for name, spec in _mapping(workflow.get("jobs")).items():
            if not isinstance(spec, dict) or spec.get("if") is False:
                continue
            job = _Job(path, name, spec, _defaults(workflow), (path.removeprefix(FOLDER), name))
            called = spec.get("uses")
            if not isinstance(called, str):
                # A workflow that others call runs with their inputs, below.
                if not _is_called(path, workflows) or not job.inputs:
                    yield job
                continue
            target = called.removeprefix("./")
            given = {key: _values(value, job) for key, value in _mapping(spec.get("with")).items()}
            inner = workflows.get(target, {})
            for inside, body in _mapping(inner.get("jobs")).items():
                if isinstance(body, dict) and body.get("if") is not False:
                    inputs = {**_defaults(inner), **given}
                    yield _Job(target, inside, body, inputs, (*job.around, inside))


def _is_called(path: str, workflows: Mapping[str, Mapping[str, Any]]) -> bool:
    return any(
        _mapping(spec).get("uses") == f"./{path}"
        for workflow in workflows.values()
        for spec in _mapping(workflow.get("jobs")).values()
    )


def _defaults(workflow: Mapping[str, Any]) -> dict[str, tuple[Any, ...]]:
    """What a workflow's inputs are when nobody gives them."""
    found: dict[str, tuple[Any, ...]] = {}
    for event in _mapping(workflow.get("on")).values():
        for name, spec in _mapping(_mapping(event).get("inputs")).items():
            if "default" in _mapping(spec):
                found[name] = (spec["default"],)
    return found


def _values(value: Any, job: _Job) -> tuple[Any, ...]:
    """All that a value may become; one that cannot be worked out stays as it is."""
    found = _EXPRESSION.match(value) if isinstance(value, str) else None
    if not found:
        return (value,)
    if found[1] == "inputs":
        return job.inputs.get(found[2], (value,))
    matrix = _mapping(_mapping(job.spec.get("strategy")).get("matrix"))
    rows = [row[found[2]] for row in _list(matrix.get("include")) if found[2] in _mapping(row)]
    return (*_list(matrix.get(found[2])), *rows) or (value,)


def _wanted(job: _Job, notes: list[str]) -> Iterator[tuple[tuple[str, ...], str]]:
    """Labels and runner group that a job asks for, in each of its forms."""
    for asked in _values(job.spec.get("runs-on"), job):
        group = _mapping(asked).get("group", "")
        items = _list(_mapping(asked).get("labels") if isinstance(asked, dict) else asked)
        choices = product(*(_values(item, job) for item in (group, *items)))
        for group_now, *chosen in islice(choices, _MOST_COMBINATIONS):
            # A list in a matrix is one set of labels.
            labels = [label for item in chosen for label in _list(item)]
            words = [str(word) for word in (*labels, group_now)]
            if any("${{" in word or not word.isprintable() for word in words):
                notes.append(
                    f"{job.workflow}: job {job.name!r}: runs-on is not known before it runs"
                )
            elif labels or group_now:
                yield tuple(words[:-1]), words[-1]


def _take(runner: Runner, job: _Job) -> None:
    """Add what one more job says of a runner."""
    spec = job.spec
    runner.seen.add(job.around[0])
    container = spec.get("container")
    image = container if isinstance(container, str) else _mapping(container).get("image")
    if isinstance(image, str) and "${{" not in image:
        runner.images.add(image)
    steps = [_mapping(step).get("run") for step in _list(spec.get("steps"))]
    if any("pytest" in step for step in steps if isinstance(step, str)):
        runner.tested.add(job.around[0])
        minutes = spec.get("timeout-minutes")
        if isinstance(minutes, int) and not isinstance(minutes, bool):
            runner.timeout_s = max(runner.timeout_s, min(_MOST_SECONDS, max(1, minutes * 60)))
    words = _words(*runner.labels, runner.group)
    nearby = _words(*job.around, str(image or ""))
    devices = [DEVICES[word] for word in (*words, *nearby) if word in DEVICES]
    runner.device = runner.device or (devices[0] if devices else "")


def _words(*texts: str) -> list[str]:
    return [word.lower() for text in texts for word in _WORD.findall(text)]


def _name(runner: Runner) -> None:
    """The machine's word: a model's name mixes letters and digits."""
    if runner.labels and all(map(_HOSTED.match, runner.labels)):
        runner.machine, runner.device, runner.is_hosted = "cpu", "cpu", True
        return
    words = dict.fromkeys(_words(*runner.labels, runner.group))
    models = [
        word
        for word in words
        if not word.isdigit() and not word.isalpha() and word not in _ARCHITECTURES
    ]
    runner.is_guess = len(models) != 1
    machine = "".join(models or words) or "unknown"
    # A lane's word begins with a letter, in the policy.
    runner.machine = machine if machine[0].isalpha() else f"m{machine}"
