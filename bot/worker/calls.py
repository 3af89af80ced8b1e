"""One call in the worker: tensors on the given memory, poisoned allocations, results into slots."""

# SPDX-License-Identifier: MIT

from __future__ import annotations

import contextlib
import mmap
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from bot.model import Outcome
from bot.wire import GUARD_BYTES, POISON, TORCH_NAMES
from bot.worker.launches import Watch

__all__ = ["PoisonedAllocations", "Refused", "perform"]

DTYPES = {name: getattr(torch, word) for name, word in TORCH_NAMES.items()}
_EMPTY = frozenset(
    getattr(torch.ops.aten, name)
    for name in (
        *("empty", "empty_like", "empty_permuted", "empty_strided"),
        *("new_empty", "new_empty_strided"),
    )
)
_ZEROS = frozenset(getattr(torch.ops.aten, name) for name in ("zeros", "zeros_like", "new_zeros"))
_FRESH = _EMPTY | _ZEROS
_RESIZE = torch.ops.aten.resize_
# On a host each backward takes long; calls with more elements than these do without another one.
SMALL = 1 << 14
NEIGHBOUR = "memory next to a tensor was written"


def _has_memory(tensor: torch.Tensor) -> bool:
    """Whether there is anything to guard: not for empty, sparse and meta tensors."""
    return tensor.layout is torch.strided and not tensor.is_meta and tensor.numel() > 0


class Refused(Exception):
    """The call ended in a way that has an outcome of its own."""

    def __init__(self, outcome: Outcome, message: str) -> None:
        self.outcome = outcome
        super().__init__(message)


class PoisonedAllocations(TorchDispatchMode):  # type: ignore[misc]  # torch is untyped here
    """Fills what `empty` and its kin return with poison; guard bands lie round that and zeros.

    `blocks`: memory with its bands, by address. Launches of Triton's interpreter make tensors on
    memory that is there (`set_`): what is said of a tensor says nothing of a block.
    """

    def __init__(self) -> None:
        super().__init__()
        self.blocks: dict[int, torch.Tensor] = {}
        self.is_broken = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Replace the memory of a fresh tensor; everything else passes through."""
        kwargs, kind = kwargs or {}, func.overloadpacket
        if kind is _RESIZE and _has_memory(args[0]):
            place = args[0].untyped_storage().data_ptr()
            self._resized(place, result := func(*args, **kwargs))
            return result
        result = func(*args, **kwargs)
        if kind not in _FRESH or "out" in kwargs or not _has_memory(result):
            return result
        size = result.untyped_storage().nbytes()
        block = torch.full(
            (size + 2 * GUARD_BYTES,), POISON, dtype=torch.uint8, device=result.device
        )
        self.blocks[block.untyped_storage().data_ptr()] = block
        inner = block[GUARD_BYTES : GUARD_BYTES + size].view(result.dtype)
        inner = inner.zero_() if kind in _ZEROS else inner
        return inner.as_strided(result.shape, result.stride(), inner.storage_offset())

    def check(self) -> None:
        """Refuse if a guard band was written."""
        blocks = [block for place, block in self.blocks.items() if _lies_at(place, block)]
        self.blocks.clear()
        if self.is_broken or not all(map(_holds, blocks)):
            raise Refused(Outcome.GUARD, NEIGHBOUR)

    def _resized(self, place: int, tensor: torch.Tensor) -> None:
        """Let go of a block whose tensor may now be written where the bands were."""
        block = self.blocks.get(place)
        if block is None:
            return
        end = (tensor.storage_offset() + tensor.numel()) * tensor.element_size()
        if not _lies_at(place, block) or end > block.numel() - GUARD_BYTES:
            self.is_broken |= not _holds(block)  # by what was done before
            del self.blocks[place]


def _lies_at(place: int, block: torch.Tensor) -> bool:
    """Whether a block's storage is where and as large as it was."""
    storage = block.untyped_storage()
    return bool(storage.data_ptr() == place and storage.nbytes() == block.numel())


def perform(function: Callable[..., Any], order: dict[str, Any], memory: mmap.mmap) -> None:
    """Run the call as often as there are result slots, each time from the same inputs."""
    watch = Watch(order)
    try:
        with watch:
            for number, results in enumerate(order["repeats"]):
                # The second of several calls has another one between its two halves.
                _repeat(function, order, results, memory, is_crossed=number == 1)
    finally:
        _report(watch.report(), order, memory)


