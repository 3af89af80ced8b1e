"""`contracts/<op>.yaml` as types: what an op promises, and every fault of the file."""

# SPDX-License-Identifier: MIT

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Annotated, Any, Literal

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from pydantic import Field, model_validator

from bot.document import Document, Place, Strict, parse, validate
from bot.errors import Fault, UserError
from bot.expression import ExpressionError, expression
from bot.globs import glob_fault
from bot.model import digest

__all__ = [
    "PROPERTIES", "Arg", "Axis", "AxisValue", "Benchmark", "Causal", "Contract", "Dispatch",
    "Dtype", "EntryPoint", "Exactness", "Gradient", "Linear", "Output", "Packed", "Permutation",
    "Properties", "Property", "Split", "load",
]  # fmt: skip

DTYPES = ("fp64", "fp32", "fp16", "bf16", "int32", "int64", "bool")
LAYOUTS = ("contiguous", "sliced", "transposed")
# How values are drawn; bot/device/inputs.py says what each means.
FAMILIES = (
    *("normal", "tiny", "large", "zeros", "ones", "unit", "direction", "collinear", "dominant"),
    *("decay", "slow_decay", "fast_decay", "safe_decay", "no_decay", "growth", "mixed_decay"),
    *("beta", "beta_tiny", "beta_one", "logit", "log_scale", "state"),
)
WORDS: dict[str, str] = {word: word for word in (*DTYPES, *LAYOUTS, *FAMILIES)}

# Finding a covering array takes time that grows with the pairs; contracts may be hostile.
MAX_PAIRS = 20_000

# ASCII classes and a separate length: counted repetitions of \w take the validator 70 ms to build.
Word = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_.-]*$", max_length=40)]
Identifier = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$", max_length=40)]
Dotted = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_.]*$", max_length=120)]
Target = Annotated[
    str,
    Field(pattern=r"^[A-Za-z_][A-Za-z0-9_.]*:[A-Za-z_][A-Za-z0-9_]*$", max_length=200),
]
Plain = bool | int | float | str | None
Dtype = Literal["fp64", "fp32", "fp16", "bf16"]
Exactness = Literal["exact", "within-budget", "n/a"]
Held = Exactness | dict[Dtype, Exactness]
Property = Literal["repeat", "causal", "linear", "permutation", "split"]
# Those that take calls of their own; `repeat` is checked in every call.
PROPERTIES: tuple[Property, ...] = ("causal", "linear", "permutation", "split")
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Tile = dict[Identifier, Annotated[int, Field(ge=1)]]
# What a draft may leave open; an enforced contract has all of it.
Open = Literal["reference", "args", "outputs", "axes", "lanes", "signature", "budgets"]


class Arg(Strict):
    """An argument: a tensor (`dims`) or a plain value (`value`). Texts are expressions.

    `dims`: letters; an axis whose letter is None is not there. `content`: the tensor's elements,
    for index tensors. `constant`: the same object may be passed to every call. `written`: changed
    in place, and then compared like an output. `host`: stays in the host's memory.
    """

    dims: list[Identifier] | None = None
    dtype: str = "dtype"
    values: str = "normal"
    layout: str = "contiguous"
    content: str | None = None
    present: str = "True"
    value: Plain = None
    grad: bool = False
    constant: bool = False
    written: bool = False
    host: bool = False


class Output(Strict):
    """A result. They stand in the order of return; `written` ones are arguments and come last.

    `budget`: cap on the RMS error relative to the reference's RMS, by the cell's `dtype`. `tile`:
    how many steps of each axis a local error is taken over; axes left out are whole. `present`:
    whether it is a tensor, and not None; `returned`: whether it stands in the result at all.
    `alias`: arguments that are returned themselves in its place, and when.
    """

    name: Identifier
    dims: list[Identifier]
    dtype: str = "dtype"
    present: str = "True"
    returned: str = "True"
    alias: dict[Identifier, str] = {}
    budget: dict[Dtype, Positive]
    tile: Tile = {}


class Gradient(Strict):
    """The gradient of a differentiable argument; dims and dtype are the argument's."""

    budget: dict[Dtype, Positive]
    tile: Tile = {}


class AxisValue(Strict):
    """One value of an axis: the variables it sets, and how a real call shows that it has it."""

    set: dict[Identifier, Plain]
    when: str


class Axis(Strict):
    """A coverage dimension; the first value is its default."""

    values: Annotated[dict[Word, AxisValue], Field(min_length=1)]


