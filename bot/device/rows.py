"""Benchmark rows in the trusted process: calls, content, secret offsets, fresh values."""

# SPDX-License-Identifier: MIT

from __future__ import annotations

import fcntl
import json
import os
import secrets
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from math import prod
from typing import Any, Literal

import torch

from bot.cells import Call, Result, TensorArg, call, cell_variables, complete, row_major
from bot.contract import Contract
from bot.device.arm import DTYPES
from bot.device.inputs import FAMILIES
from bot.device.runner import Runner, shared_memory
from bot.errors import UserError
from bot.evidence import Audit, Costs, Restart, RowEvidence
from bot.expression import expression

__all__ = ["ARMS", "RANGE", "Content", "Patch", "Row", "Times", "arm_names"]

ARMS: tuple[Literal["base"], Literal["head"]] = ("base", "head")
SLOTS = 8
PATCH = 128  # elements
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
class Patch:
    """Where fresh values go with each "go": whole vectors of one argument of each slot."""

    name: str
    count: int
    step: int
    storage: int

    @classmethod
    def of(cls, planned: Call) -> Patch | None:
        """In the first argument that every call gets anew."""
        for spec in planned.tensors:
            if not _moves(spec) or spec.written or not spec.shape:
                continue
            step = max(1, spec.shape[-1])
            count = step * max(1, PATCH // step)
            if count <= spec.storage:
                return cls(spec.name, count, step, spec.storage)
        return None

    def draw(self, source: torch.Tensor, slots: int) -> bytes:
        """Places, then values: pieces of the argument's own content from elsewhere."""
        most = (self.storage - self.count) // self.step + 1
        places, taken = (
            [self.step * secrets.randbelow(most) for _ in range(slots)] for _ in range(2)
        )
        values = torch.stack([source[start : start + self.count] for start in taken])
        head = b"".join(place.to_bytes(8, sys.byteorder) for place in places)
        return head + bytes(values.view(torch.uint8).flatten().tolist())

    def place(self, payload: bytes, slot: int) -> int:
        """Where a slot's values go."""
        return int.from_bytes(payload[8 * slot : 8 * slot + 8], sys.byteorder)

    def apply(self, flat: torch.Tensor, payload: bytes, slot: int, slots: int) -> None:
        """What a worker does to one slot."""
        size = self.count * flat.element_size()
        start, place = 8 * slots + slot * size, self.place(payload, slot)
        part = bytearray(payload[start : start + size])
        flat[place : place + self.count] = torch.frombuffer(part, dtype=flat.dtype)


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
    patch: Patch | None
    mode: Literal["graph", "eager", "failed"] = "graph"
    why: str = ""
    fault: str = ""
    slots: int = SLOTS
    launches: int = 1
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
        return cls(name, planned, spec.margin, limits, least, Patch.of(planned))

    @property
    def results(self) -> tuple[Result, ...]:
        """In the order in which the worker gives them."""
        return self.call.results

    @property
    def seeded(self) -> list[Result]:
        """Outputs that have a cotangent."""
        return [r for r in self.call.outputs if r.present and self.call.gradients]

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
        sizes = [min(RANGE, prod(r.shape)) * DTYPES[r.dtype].itemsize + 64 for r in self.results]
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
            launches=self.launches,
            null_ms=1e3 * nulls[len(nulls) // 2] if nulls else 0.0,
            restarts=[times.evidence() for times in self.restarts],
            audits=self.audits,
            base=self.costs.get("base"),
            head=self.costs.get("head"),
            bytes=self.least["bytes"],
            flops=self.least["flops"],
        )


_LEAST = ("bytes", "flops")


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
            "patch": row.patch and {"key": row.patch.name, "count": row.patch.count},
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
        if row.patch is None:
            return b""
        spec = next(spec for spec in row.call.tensors if spec.name == row.patch.name)
        return row.patch.draw(self.tensors[self.key(spec.name, spec)], row.slots)

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
            for runner in due:
                runner.wait()
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
