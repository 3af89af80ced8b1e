"""`contracts/<op>.yaml` as types: what an op promises, and what an edit of it weakens."""

# SPDX-License-Identifier: MIT

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from bot.document import Document, Place, Strict, parse, validate
from bot.errors import Fault, UserError
from bot.expression import ExpressionError, expression

__all__ = [
    "DTYPES", "FAMILIES", "LAYOUTS", "Arg", "Axis", "AxisValue", "Contract", "Edit", "EntryPoint",
    "Gradient", "Output", "edits", "load",
]  # fmt: skip

DTYPES = ("fp64", "fp32", "fp16", "bf16", "int32", "int64", "bool")
LAYOUTS = ("contiguous", "sliced", "transposed")
FAMILIES = ("normal", "tiny", "large", "zeros")
WORDS: dict[str, str] = {word: word for word in (*DTYPES, *LAYOUTS, *FAMILIES)}

Word = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_.-]{0,39}$")]
Identifier = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,39}$")]
Target = Annotated[str, Field(pattern=r"^[A-Za-z_][\w.]{0,119}:[A-Za-z_]\w{0,79}$")]
Literal_ = bool | int | float | str | None
Dtype = Literal["fp64", "fp32", "fp16", "bf16"]
Exactness = Literal["exact", "within-budget", "n/a"]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class Arg(Strict):
    """An argument: a tensor (`dims`) or a plain value (`value`). Texts are expressions.

    `constant`: the same object may be passed to every call. `written`: changed in place.
    """

    dims: list[Identifier] | None = None
    dtype: str = "dtype"
    values: str = "normal"
    layout: str = "contiguous"
    present: str = "True"
    value: Literal_ = None
    grad: bool = False
    constant: bool = False
    written: bool = False


class Output(Strict):
    """A returned tensor, in return order.

    `budget`: cap on the RMS error relative to the reference's RMS, by the cell's `dtype`. `tile`:
    how many steps of each axis a local error is taken over; axes left out are whole.
    """

    name: Identifier
    dims: list[Identifier]
    dtype: str = "dtype"
    budget: dict[Dtype, Positive]
    tile: dict[Identifier, Annotated[int, Field(ge=1)]] = {}


class Gradient(Strict):
    """The gradient of a differentiable argument; dims and dtype are the argument's."""

    budget: dict[Dtype, Positive]
    tile: dict[Identifier, Annotated[int, Field(ge=1)]] = {}


class AxisValue(Strict):
    """One value of an axis: the variables it sets, and how a real call shows that it has it."""

    set: dict[Identifier, Literal_]
    when: str


class Axis(Strict):
    """A coverage dimension; the first value is its default."""

    values: Annotated[dict[Word, AxisValue], Field(min_length=1)]


class EntryPoint(Strict):
    """A public function: how it is called, what it returns, what is compared with what."""

    target: Target
    reference: Target
    variables: dict[Identifier, Literal_]
    args: Annotated[dict[Identifier, Arg], Field(min_length=1)]
    outputs: Annotated[list[Output], Field(min_length=1)]
    gradients: dict[Identifier, Gradient] = {}
    axes: Annotated[dict[Identifier, Axis], Field(min_length=1)]
    constraints: list[str] = []
    listed: list[dict[Identifier, Word]] = []
    properties: dict[Literal["repeat", "causal", "linear", "permutation", "split"], Exactness] = {}
    lanes: Annotated[list[str], Field(min_length=1)]

    @model_validator(mode="after")
    def _reserved(self) -> EntryPoint:
        if not {"dtype", "backward"} <= set(self.variables):
            raise ValueError("variables must give defaults for `dtype` and `backward`")
        return self


class Contract(Strict):
    """The whole file. `bounds` are the largest supported sizes, by axis letter."""

    schema_id: Literal["fla-bot/contract@1"] = Field(alias="schema")
    op: Identifier
    status: Literal["draft", "enforced"]
    owners: list[str]
    sources: Annotated[list[str], Field(min_length=1)]
    bounds: dict[Identifier, Annotated[int, Field(ge=1, lt=2**63)]]
    entry_points: Annotated[dict[Identifier, EntryPoint], Field(min_length=1)]


