"""Drive pairs of workers through the cells of a job and print one line of JSON for each.

Reads the order from standard input. Secret seeds are drawn after the workers have imported, and
leave this process only in its output.
"""

# SPDX-License-Identifier: MIT

from __future__ import annotations

import json
import secrets
import socket
import sys
import threading
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch

from bot.anchors import Frozen
from bot.cells import call, public_seed
from bot.contract import Contract
from bot.device.arm import Arm
from bot.device.figures import compare
from bot.device.kernels import Kernels, Report, asking, read_report, undeclared, unprofiled
from bot.device.properties import Derivation, Rotation, applicable
from bot.device.say import environment, say
from bot.device.trial import ONCE, REPEATS, Results, Trial
from bot.evidence import (
    CellEvidence,
    Draw,
    KernelEvidence,
    OutputFigures,
    PropertyEvidence,
)
from bot.judge.limits import FURTHER, is_open, limits
from bot.model import Cell, Outcome
from bot.policy import Margins
from bot.tree import TreeFinder, load
from bot.wire import receive, send

# More than these nobody tries on a worker's word alone.
MOST_CONFIGURATIONS = 256


def main() -> None:
    """The job that stands on standard input."""
    order = json.load(sys.stdin)
    torch.set_num_threads(1)
    if order["device"] == "cuda" and not torch.cuda.is_available():
        say("refused", {"reason": "the lane needs a CUDA device; there is none here"})
        return
    contract = Contract.model_validate_json(json.dumps(order["contract"]))
    tree = Path(order["trusted_tree"]).resolve()
    sys.meta_path.insert(0, TreeFinder(tree, order["roots"]))
    cells = [Cell(c["entry_point"], tuple((a, v) for a, v in c["values"])) for c in order["cells"]]
    points = [contract.entry_points[name] for name in sorted({c.entry_point for c in cells})]
    named = {point.reference for point in points if point.reference}
    references = {reference: load(reference, tree) for reference in named}
    say("environment", environment(order).model_dump(mode="json"))
    pairs = _pairs(order)
    for pair in pairs:
        pair["head"].keywords = order["keywords"]
    targets, arms = [point.target for point in points], [a for pair in pairs for a in pair.values()]
    with ThreadPoolExecutor(len(arms)) as pool:
        for started in [pool.submit(arm.start, targets, order["start_timeout_s"]) for arm in arms]:
            started.result()
    for (name, _), pair in zip(order["pairs"], pairs, strict=True):
        if lost := pair["base"].lost:  # code that was merged imports, or the machine is at fault
            say("unstarted", {"worker": name, "outcome": lost})
            return
    rotation, number = Rotation(contract, cells), order.get("configurations")
    margins = None if "seed" in order else Margins(**order["margins"])
    comparisons = [
        Comparison(
            contract, order["device"], references, pair, margins, number, rotation, order["frozen"]
        )
        for pair in pairs
    ]
    share(comparisons, cells, lambda cell: _draws(order, cell))
    kernels = comparisons[0].kernels
    kernels.seen = [seen for both in comparisons for seen in both.kernels.seen]
    # A single cell that is run again shows nothing of the others.
    if "seed" not in order and number is None:
        for kernel in kernels.evidence():
            say("kernel", kernel.model_dump(mode="json"))
        for route in kernels.routes(list(dict.fromkeys(c.entry_point for c in cells))):
            say("route", route.model_dump(mode="json"))
    say("end", {})


def share(
    comparisons: Sequence[Comparison],
    cells: Sequence[Cell],
    draws: Callable[[Cell], Sequence[tuple[int, bool]]],
) -> None:
    """Have each pair of workers take the next cell, and tell of it, until none is left."""
    left, telling = deque(cells), threading.Lock()

    def serve(both: Comparison) -> None:
        while left:
            try:
                cell = left.popleft()
            except IndexError:  # another pair took the last one just now
                return
            try:
                for found in both.entries(cell, draws(cell)):
                    with telling:
                        say("cell", found.evidence.model_dump(mode="json"))
                        for kernel in found.kernels:
                            say("kernel", kernel.model_dump(mode="json"))
            except (MemoryError, torch.OutOfMemoryError):
                traceback.print_exc()  # a cell that is not reported fails; the others go on
            except BaseException:
                left.clear()  # the job is lost; nobody has to wait for the rest of it
                raise

    with ThreadPoolExecutor(len(comparisons)) as pool:
        for served in [pool.submit(serve, both) for both in comparisons]:
            served.result()


