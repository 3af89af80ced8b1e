"""`fla-bot contract anchor`: freeze the errors of evidence that passes."""

# SPDX-License-Identifier: MIT

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from bot import anchors as anchors_file
from bot import contract as contract_file
from bot import evidence as evidence_file
from bot import policy as policy_file
from bot.anchors import Anchors, Measured
from bot.contract import Contract
from bot.errors import UserError
from bot.evidence import Evidence
from bot.judge.correctness import judge
from bot.model import Job, Verdict
from bot.plan import lane_cells
from bot.policy import Policy

__all__ = ["anchor"]


def anchor(root: Path, files: Sequence[Path]) -> list[Path]:
    """Write the anchors of every op and lane that the evidence is of; returns the files.

    An anchor is the largest of head's rms errors over all draws of all files: where one token
    outweighs the rest, single draws scatter by more than their median's margin. Only evidence
    counts in which every cell of the lane passes by itself: nothing wrong is frozen.
    """
    policy = policy_file.load((root / "contracts/policy.yaml").read_bytes(), "policy.yaml")
    groups: dict[tuple[str, str], list[Evidence]] = defaultdict(list)
    for path in files:
        found = evidence_file.read(path.parent, path.stem) if path.suffix == ".json" else None
        if not isinstance(found, Evidence):
            raise UserError(f"{path}: {found or 'no evidence there'}")
        groups[found.job.removeprefix(f"{found.lane.replace(':', '-')}-"), found.lane].append(found)
    written = []
    for op in sorted({op for op, _ in groups}):
        place = root / "contracts" / f"{op}.yaml"
        if not place.is_file():
            raise UserError(f"{place}: no such contract")
        contract = contract_file.load(place.read_bytes(), str(place))
        target = root / anchors_file.FOLDER / f"{op}.json"
        lanes: dict[str, Measured] = {}
        if target.is_file():
            lanes |= anchors_file.load(target.read_bytes(), str(target), op).lanes
        for (name, lane), group in groups.items():
            if name == op:
                lanes[lane] = _measured(contract, policy, lane, group)
        book = Anchors(schema="fla-bot/anchor@1", op=op, lanes=lanes)
        target.parent.mkdir(parents=True, exist_ok=True)
        data = book.model_dump(mode="json", by_alias=True)
        target.write_text(json.dumps(data, indent=1, sort_keys=True) + "\n")
        written.append(target)
    return written


def _measured(contract: Contract, policy: Policy, lane: str, group: Sequence[Evidence]) -> Measured:
    if lane not in policy.lanes:
        raise UserError(f"no lane `{lane}` in the policy")
    cells = [cell.id for cell in lane_cells(contract, policy, lane)]
    values: dict[str, dict[str, list[float]]] = {cell: defaultdict(list) for cell in cells}
    for evidence in group:
        job = Job(
            id=evidence.job,
            lane=lane,
            op=contract.op,
            cells=cells,
            required=True,
            because=[],
            key="",
        )
        for cell, verdict, reason in judge(job, policy, contract, evidence):
            if verdict is not Verdict.PASS:
                raise UserError(f"{evidence.job}: {cell or contract.op}: {verdict}: {reason}")
        for entry in evidence.cells:
            for figures in (figures for draw in entry.draws for figures in draw.outputs):
                values[entry.cell][figures.name].append(figures.head.rms)
    machines = sorted({f"{policy.lanes[lane].machine} ({e.environment.device})" for e in group})
    commits = {evidence.head for evidence in group}
    if len(commits) > 1:
        raise UserError(f"evidence of {len(commits)} commits for lane `{lane}`; anchor one")
    return Measured(
        measured=datetime.now(UTC).date().isoformat(),
        commit=commits.pop(),
        machine=", ".join(machines),
        cells={
            cell: {name: float(f"{max(found):.3g}") for name, found in outputs.items()}
            for cell, outputs in values.items()
        },
    )