def load(text: bytes, path: str) -> Contract:
    """Read and check a contract; UserError carries every fault with line and column."""
    document = parse(text, path)
    faults: list[Fault] = []
    contract = None
    try:
        contract = validate(document, Contract)
    except UserError as error:
        faults += error.faults
    # Expressions are checked in the plain data, so that a misspelt key does not hide a bad one.
    faults += _expression_faults(document)
    if contract is not None:
        faults += _reference_faults(contract, document)
    if faults or contract is None:
        raise UserError(faults=faults)
    return contract


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _expressions(document: Document) -> Iterator[tuple[Place, Any, set[str]]]:
    """Every expression of the file: where, text, and the names it may read."""
    for name, point in _mapping(_mapping(document.data).get("entry_points")).items():
        point, at = _mapping(point), ("entry_points", name)
        variables = {*_mapping(point.get("variables")), *WORDS}
        args = set(_mapping(point.get("args")))
        for arg, spec in _mapping(point.get("args")).items():
            for key in {"dtype", "values", "layout", "present"} & set(_mapping(spec)):
                yield (*at, "args", arg, key), spec[key], variables
            if isinstance(_mapping(spec).get("value"), str):
                yield (*at, "args", arg, "value"), spec["value"], variables
        for axis, values in _mapping(point.get("axes")).items():
            for value, spec in _mapping(_mapping(values).get("values")).items():
                place = (*at, "axes", axis, "values", value, "when")
                yield place, _mapping(spec).get("when", ""), args | set(WORDS)
        for i, text in enumerate(point.get("constraints") or []):
            yield (*at, "constraints", i), text, set(_mapping(point.get("axes")))


def _expression_faults(document: Document) -> Iterator[Fault]:
    for place, text, known in _expressions(document):
        if not isinstance(text, str) or not text:
            continue  # the schema has said so already
        try:
            unknown = sorted(expression(text).names - known)
        except ExpressionError as error:
            yield document.fault(place, str(error))
            continue
        if unknown:
            yield document.fault(place, f"`{text}`: unknown name `{unknown[0]}`")


def _reference_faults(contract: Contract, document: Document) -> Iterator[Fault]:
    """Names that point nowhere, once the file is well formed."""
    for name, point in contract.entry_points.items():
        at: Place = ("entry_points", name)
        yield from _arg_faults(point, at, document)
        yield from _axis_faults(point, at, document)


def _arg_faults(point: EntryPoint, at: Place, document: Document) -> Iterator[Fault]:
    for arg, spec in point.args.items():
        if (spec.dims is None) == ("value" not in spec.model_fields_set):
            message = f"`{arg}` must have either `dims` (a tensor) or `value`"
            yield document.fault((*at, "args", arg), message)
        yield from _letters(point, document, (*at, "args", arg), spec.dims or [])
        if spec.grad and arg not in point.gradients:
            message = f"`{arg}` is differentiable and has no entry in `gradients`"
            yield document.fault((*at, "args", arg), message)
    for i, output in enumerate(point.outputs):
        yield from _letters(point, document, (*at, "outputs", i), output.dims)
    for grad in point.gradients:
        if grad not in point.args or not point.args[grad].grad:
            message = f"`{grad}` is not a differentiable argument"
            yield document.fault((*at, "gradients", grad), message)


def _axis_faults(point: EntryPoint, at: Place, document: Document) -> Iterator[Fault]:
    for axis, values in point.axes.items():
        for value, setting in values.values.items():
            for unknown in sorted(set(setting.set) - set(point.variables)):
                place = (*at, "axes", axis, "values", value, "set", unknown)
                yield document.fault(place, f"`{unknown}` is not one of `variables`")
    for i, row in enumerate(point.listed):
        for axis, word in row.items():
            if axis not in point.axes or word not in point.axes[axis].values:
                place = (*at, "listed", i, axis)
                yield document.fault(place, f"no axis `{axis}` with a value `{word}`")


def _letters(
    point: EntryPoint, document: Document, place: Place, dims: list[str]
) -> Iterator[Fault]:
    for letter in dims:
        if letter not in point.variables:
            yield document.fault(place, f"axis letter `{letter}` is not one of `variables`")