def _pairs(order: dict[str, Any]) -> list[dict[str, Arm]]:
    """Both arms, once or several times; fresh workers are asked for over one socket."""
    control = socket.socket(fileno=order["control"]) if "control" in order else None
    lock = threading.Lock()

    def replace(name: str) -> int | None:
        if control is None:
            return None
        with lock:
            send(control, {"restart": name})
            answer, fds = receive(control)
        return fds[0] if answer.get("arm") == name and len(fds) == 1 else None

    return [
        {
            arm: Arm(order["workers"][name], order["call_timeout_s"], partial(replace, name))
            for arm, name in zip(("base", "head"), names, strict=True)
        }
        for names in order["pairs"]
    ]


def _draws(order: dict[str, Any], cell: Cell) -> list[tuple[int, bool]]:
    """Seeds and whether they are secret: one that authors can draw too, one that nobody can."""
    public = public_seed(order["plan"], cell.id)
    if "seed" in order:  # one that failed is called as it was then
        return [(order["seed"], order["seed"] != public)]
    return [(public, False), (secrets.randbits(62), True)]


@dataclass(slots=True)
class Found:
    """What one cell gave."""

    evidence: CellEvidence
    kernels: list[KernelEvidence] = field(default_factory=list)


@dataclass(slots=True)
class Series:
    """One arm's results of the draws of a cell, up to the first call that gave none."""

    outcome: Outcome = Outcome.RAN
    results: list[Results] = field(default_factory=list)
    failed_seed: int | None = None


@dataclass(slots=True)
class Drawn:
    """Both arms' results of some draws, and their figures where there are any.

    `is_kernel`: whether head is compared with the merge base itself, not with a stand-in.
    """

    trials: list[Trial]
    head: Series
    base: Outcome
    is_kernel: bool
    draws: list[Draw] = field(default_factory=list)