def _repeat(
    function: Callable[..., Any],
    order: dict[str, Any],
    results: dict[str, Any],
    memory: mmap.mmap,
    *,
    is_crossed: bool,
) -> None:
    inputs = _inputs(order, memory)
    cotangents = [_cotangent(spec, memory, order) for spec in results["cotangents"]]
    others = _others(order) if is_crossed else {}

    def call(given: dict[str, torch.Tensor]) -> list[torch.Tensor]:
        return find_outputs(function(**given, **order["plain"]), results["outputs"], given)

    with (
        _frozen(inputs[name] for name in results.get("frozen", ())),
        torch.inference_mode(order["inference"]),
        PoisonedAllocations() as allocations,
    ):
        values = call(inputs)
        # All results of the first call are read when the second has written all of its own.
        later = call(others) if is_crossed else []
        gradients = find_gradients(values, cotangents, inputs, results["gradients"])
        if is_crossed and _is_quick(order):
            opposite = [None if c is None else -c for c in cotangents]
            later += find_gradients(later, opposite, others, results["gradients"])
        _synchronize(order)
        allocations.check()
    written = [inputs[slot["name"]] for slot in results["written"]]
    slots = [slot for group in _GROUPS for slot in results[group] if "offset" in slot]
    for value, slot in zip((*values, *written, *gradients), slots, strict=True):
        _slot(slot, memory).copy_(value.detach())
    _return_inputs(order, memory)


@contextlib.contextmanager
def _frozen(tensors: Iterable[torch.Tensor]) -> Iterator[None]:
    """Tensors that need no gradient for once."""
    chosen = [tensor.requires_grad_(False) for tensor in tensors]
    try:
        yield
    finally:
        for tensor in chosen:
            tensor.requires_grad_()


def _is_quick(order: dict[str, Any]) -> bool:
    """Whether one backward more costs next to nothing."""
    size: int = sum(spec["storage"] for spec in order["tensors"])
    return bool(order["device"] != "cpu" or size <= SMALL)


def _report(text: bytes, order: dict[str, Any], memory: mmap.mmap) -> None:
    at = order["report"]["offset"]
    memory[at : at + 4 + len(text)] = len(text).to_bytes(4, "big") + text


@dataclass(slots=True)
class _Kept:
    """An argument of the last call: the object, its memory, and the guard bands round that."""

    form: dict[str, Any]
    block: torch.Tensor
    storage: torch.Tensor
    tensor: torch.Tensor


# A call whose arguments have the form of the last call's gets the same objects with other content,
# as a training loop has it: what remembers results by identity or by address answers wrongly.
_kept: dict[str, _Kept] = {}


def _inputs(order: dict[str, Any], memory: mmap.mmap) -> dict[str, torch.Tensor]:
    """The arguments with the content that the memory holds."""
    for name in set(_kept) - {spec["name"] for spec in order["tensors"]}:
        del _kept[name]
    return {spec["name"]: _input(spec, memory, order).tensor for spec in order["tensors"]}


def _input(spec: dict[str, Any], memory: mmap.mmap, order: dict[str, Any]) -> _Kept:
    place = "cpu" if spec["host"] else order["device"]
    form = {key: value for key, value in spec.items() if key != "offset"} | {"place": place}
    flat = _flat(memory, spec["offset"], spec["storage"], DTYPES[spec["dtype"]])
    kept = _kept.get(spec["name"])
    if kept is not None and kept.form == form:
        # What may be passed again as the same object stays the same only with the same content.
        same = spec["constant"] and torch.equal(kept.storage.cpu(), flat)
        if same or not spec["constant"]:
            if not same:
                kept.storage.copy_(flat)
            return kept
    block, storage = _guarded(flat, place)
    tensor = storage.as_strided(spec["shape"], spec["strides"])
    tensor = tensor.requires_grad_() if spec["requires_grad"] else tensor
    _kept[spec["name"]] = _Kept(form, block, storage, tensor)
    return _kept[spec["name"]]


def _others(order: dict[str, Any]) -> dict[str, torch.Tensor]:
    """Arguments like the last call's, with other content in memory of their own.

    What is written into a buffer that calls share has other bits then.
    """
    return {spec["name"]: _other(spec, _kept[spec["name"]]) for spec in order["tensors"]}


def _other(spec: dict[str, Any], kept: _Kept) -> torch.Tensor:
    if spec["constant"]:
        return kept.tensor
    # The same numbers the other way round are of the same kind; what may be an index stays one.
    flat = kept.storage.flip(0) if kept.storage.is_floating_point() else kept.storage.clone()
    return flat.as_strided(spec["shape"], spec["strides"]).requires_grad_(spec["requires_grad"])


def _guarded(flat: torch.Tensor, place: str) -> tuple[torch.Tensor, torch.Tensor]:
    """A block of memory, and a copy of the elements between its guard bands."""
    size = flat.numel() * flat.element_size()
    block = torch.full((size + 2 * GUARD_BYTES,), POISON, dtype=torch.uint8, device=place)
    inner = block[GUARD_BYTES : GUARD_BYTES + size].view(flat.dtype)
    return block, inner.copy_(flat)


