"""Benchmark rows in the trusted process: calls, content, secret offsets, fresh values."""

# SPDX-License-Identifier: MIT

from __future__ import annotations

import fcntl
import json
import os
import secrets
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any, Literal

import torch

from bot.cells import Call, Result, TensorArg, call, cell_variables, complete, row_major
from bot.contract import Contract
from bot.device.arm import DTYPES
from bot.device.inputs import FAMILIES
from bot.device.runner import Runner, shared_memory, wait_for
from bot.errors import UserError
from bot.evidence import Audit, Costs, Restart, RowEvidence
from bot.expression import expression

__all__ = [
    "ARMS", "MOST_SLOTS", "RANGE", "SAMPLE", "SLOTS", "Content", "Patch", "Row", "Times",
    "arm_names",
]  # fmt: skip

ARMS: tuple[Literal["base"], Literal["head"]] = ("base", "head")
SLOTS, MOST_SLOTS = 8, 1024
PERIOD = 64  # vectors of an argument, of which at least one is fresh with each "go"
SMALL, SMALL_PERIOD = 1 << 20, 3  # elements of an argument of which a third or more is fresh
SAMPLE = 256  # elements of a result that an audit reads in every slot
RANGE = 1 << 20  # elements of a result that an audit reads
SMALL_FLOPS = 1e9
# Vectors of these are used as they are, so they stay whole when they are moved.
WHOLE = ("direction", "collinear")
_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SEAL


def arm_names() -> list[Literal["base", "head"]]:
    """Both, in random order."""
    return sorted(ARMS, key=lambda _: secrets.randbits(30))


@dataclass(slots=True)
class Times:
    """What one restart of a row gave, by arm; see `Restart` in bot/evidence.py."""

    first: Literal["base", "head"]
    alone: list[float] = field(default_factory=list)
    blocks: dict[str, list[float]] = field(default_factory=lambda: {name: [] for name in ARMS})
    inner: dict[str, float] = field(default_factory=dict)
    audit_ms: dict[str, float] = field(default_factory=dict)
    dropped: int = 0

    def evidence(self) -> Restart:
        """As it is written."""
        return Restart(
            first=self.first,
            base=self.blocks["base"],
            head=self.blocks["head"],
            dropped=self.dropped,
            alone=self.alone,
            inner=self.inner,
            audit_ms=self.audit_ms,
        )