class Causal(Strict):
    """What comes from a token on does not change the outputs before it.

    `axis`: the letter of time. `bounds`: the argument that holds the starts of packed sequences.
    `step`: tokens a chunk, a number or an expression. `within`: arguments that may change in the
    token's own chunk; from the next chunk on all change, to NaN too.
    """

    exactness: Held
    axis: Identifier
    step: Annotated[int, Field(ge=1)] | str = 1
    within: Annotated[list[Identifier], Field(min_length=1)]
    bounds: Identifier | None = None


class Linear(Strict):
    """Twice these inputs give twice these outputs.

    Twice the cotangents give twice the gradients, whatever an op computes, so both are asked for in
    one call: the gradient of one of `inputs` doubles, all others grow by four.
    """

    exactness: Held
    inputs: Annotated[list[Identifier], Field(min_length=1)]
    outputs: Annotated[list[Identifier], Field(min_length=1)]


class Permutation(Strict):
    """Permuting along axes of the inputs permutes the results.

    Each list is permuted as one. The size of a letter is a multiple of that of the letter before
    it: a step of that one owns a block of this one, and blocks stay whole (value heads of a head).
    """

    exactness: Held
    axes: Annotated[list[Annotated[list[Identifier], Field(min_length=1)]], Field(min_length=1)]


class Packed(Strict):
    """How one packed sequence is called alone: `axis` counts sequences, `bounds` starts them."""

    bounds: Identifier
    axis: Identifier
    set: dict[Identifier, Plain]


class Split(Strict):
    """A run equals two runs, cut at a chunk edge, where the first hands its state to the second.

    `length`: the variable that gives `axis` its size. `carry`: output of the first part, argument
    of the second. `first`, `rest`: variables of the parts. Packed sequences are run one by one.
    """

    exactness: Held
    axis: Identifier
    length: Identifier
    step: Annotated[int, Field(ge=1)] | str = 1
    carry: Annotated[dict[Identifier, Identifier], Field(min_length=1)]
    first: dict[Identifier, Plain] = {}
    rest: dict[Identifier, Plain] = {}
    packed: Packed | None = None


class Properties(Strict):
    """Relations between calls that need no tolerance, or only the budget: what a machine tests.

    How well each holds is one word, or one for each dtype. `repeat`: the same call, the same bits.
    """

    repeat: Held | None = None
    causal: Causal | None = None
    linear: Linear | None = None
    permutation: Permutation | None = None
    split: Split | None = None

    def exactness(self, name: Property, dtype: str) -> Exactness:
        """How well a property holds in a dtype; `n/a` where nothing is promised."""
        spec = getattr(self, name)
        held = spec if spec is None or name == "repeat" else spec.exactness
        found: Exactness = held.get(dtype, "n/a") if isinstance(held, dict) else held or "n/a"
        return found


class Benchmark(Strict):
    """A timed call: axis values, then variables that override what they set.

    `margin` names a margin of the policy, or `shown` for a row that never gates. `bytes` and
    `flops` are expressions: what the call must move and compute at least.
    """

    axes: dict[Identifier, Word] = {}
    set: dict[Identifier, Plain] = {}
    margin: Literal["chunked", "memory_bound", "shown"]
    bytes: str
    flops: str


class Verifier(Strict):
    """What a backend's verifier must say to a call that a partial cell stands for."""

    accepts: list[dict[Identifier, Word]] = []
    rejects: list[dict[Identifier, Word]] = []


class Backend(Strict):
    """Another implementation. `variable`: the environment variable that turns it on or off."""

    variable: str = ""
    priority: int = 0
    kernels: list[Identifier] = []
    verifier: Verifier = Verifier()


class Dispatch(Strict):
    """Which backends may serve the operation, and what happens if none does.

    `kernels`: the kernels that do the work where no backend takes over. Each must be launched by
    some cell and must matter to the results.
    """

    operation: Dotted
    kernels: list[Identifier] = []
    backends: dict[Identifier, Backend] = {}
    fallback: Literal["default", "error"] = "default"


class Compatibility(Strict):
    """What users rely on: the signature as Python writes it, and the versions that must work."""

    signature: str
    torch: str = ""
    triton: str = ""