@dataclass(slots=True)
class Comparison:
    """Both arms, and what they are compared with.

    `margins`: what decides whether a cell is drawn again, None where it never is.
    `configurations`: how many the source shows of an autotuner, on lanes that try each.
    `frozen`: the anchors of its cells, by output.
    """

    contract: Contract
    device: str
    references: Mapping[str, Callable[..., Any]]
    arms: Mapping[str, Arm]
    margins: Margins | None = None
    configurations: int | None = None
    rotation: Rotation | None = None  # None: each cell shows all
    frozen: Frozen = field(default_factory=dict)
    kernels: Kernels = field(init=False)
    pool: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(2))

    def __post_init__(self) -> None:
        self.kernels = Kernels(self.contract, self.device, self.arms["head"])

    def entries(self, cell: Cell, draws: Sequence[tuple[int, bool]]) -> Iterator[Found]:
        """One entry for a cell; on a lane for configurations, one for each of them."""
        if self.configurations is None:
            yield self.cell(cell, draws)
            return
        number, most = 0, max(1, self.configurations)
        head = self.arms["head"]
        while number < most:
            head.extra = {"configuration": number}
            found = self.cell(cell, draws[-1:])
            head.extra = {}
            said = read_report(head.report)
            unfit = [f"{name}: {reason}" for name, reason in said.unfit.items()]
            update = {"configuration": number, "unfit": unfit, "properties": []}
            yield Found(found.evidence.model_copy(update=update))
            claimed = min(max(said.configurations.values(), default=1), MOST_CONFIGURATIONS)
            number, most = number + 1, max(most, claimed)

    def cell(self, cell: Cell, draws: Sequence[tuple[int, bool]]) -> Found:
        """Run the draws of a cell in both arms at once; nothing here is timed."""
        drawn = self.draw(cell, draws)
        evidence = CellEvidence(
            cell=cell.id,
            head=drawn.head.outcome,
            base=drawn.base,
            base_form="kernel" if drawn.is_kernel else "reference",
            failed_seed=drawn.head.failed_seed,
        )
        if drawn.head.outcome is not Outcome.RAN:
            return Found(evidence)
        head = self.arms["head"]
        said = read_report(head.report)
        self.kernels.saw(cell, said, head.seconds)
        held, kernels, unseen = self.probe(cell, drawn.trials[-1], drawn.head.results[-1])
        further = self.again(cell, drawn)
        if further.head.outcome is not Outcome.RAN:
            ended = {"head": further.head.outcome, "failed_seed": further.head.failed_seed}
            return Found(evidence.model_copy(update=ended))
        held += [
            PropertyEvidence(name="repeat", output=name, equal=False, error=apart)
            for trial in [*drawn.trials, *further.trials]
            for name, apart in trial.spread.items()
        ]
        dispatch = self.contract.entry_points[cell.entry_point].dispatch
        update = {
            "draws": [*drawn.draws, *further.draws],
            "properties": held,
            "backend": said.backend(dispatch),
            "kernels": sorted(said.launches),
            "unprofiled": unseen,
        }
        return Found(evidence.model_copy(update=update), kernels)

    def draw(self, cell: Cell, draws: Sequence[tuple[int, bool]]) -> Drawn:
        """Run some draws of a cell in both arms and compare them."""
        trials, properties = [], self.contract.entry_points[cell.entry_point].properties
        for seed, secret in draws:
            plan = call(self.contract, cell, seed)
            reference = self.references[plan.reference]
            exact = properties.exactness("repeat", plan.dtype) in ("exact", "n/a")
            kind = {"expanded": not secret, "partial": secret, "exact": exact}
            trials.append(Trial(plan, reference, self.device, **kind))
        # Whether base or head, public or secret goes first must be no constant to adapt to.
        head, base = self._series(trials, [secret for _, secret in draws])
        # What is not finite is no measure of head's errors.
        kernel = base.outcome is Outcome.RAN and _finite(base.results)
        drawn = Drawn(trials, head, base.outcome, kernel)
        if head.outcome is Outcome.RAN:
            others = base.results if kernel else [trial.stand_in() for trial in trials]
            drawn.draws = [
                Draw(seed=seed, secret=secret, outputs=_figures(trial, own, other))
                for (seed, secret), trial, own, other in zip(
                    draws, trials, head.results, others, strict=True
                )
            ]
        return drawn

    def again(self, cell: Cell, drawn: Drawn) -> Drawn:
        """Further secret draws, where they would tell whether a figure is over by chance.

        None that are compared with something else than the first: those stand as they are.
        """
        none = Drawn([], Series(), drawn.base, drawn.is_kernel)
        if self.margins is None:
            return none
        known = limits(self.contract, cell, self.margins, self.frozen.get(cell.id))
        if not is_open(drawn.draws, known):
            return none
        found = self.draw(cell, [(secrets.randbits(62), True) for _ in range(FURTHER)])
        told = found.head.outcome is not Outcome.RAN or found.is_kernel == drawn.is_kernel
        return found if told else none

    def probe(
        self, cell: Cell, trial: Trial, results: Results
    ) -> tuple[list[PropertyEvidence], list[KernelEvidence], str]:
        """What else head is asked about a cell that it ran: properties and declared kernels.

        `trial` is the last draw, a secret one where there is one, `results` what head gave for it.
        The last one says why it is not known which kernels took the device's time.
        """
        if self.configurations is not None:
            return [], [], ""
        names = applicable(self.contract, cell)
        if self.device == "cpu" and self.rotation:  # calls take seconds: each cell shows one
            names = self.rotation.next(cell.entry_point, names)
        head = self.arms["head"]
        derivation = Derivation(
            self.contract,
            cell,
            trial.plan,
            trial.inputs,
            trial.directions if trial.plan.gradients else [],
            results,
            self.device,
            head.run,
        )
        held = derivation.test(names)
        if self.device == "cpu":
            return held, [], ""
        outcome, _ = trial.run(asking(head, profile=True))
        dispatch = self.contract.entry_points[cell.entry_point].dispatch
        report = read_report(head.report) if outcome is Outcome.RAN else Report()
        shares = undeclared(report, dispatch)
        kernels = [
            KernelEvidence(kernel=name, cell=cell.id, share=share) for name, share in shares.items()
        ]
        return held, kernels, unprofiled(outcome, report, dispatch)

    def _series(self, trials: Sequence[Trial], secret: Sequence[bool]) -> tuple[Series, Series]:
        """Both arms side by side, while this thread computes what is true."""
        futures = {}
        for name in secrets.SystemRandom().sample(("head", "base"), 2):
            seeds = [_layouts(name, one) for one in secret]
            futures[name] = self.pool.submit(_run, self.arms[name], trials, seeds)
        try:
            for trial in trials:
                trial.truth  # noqa: B018  # a cached property
        finally:
            wait(futures.values())  # whatever happens here, no arm is busy with the next cell
        return futures["head"].result(), futures["base"].result()


def _layouts(name: str, secret: bool) -> Sequence[str]:  # noqa: FBT001
    """How often an arm is called, and with what layouts of the cotangents."""
    if name == "base":
        return ONCE
    return REPEATS if secret else ("expanded",)


def _run(arm: Arm, trials: Sequence[Trial], seeds: Sequence[Sequence[str]]) -> Series:
    series = Series(results=[{} for _ in trials])
    for index in secrets.SystemRandom().sample(range(len(trials)), len(trials)):
        trial = trials[index]
        outcome, series.results[index] = trial.run(arm.run, seeds[index])
        if outcome is not Outcome.RAN:
            return Series(outcome, [], trial.plan.seed)
    return series


def _finite(draws: Sequence[Results]) -> bool:
    return all(bool(value.isfinite().all()) for found in draws for value in found.values())


def _figures(trial: Trial, head: Results, base: Results) -> list[OutputFigures]:
    return [compare(r, trial.truth[r.name], head[r.name], base[r.name]) for r in trial.plan.results]


if __name__ == "__main__":
    main()