class Edit(Strict):
    """One difference of two contracts: `weaker` needs a person's word, the others do not."""

    place: str
    kind: Literal["adds", "tighter", "weaker"]
    before: str
    after: str


def _lower_is_tighter(before: Any, after: Any) -> bool:
    return bool(after < before)


def _higher_is_tighter(before: Any, after: Any) -> bool:
    return bool(after > before)


_ORDER = {"n/a": 0, "within-budget": 1, "exact": 2, "draft": 0, "enforced": 1}

# Where a changed value has a direction. Everything that is not listed weakens: fail closed.
_DIRECTIONS: tuple[tuple[tuple[str, ...], Callable[[Any, Any], bool]], ...] = (
    (("entry_points", "*", "outputs", "*", "budget", "*"), _lower_is_tighter),
    (("entry_points", "*", "gradients", "*", "budget", "*"), _lower_is_tighter),
    (("bounds", "*"), _higher_is_tighter),
    (("entry_points", "*", "properties", "*"), lambda a, b: _ORDER[b] > _ORDER[a]),
    (("status",), lambda a, b: _ORDER[b] > _ORDER[a]),
)
# What a contract may gain without anybody's word: more promises, more places that prove them.
_ADDITIONS: tuple[tuple[str, ...], ...] = (
    ("entry_points", "*"),
    ("entry_points", "*", "axes", "*", "values", "*"),
    ("entry_points", "*", "listed", "*"),
    ("entry_points", "*", "lanes", "*"),
    ("entry_points", "*", "properties", "*"),
    ("entry_points", "*", "variables", "*"),
    ("sources", "*"),
    ("bounds", "*"),
)


def _fits(place: tuple[str, ...], pattern: tuple[str, ...]) -> bool:
    pairs = zip(place, pattern, strict=False)
    return len(place) == len(pattern) and all(want in ("*", part) for part, want in pairs)


def edits(trusted: Contract, proposed: Contract) -> list[Edit]:
    """Every difference, with its direction."""
    before, after = (c.model_dump(mode="json", by_alias=True) for c in (trusted, proposed))
    return list(_differences(_keyed(before), _keyed(after), ()))


def _keyed(value: Any) -> Any:
    """Lists as mappings, so that an inserted item is one addition and not many changes."""
    if isinstance(value, dict):
        return {key: _keyed(item) for key, item in value.items()}
    if not isinstance(value, list):
        return value
    if value and all(isinstance(item, dict) and "name" in item for item in value):
        return {item["name"]: _keyed(item) for item in value}
    return {str(item): _keyed(item) for item in value}


def _differences(before: Any, after: Any, place: tuple[str, ...]) -> Iterator[Edit]:
    if before == after:
        return
    if isinstance(before, dict) and isinstance(after, dict):
        shared = [key for key in after if key in before]
        if [key for key in before if key in after] != shared and place[-1:] == ("outputs",):
            yield Edit(place=".".join(place), kind="weaker", before="order", after="other order")
        for key in [*before, *(key for key in after if key not in before)]:
            yield from _one(before.get(key, _ABSENT), after.get(key, _ABSENT), (*place, key))
        return
    yield from _one(before, after, place)


_ABSENT = object()


def _one(before: Any, after: Any, place: tuple[str, ...]) -> Iterator[Edit]:
    if before is _ABSENT:
        additive = any(_fits(place, pattern) for pattern in _ADDITIONS)
        kind: Literal["adds", "tighter", "weaker"] = "adds" if additive else "weaker"
    elif after is _ABSENT:
        # A dropped constraint promises more cells; everything else that goes is a promise less.
        kind = "adds" if place[-2:-1] == ("constraints",) else "weaker"
    elif isinstance(before, dict) and isinstance(after, dict):
        yield from _differences(before, after, place)
        return
    elif before == after:
        return
    else:
        tighter = any(_fits(place, p) and check(before, after) for p, check in _DIRECTIONS)
        kind = "tighter" if tighter else "weaker"
    show = ["" if side is _ABSENT else str(side)[:80] for side in (before, after)]
    yield Edit(place=".".join(place), kind=kind, before=show[0], after=show[1])