class EntryPoint(Strict):
    """A public function: how it is called, what it returns, what is compared with what.

    `derived`: variables computed from others, in this order. `open`: what is not known yet; only
    a draft may leave something open.
    """

    target: Target
    reference: Target | None = None
    compatibility: Compatibility | None = None
    variables: dict[Identifier, Plain] = {}
    derived: dict[Identifier, str] = {}
    args: dict[Identifier, Arg] = {}
    outputs: list[Output] = []
    gradients: dict[Identifier, Gradient] = {}
    axes: dict[Identifier, Axis] = {}
    constraints: list[str] = []
    listed: list[dict[Identifier, Word]] = []
    properties: Properties = Properties()
    dispatch: Dispatch | None = None
    benchmarks: dict[Word, Benchmark] = {}
    lanes: list[str] = []
    open: list[Open] = []

    @model_validator(mode="after")
    def _closed(self) -> EntryPoint:
        if self.open:
            return self
        missing = [name for name in _NEEDED if not getattr(self, name)]
        if missing:
            names = ", ".join(f"`{name}`" for name in missing)
            raise ValueError(f"{names} missing: fill in, or list in `open` of a draft")
        if not {"dtype", "backward"} <= set(self.variables):
            raise ValueError("variables must give defaults for `dtype` and `backward`")
        return self


_NEEDED = ("reference", "args", "outputs", "axes", "lanes")


class Contract(Strict):
    """The whole file. `bounds` are the largest supported sizes, by axis letter."""

    schema_id: Literal["fla-bot/contract@1"] = Field(alias="schema")
    op: Identifier
    status: Literal["draft", "enforced"]
    owners: list[str] = []
    sources: Annotated[list[str], Field(min_length=1)]
    tests: list[str] = []
    bounds: dict[Identifier, Annotated[int, Field(ge=1, lt=2**63)]] = {}
    entry_points: Annotated[dict[Identifier, EntryPoint], Field(min_length=1)]

    @cached_property
    def fingerprint(self) -> str:
        """Names the content; equal contracts have equal ones."""
        return digest(self)

    @model_validator(mode="after")
    def _enforced(self) -> Contract:
        vague = [name for name, point in self.entry_points.items() if point.open]
        if self.status == "enforced" and vague:
            raise ValueError(f"an enforced contract leaves nothing open; {vague[0]} does")
        return self


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