def _holds(block: torch.Tensor) -> bool:
    """Whether nobody wrote a block's guard bands."""
    bands = torch.cat((block[:GUARD_BYTES], block[-GUARD_BYTES:]))
    return bool((bands == POISON).all())


def _synchronize(order: dict[str, Any]) -> None:
    if order["device"] != "cpu":
        torch.cuda.synchronize()


_GROUPS = ("outputs", "written", "gradients")


def _flat(memory: mmap.mmap, offset: int, count: int, dtype: torch.dtype) -> torch.Tensor:
    if not count:
        return torch.empty(0, dtype=dtype)
    return torch.frombuffer(memory, dtype=dtype, count=count, offset=offset)


def _tensor(spec: dict[str, Any], memory: mmap.mmap, order: dict[str, Any]) -> torch.Tensor:
    flat = _flat(memory, spec["offset"], spec["storage"], DTYPES[spec["dtype"]])
    return flat.to(order["device"]).as_strided(spec["shape"], spec["strides"])


def _cotangent(
    spec: dict[str, Any], memory: mmap.mmap, order: dict[str, Any]
) -> torch.Tensor | None:
    """None where an output has none in this call."""
    return _tensor(spec, memory, order) if "offset" in spec else None


def _slot(spec: dict[str, Any], memory: mmap.mmap) -> torch.Tensor:
    count = 1
    for size in spec["shape"]:
        count *= size
    return _flat(memory, spec["offset"], count, DTYPES[spec["dtype"]]).view(spec["shape"])


def find_outputs(
    returned: Any, slots: list[dict[str, Any]], inputs: dict[str, torch.Tensor]
) -> list[torch.Tensor]:
    """The fresh tensors among the results; None and arguments stand where they are declared."""
    values = list(returned) if isinstance(returned, tuple | list) else [returned]
    if len(values) != len(slots):
        raise Refused(Outcome.ARITY, f"{len(values)} results, {len(slots)} declared")
    for value, slot in zip(values, slots, strict=True):
        if "alias" in slot:
            if value is not inputs.get(slot["alias"]):
                due = slot["alias"] or "None"
                raise Refused(Outcome.ARITY, f"something else where {due} is due")
            continue
        _check(value, slot)
        if any(_shares(value, tensor) for tensor in inputs.values()):
            raise Refused(Outcome.ALIAS, f"{slot['name']} shares memory with an input")
    pairs = zip(values, slots, strict=True)
    return [value for value, slot in pairs if "offset" in slot]


def _check(value: Any, slot: dict[str, Any]) -> None:
    if type(value) is not torch.Tensor or value.dtype != DTYPES[slot["dtype"]]:
        got = getattr(value, "dtype", type(value).__name__)
        raise Refused(Outcome.TYPE, f"{slot['name']} is {got}, declared {slot['dtype']}")
    if list(value.shape) != slot["shape"]:
        raise Refused(
            Outcome.SHAPE, f"{slot['name']} is {list(value.shape)}, declared {slot['shape']}"
        )


def _shares(value: torch.Tensor, tensor: torch.Tensor) -> bool:
    own, other = (t.untyped_storage() for t in (value, tensor))
    return bool(value.numel() > 0 and own.data_ptr() == other.data_ptr())


def find_gradients(
    values: list[torch.Tensor],
    cotangents: Sequence[torch.Tensor | None],
    inputs: dict[str, torch.Tensor],
    slots: list[dict[str, Any]],
) -> list[torch.Tensor]:
    """Gradients of the inputs that have slots; without all cotangents they may be left out as 0."""
    if not slots:
        return []
    wanted = [inputs[slot["name"].removeprefix("d")] for slot in slots]
    is_part = any(cotangent is None for cotangent in cotangents)
    pairs = zip(values, cotangents, strict=True)
    aims = [(v, c) for v, c in pairs if v.requires_grad and c is not None]
    if not aims and is_part:
        return [torch.zeros_like(tensor) for tensor in wanted]
    if not aims:
        raise Refused(Outcome.GRAD_MISSING, "no result depends on a differentiable input")
    outputs, directions = zip(*aims, strict=True)
    gradients = torch.autograd.grad(
        outputs, wanted, directions, allow_unused=True, materialize_grads=is_part
    )
    for gradient, slot in zip(gradients, slots, strict=True):
        if gradient is None:
            raise Refused(Outcome.GRAD_MISSING, f"{slot['name']} is None")
        _check(gradient, slot)
    return list(gradients)


def _return_inputs(order: dict[str, Any], memory: mmap.mmap) -> None:
    """Copy the inputs back, so that a changed one shows."""
    for spec in order["tensors"]:
        kept = _kept[spec["name"]]
        if not _holds(kept.block):
            raise Refused(Outcome.GUARD, NEIGHBOUR)
        if not spec["written"]:
            flat = _flat(memory, spec["offset"], spec["storage"], DTYPES[spec["dtype"]])
            flat.copy_(kept.storage)