@dataclass(frozen=True, slots=True)
class Part:
    """Fresh values of one argument: whole vectors from elsewhere in its own content.

    A vector is a token with all its heads, a row of a matrix, one number of a list. In each slot
    one in `PERIOD` or fewer is replaced, from the first one of a random sequence on: each chunk of
    a recurrence has then other values in every argument, and so has all that comes after it.
    """

    key: str
    count: int  # elements of a vector
    vectors: int
    starts: tuple[int, ...]  # vectors with which sequences begin; none where any may do

    @classmethod
    def of(cls, key: str, spec: TensorArg, sequences: Sequence[Sequence[int]]) -> Part:
        """Tokens lie along the second axis; packed ones begin where the call says."""
        shape = spec.shape
        count = prod(shape[2:]) if len(shape) > 2 else shape[1] if len(shape) == 2 else 1
        if spec.storage != prod(shape) or spec.strides != row_major(shape):
            count = shape[-1] if spec.family in WHOLE else 1
        elif len(shape) == 1 and spec.family in WHOLE:
            count = shape[0]
        vectors, starts = spec.storage // max(1, count), tuple[int, ...]()
        if len(shape) > 2 and vectors == prod(shape[:2]):
            packed = [s for s in sequences if s and s[0] == 0 and s[-1] == vectors]
            found = packed[0][:-1] if packed else range(0, vectors, shape[1])
            starts = tuple(n for n in found if 0 <= n < vectors)
        return cls(key, max(1, count), vectors, starts)

    @property
    def most(self) -> int:
        """The longest distance between two vectors that are replaced."""
        wished = PERIOD if self.vectors * self.count > SMALL else SMALL_PERIOD
        return max(1, min(wished, self.vectors // 4))

    @property
    def fewest(self) -> int:
        """The shortest."""
        return max(1, 3 * self.most // 4)

    def draw(self) -> tuple[int, int, int]:
        """Where the values of a slot go, whence they come, and their distance."""
        start = secrets.choice(self.starts) if self.starts else secrets.randbelow(self.vectors)
        step = self.fewest + secrets.randbelow(self.most - self.fewest + 1)
        return start, secrets.randbelow(self.vectors), step

    def order(self) -> dict[str, Any]:
        """As a worker gets it."""
        repeats = max(1, self.vectors // self.fewest)
        return {"key": self.key, "count": self.count, "vectors": self.vectors, "repeats": repeats}


@dataclass(frozen=True, slots=True)
class Patch:
    """What is fresh with each "go": every argument that moves and every cotangent, in all slots.

    Only places are sent, as int32; the values are content that both sides have.
    """

    parts: tuple[Part, ...]

    @classmethod
    def of(cls, planned: Call, seeded: Iterable[Result]) -> Patch:
        """All that differs from slot to slot."""
        sequences = [s.content for s in planned.tensors if s.content and len(s.shape) == 1]
        moving = [(s.name, s) for s in planned.tensors if _moves(s)]
        moving += [(f"d/{r.name}", _normal(r)) for r in seeded]
        return cls(tuple(Part.of(key, s, sequences) for key, s in moving if prod(s.shape)))

    def draw(self, slots: int) -> bytes:
        """For each part and slot three numbers."""
        drawn = (number for part in self.parts for _ in range(slots) for number in part.draw())
        return array("i", drawn).tobytes()

    def apply(self, place: int, flat: torch.Tensor, source: torch.Tensor, sent: Sent) -> None:
        """What a worker does to the argument of one part in one slot."""
        part, (payload, slot, slots) = self.parts[place], sent
        start, taken, step = memoryview(payload).cast("i")[3 * (place * slots + slot) :][:3]
        size = part.vectors * part.count
        own, other = (t[:size].view(part.vectors, part.count) for t in (flat, source))
        moved = step * torch.arange(max(1, part.vectors // step))
        own[(start + moved) % part.vectors] = other[(taken + moved) % part.vectors]


Sent = tuple[bytes, int, int]  # a payload, one of its slots, how many it has


def _moves(spec: TensorArg) -> bool:
    """Whether an argument's content differs from slot to slot."""
    floating = DTYPES[spec.dtype].is_floating_point and spec.content is None
    return floating and not spec.constant and not spec.host


@dataclass(slots=True)
class Row:
    """One row: its call, what it must move and compute, and what was measured so far."""

    name: str
    call: Call
    margin: str
    budgets: dict[str, float]
    least: dict[str, float]
    patch: Patch
    mode: Literal["graph", "eager", "failed"] = "graph"
    why: str = ""
    fault: str = ""
    slots: int = SLOTS
    nulls: list[float] = field(default_factory=list)
    alone: list[float] = field(default_factory=list)
    first_call_s: dict[str, float] = field(default_factory=dict)
    restarts: list[Times] = field(default_factory=list)
    audits: list[Audit] = field(default_factory=list)
    costs: dict[str, Costs] = field(default_factory=dict)

    @classmethod
    def of(cls, contract: Contract, name: str) -> Row:
        """The row `entry_point/row` of a contract."""
        entry, _, short = name.partition("/")
        point = contract.entry_points[entry]
        spec = point.benchmarks[short]
        cell = complete(contract, entry, spec.axes)
        if cell is None:
            raise UserError(f"contract {contract.op}: row {name}: the constraints forbid its cell")
        planned = call(contract, cell, 0, spec.set)
        variables = cell_variables(point, cell, spec.set)
        least = {key: float(expression(getattr(spec, key))(variables)) for key in _LEAST}
        budgets = {output.name: dict(output.budget) for output in point.outputs}
        budgets |= {f"d{name}": dict(g.budget) for name, g in point.gradients.items()}
        caps = {n: {str(k): v for k, v in caps.items()} for n, caps in budgets.items()}
        limits = {n: known.get(planned.dtype, 0.0) for n, known in caps.items()}
        patch = Patch.of(planned, _seeded(planned))
        return cls(name, planned, spec.margin, limits, least, patch)

    @property
    def results(self) -> tuple[Result, ...]:
        """In the order in which the worker gives them."""
        return self.call.results

    @property
    def seeded(self) -> list[Result]:
        """Outputs that have a cotangent."""
        return _seeded(self.call)

    @property
    def is_small(self) -> bool:
        """Whether the reference does it in seconds, and its inputs stay what they were."""
        largest = max((prod(r.shape) for r in self.results), default=0)
        return largest <= RANGE and self.least["flops"] <= SMALL_FLOPS and not self.call.written

    @property
    def slot_bytes(self) -> int:
        """Memory that one more slot takes."""
        sizes = [s.storage * DTYPES[s.dtype].itemsize for s in self.call.tensors if not s.constant]
        fresh = [r for r in self.results if r not in self.call.written]
        sizes += [prod(r.shape) * DTYPES[r.dtype].itemsize for r in (*fresh, *self.seeded)]
        return max(1, int(sum(sizes)))

    @property
    def shared_bytes(self) -> int:
        """Room for what an audit hands over."""
        sizes = [
            (min(RANGE, size) + MOST_SLOTS * min(SAMPLE, size)) * DTYPES[r.dtype].itemsize + 128
            for r in self.results
            for size in (prod(r.shape),)
        ]
        return int(sum(sizes))

    def rolls(self) -> Iterator[int]:
        """A secret odd offset for each tensor of a slot, cotangents last."""
        for spec in self.call.tensors:
            step = spec.shape[-1] if spec.family in WHOLE and spec.shape else 1
            yield _odd(spec.storage, step) if _moves(spec) else 0
        for result in self.seeded:
            yield _odd(prod(result.shape), 1)

    def evidence(self) -> RowEvidence:
        """As it is written."""
        nulls = sorted(self.nulls)
        return RowEvidence(
            row=self.name,
            mode=self.mode,
            why=self.why,
            fault=self.fault,
            calls=self.slots,
            launches=1,
            null_ms=1e3 * nulls[len(nulls) // 2] if nulls else 0.0,
            restarts=[times.evidence() for times in self.restarts],
            audits=self.audits,
            base=self.costs.get("base"),
            head=self.costs.get("head"),
            bytes=self.least["bytes"],
            flops=self.least["flops"],
        )


_LEAST = ("bytes", "flops")


def _seeded(planned: Call) -> list[Result]:
    return [r for r in planned.outputs if r.present and planned.gradients]


def _odd(size: int, step: int) -> int:
    steps = size // step if step else 0
    return step * (2 * secrets.randbelow(steps // 2) + 1) if steps >= 2 else 0


class Content:
    """The tensors of a restart, drawn from secret seeds and shared by its rows."""

    def __init__(self, device: str) -> None:
        self.device = device
        self.tensors: dict[str, torch.Tensor] = {}
        self.files: dict[str, tuple[int, int]] = {}

    def close(self) -> None:
        """Give the memory back."""
        for fd, _ in self.files.values():
            os.close(fd)
        self.tensors, self.files = {}, {}

    def order(self, row: Row) -> dict[str, Any]:
        """The call as a worker gets it: no seed, no family, nothing of the other arm."""
        planned = row.call
        tensors = [
            self._spec(spec.name, spec, spec.name)
            | {"constant": spec.constant, "host": spec.host}
            | {"requires_grad": spec.requires_grad}
            for spec in planned.tensors
        ]
        return {
            "target": planned.target,
            "device": self.device,
            "plain": planned.plain,
            "inference": planned.inference,
            "tensors": tensors,
            "cotangents": [self._spec(f"d/{r.name}", _normal(r), r.name) for r in row.seeded],
            "outputs": [_due(r) if r.present else {"alias": r.alias} for r in planned.outputs],
            "written": [_due(r) for r in planned.written],
            "gradients": [_due(r) for r in planned.gradients],
            "patch": [part.order() for part in row.patch.parts],
        }

    def _spec(self, key: str, spec: TensorArg, name: str) -> dict[str, Any]:
        return {
            "key": key,
            "name": name,
            "blob": self.key(key, spec),
            "shape": list(spec.shape),
            "strides": list(spec.strides),
            "storage": spec.storage,
            "dtype": spec.dtype,
            "constant": False,
            "host": False,
            "requires_grad": False,
        }

    def key(self, name: str, spec: TensorArg) -> str:
        """Draw a tensor on first use; equal ones of other rows are the same."""
        form = [spec.shape, spec.strides, spec.storage, spec.dtype, spec.family, spec.content]
        key = json.dumps([name, *form])
        if key not in self.tensors:
            self.tensors[key] = _draw(self.device, spec)
        return key

    def keys(self, row: Row) -> list[str]:
        """Of all tensors of a row, cotangents last."""
        found = [self.key(spec.name, spec) for spec in row.call.tensors]
        return found + [self.key(f"d/{r.name}", _normal(r)) for r in row.seeded]

    def payload(self, row: Row) -> bytes:
        """Fresh values for every slot, which reach a worker with "go"."""
        return row.patch.draw(row.slots)

    def send(self, runners: Iterable[Runner], keys: Iterable[str]) -> None:
        """Give arms what they do not have yet, in memory that nobody can change any more."""
        told = list(runners)
        for key in keys:
            tensor = self.tensors[key]
            due = [runner for runner in told if key not in runner.blobs]
            fd, size = self._file(key) if due else (-1, 0)
            dtype = next(name for name, known in DTYPES.items() if known is tensor.dtype)
            order = {"do": "blob", "id": key, "count": tensor.numel(), "dtype": dtype}
            for runner in due:
                runner.post({**order, "size": size, "device": self.device}, fd)
            wait_for(due)
            for runner in due:
                runner.blobs.add(key)

    def _file(self, key: str) -> tuple[int, int]:
        if key not in self.files:
            tensor = self.tensors[key]
            size = tensor.numel() * tensor.element_size()
            fd, memory = shared_memory(max(1, size))
            if size:
                flat = torch.frombuffer(memory, dtype=tensor.dtype, count=tensor.numel())
                flat.copy_(tensor)
                del flat
            memory.close()
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SEALS)
            self.files[key] = fd, max(1, size)
        return self.files[key]


def _due(result: Result) -> dict[str, Any]:
    return {"name": result.name, "shape": list(result.shape), "dtype": result.dtype, "offset": 0}


def _normal(result: Result) -> TensorArg:
    """A cotangent as a tensor to be drawn."""
    return TensorArg(
        name=result.name,
        shape=result.shape,
        strides=row_major(result.shape),
        storage=prod(result.shape),
        dtype=result.dtype,
        family="normal",
        content=None,
        requires_grad=False,
        constant=False,
        written=False,
        host=False,
        seed=0,
    )


def _draw(device: str, spec: TensorArg) -> torch.Tensor:
    """Stored elements, flat, on the host; drawn where it is fast."""
    if spec.content is not None:
        return torch.tensor(spec.content, dtype=DTYPES[spec.dtype])
    with torch.device(device):
        generator = torch.Generator(device).manual_seed(secrets.randbits(62))
        draw = FAMILIES[spec.family]
        if spec.storage == prod(spec.shape):
            flat = torch.empty(spec.storage, dtype=DTYPES[spec.dtype])
            flat.as_strided(spec.shape, spec.strides).copy_(draw(spec.shape, generator))
        else:
            flat = draw((spec.storage,), generator).to(DTYPES[spec.dtype])
        return flat.cpu()