def _items(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _expressions(document: Document) -> Iterator[tuple[Place, Any, set[str]]]:
    """Every expression of the file: where, text, and the names it may read."""
    for name, raw in _mapping(_mapping(document.data).get("entry_points")).items():
        point, at = _mapping(raw), ("entry_points", name)
        derived = _mapping(point.get("derived"))
        known = {*_mapping(point.get("variables")), *WORDS}
        for variable, text in derived.items():
            yield (*at, "derived", variable), text, set(known)
            known.add(variable)
        yield from _value_expressions(point, at, known)
        for key, spec in _mapping(point.get("properties")).items():
            if "step" in _mapping(spec):
                yield (*at, "properties", key, "step"), spec["step"], known
        args = set(_mapping(point.get("args")))
        for axis, values in _mapping(point.get("axes")).items():
            for value, spec in _mapping(_mapping(values).get("values")).items():
                place = (*at, "axes", axis, "values", value, "when")
                yield place, _mapping(spec).get("when", ""), args | set(WORDS)
        for i, text in enumerate(_items(point.get("constraints"))):
            yield (*at, "constraints", i), text, set(_mapping(point.get("axes")))


def _value_expressions(
    point: Mapping[str, Any], at: Place, known: set[str]
) -> Iterator[tuple[Place, Any, set[str]]]:
    for arg, spec in _mapping(point.get("args")).items():
        for key in ("dtype", "values", "layout", "present", "content", "value"):
            if isinstance(_mapping(spec).get(key), str):
                yield (*at, "args", arg, key), spec[key], known
    for i, output in enumerate(_items(point.get("outputs"))):
        for key in {"dtype", "present", "returned"} & set(_mapping(output)):
            yield (*at, "outputs", i, key), output[key], known
        for arg, text in _mapping(_mapping(output).get("alias")).items():
            yield (*at, "outputs", i, "alias", arg), text, known
    for row, spec in _mapping(point.get("benchmarks")).items():
        for key in {"bytes", "flops"} & set(_mapping(spec)):
            yield (*at, "benchmarks", row, key), spec[key], known


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
            own = known - set(WORDS) if known >= set(WORDS) else known  # an axis may be called so
            names = ", ".join(sorted(own)) or "none are declared"
            reads = _READS.get(
                place[-1 if isinstance(place[-1], str) else -2], "it reads variables"
            )
            message = f"`{text}`: unknown name `{unknown[0]}`; {reads}: {names}"
            yield document.fault(place, message)


# What is measured in a real call knows no variables; what builds a call knows no arguments.
_READS: dict[str | int, str] = {
    "when": "a predicate reads the arguments of a call",
    "constraints": "a constraint reads axes",
}


def _reference_faults(contract: Contract, document: Document) -> Iterator[Fault]:
    """Names that point nowhere, once the file is well formed."""
    for key in ("sources", "tests"):
        for i, glob in enumerate(getattr(contract, key)):
            if fault := glob_fault(glob):
                yield document.fault((key, i), fault)
    for name, point in contract.entry_points.items():
        at: Place = ("entry_points", name)
        for word in sorted({*point.variables, *point.derived} & set(WORDS)):
            yield document.fault((*at, "variables", word), f"`{word}` is a word of the grammar")
        yield from _arg_faults(point, at, document)
        yield from _result_faults(point, at, document)
        yield from _axis_faults(point, at, document)
        yield from _row_faults(point, at, document)
        yield from _property_faults(point, (*at, "properties"), document)
        if point.compatibility:
            yield from _compatibility_faults(point.compatibility, at, document)


def _arg_faults(point: EntryPoint, at: Place, document: Document) -> Iterator[Fault]:
    for arg, spec in point.args.items():
        place = (*at, "args", arg)
        if (spec.dims is None) == ("value" not in spec.model_fields_set):
            yield document.fault(place, f"`{arg}` must have either `dims` (a tensor) or `value`")
        yield from _letters(point, document, place, spec.dims or [])
        if spec.grad and arg not in point.gradients:
            message = f"`{arg}` is differentiable and has no entry in `gradients`"
            yield document.fault(place, message)
        if spec.written and not any(output.name == arg for output in point.outputs):
            yield document.fault(place, f"`{arg}` is written and is not one of `outputs`")


def _result_faults(point: EntryPoint, at: Place, document: Document) -> Iterator[Fault]:
    names = [output.name for output in point.outputs]
    for i, name in enumerate(names):
        if name in names[:i]:
            yield document.fault((*at, "outputs", i), f"output `{name}` stands twice")
    for i, output in enumerate(point.outputs):
        yield from _letters(point, document, (*at, "outputs", i), output.dims)
        for arg in sorted(set(output.alias) - set(point.args)):
            yield document.fault((*at, "outputs", i, "alias", arg), f"`{arg}` is no argument")
        for letter in sorted(set(output.tile) - set(output.dims)):
            place = (*at, "outputs", i, "tile", letter)
            yield document.fault(place, f"`{letter}` is not one of the output's `dims`")
    for grad in point.gradients:
        if grad not in point.args or not point.args[grad].grad:
            message = f"`{grad}` is not a differentiable argument"
            yield document.fault((*at, "gradients", grad), message)


def _axis_faults(point: EntryPoint, at: Place, document: Document) -> Iterator[Fault]:
    sizes = [len(axis.values) for axis in point.axes.values()]
    pairs = (sum(sizes) ** 2 - sum(size**2 for size in sizes)) // 2
    if pairs > MAX_PAIRS:
        message = f"{pairs} pairs of axis values; the limit is {MAX_PAIRS}"
        yield document.fault((*at, "axes"), message)
    for axis, values in point.axes.items():
        for value, setting in values.values.items():
            for unknown in sorted(set(setting.set) - set(point.variables)):
                place = (*at, "axes", axis, "values", value, "set", unknown)
                yield document.fault(place, _no_variable(unknown, point))


def _no_variable(name: str, point: EntryPoint) -> str:
    return f"`{name}` is not one of `variables`, which are {', '.join(point.variables)}"


def _row_faults(point: EntryPoint, at: Place, document: Document) -> Iterator[Fault]:
    """Partial cells must name axes and values that exist."""
    rows: list[tuple[Place, Mapping[str, str]]] = [
        ((*at, "listed", i), row) for i, row in enumerate(point.listed)
    ]
    rows += [((*at, "benchmarks", name, "axes"), b.axes) for name, b in point.benchmarks.items()]
    for name, backend in point.dispatch.backends.items() if point.dispatch else ():
        for side in ("accepts", "rejects"):
            place = (*at, "dispatch", "backends", name, "verifier", side)
            cells = getattr(backend.verifier, side)
            rows += [((*place, i), row) for i, row in enumerate(cells)]
    for place, row in rows:
        for axis, word in row.items():
            if axis not in point.axes or word not in point.axes[axis].values:
                spec = point.axes.get(axis)
                known = f"its values are {', '.join(spec.values)}" if spec else "no such axis"
                message = f"no axis `{axis}` with a value `{word}`: {known}"
                yield document.fault((*place, axis), message)
    for name, benchmark in point.benchmarks.items():
        for unknown in sorted(set(benchmark.set) - set(point.variables)):
            place = (*at, "benchmarks", name, "set", unknown)
            yield document.fault(place, _no_variable(unknown, point))


def _property_faults(point: EntryPoint, at: Place, document: Document) -> Iterator[Fault]:
    """Names in the properties that point nowhere, and what could not be called."""
    args = {arg for arg, spec in point.args.items() if spec.dims is not None}
    outputs = {output.name for output in point.outputs}
    for place, name, kind in _property_names(point.properties):
        if name not in (args if kind == "tensor" else outputs):
            yield document.fault((*at, *place), f"`{name}` is no {kind} of this entry point")
    for place, letters in _property_letters(point.properties):
        yield from _letters(point, document, (*at, *place), letters)
    linear = point.properties.linear
    if linear and point.gradients and outputs - set(linear.outputs):
        missing = min(outputs - set(linear.outputs))
        message = f"`{missing}` is not linear, and gradients then do not scale as they should"
        yield document.fault((*at, "linear", "outputs"), message)
    if split := point.properties.split:
        settings: list[tuple[Place, Mapping[str, Plain]]] = [
            (("first",), split.first),
            (("rest",), split.rest),
            (("length",), {split.length: None}),
            (("packed", "set"), split.packed.set if split.packed else {}),
        ]
        for key, setting in settings:
            for unknown in sorted(set(setting) - set(point.variables)):
                place = (*at, "split", *key, unknown)
                yield document.fault(place, _no_variable(unknown, point))


def _property_names(spec: Properties) -> Iterator[tuple[Place, str, str]]:
    """Arguments (`tensor`) and outputs that properties name, and where."""
    if spec.causal:
        for i, arg in enumerate(spec.causal.within):
            yield ("causal", "within", i), arg, "tensor"
        if spec.causal.bounds:
            yield ("causal", "bounds"), spec.causal.bounds, "tensor"
    if spec.linear:
        for i, arg in enumerate(spec.linear.inputs):
            yield ("linear", "inputs", i), arg, "tensor"
        for i, output in enumerate(spec.linear.outputs):
            yield ("linear", "outputs", i), output, "output"
    if spec.split:
        for output, arg in spec.split.carry.items():
            yield ("split", "carry", output), output, "output"
            yield ("split", "carry", output), arg, "tensor"
        if spec.split.packed:
            yield ("split", "packed", "bounds"), spec.split.packed.bounds, "tensor"


def _property_letters(spec: Properties) -> Iterator[tuple[Place, list[str]]]:
    if spec.causal:
        yield ("causal", "axis"), [spec.causal.axis]
    for i, group in enumerate(spec.permutation.axes if spec.permutation else ()):
        yield ("permutation", "axes", i), group
    if spec.split:
        yield ("split", "axis"), [spec.split.axis]
        if spec.split.packed:
            yield ("split", "packed", "axis"), [spec.split.packed.axis]


def _compatibility_faults(spec: Compatibility, at: Place, document: Document) -> Iterator[Fault]:
    if parameters(spec.signature) is None:
        place = (*at, "compatibility", "signature")
        yield document.fault(place, "not the parameter list of a Python function")
    for key in ("torch", "triton"):
        try:
            SpecifierSet(getattr(spec, key))
        except InvalidSpecifier as error:
            yield document.fault((*at, "compatibility", key), str(error))


def parameters(signature: str) -> ast.arguments | None:
    """A parameter list as Python reads it, or None."""
    try:
        tree = ast.parse(f"def f({signature}): ...")
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    only = tree.body[0] if len(tree.body) == 1 else None
    return only.args if isinstance(only, ast.FunctionDef) else None


def _letters(
    point: EntryPoint, document: Document, place: Place, dims: list[str]
) -> Iterator[Fault]:
    for letter in dims:
        if letter not in point.variables and letter not in point.derived:
            message = f"axis letter `{letter}` has no size; give it one in `variables`"
            yield document.fault(place, message)
