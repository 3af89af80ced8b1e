"""What pytest with our plugin says of a run: lines of JSON, read as hostile input."""

# SPDX-License-Identifier: MIT

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from pydantic import Field, TypeAdapter, ValidationError

from bot.cells import TensorView
from bot.document import Strict
from bot.wire import TORCH_NAMES

__all__ = ["MAX_LINE", "CallLine", "FileLine", "Line", "Recording", "TestLine", "parse"]

MAX_LINE = 64 << 10
MAX_LINES, MAX_TESTS, MAX_CALLS = 150_000, 20_000, 50_000
_DTYPES = {f"torch.{word}": name for name, word in TORCH_NAMES.items()}

TestId = Annotated[str, Field(min_length=1, max_length=1000)]
Name = Annotated[str, Field(max_length=200)]
Size = Annotated[int, Field(ge=-(2**62), le=2**62)]
Outcome = Literal["passed", "failed", "error", "skipped"]


class CollectedLine(Strict):
    """Tests that will run, unless the host chooses among them."""

    kind: Literal["collected"]
    tests: Annotated[list[TestId], Field(max_length=1000)]


class FileLine(Strict):
    """A file or folder of which no test could be collected; `module`: an import it misses."""

    kind: Literal["file"]
    path: Annotated[str, Field(max_length=1000)]
    outcome: Literal["error", "skipped"]
    note: Annotated[str, Field(max_length=400)] = ""
    module: Name | None = None


class ReadyLine(Strict):
    """All is collected; a host that wants to choose answers now."""

    kind: Literal["ready"]


class BeginLine(Strict):
    """A test that starts."""

    kind: Literal["begin"]
    test: TestId


class TestLine(Strict):
    """How a test ended."""

    kind: Literal["test"]
    test: TestId
    outcome: Outcome
    seconds: Annotated[float, Field(ge=0, le=1e9, allow_inf_nan=False)]
    note: Annotated[str, Field(max_length=400)] = ""


class TensorLine(Strict):
    """A tensor argument, as far as predicates may read it."""

    shape: Annotated[list[Size], Field(max_length=16)]
    strides: Annotated[list[Size], Field(max_length=16)]
    dtype: Name
    requires_grad: bool

    def view(self) -> TensorView:
        """It in the words of contracts."""
        dtype = _DTYPES.get(self.dtype, self.dtype)
        return TensorView(tuple(self.shape), tuple(self.strides), dtype, self.requires_grad)


class OtherLine(Strict):
    """An argument that is neither a tensor nor plain; only its type is known."""

    other: Name


Argument = bool | Size | Annotated[float, Field(allow_inf_nan=False)] | Name | None


class CallLine(Strict):
    """Calls of a target with the same arguments by one test; `backward`: autograd came back."""

    kind: Literal["call"]
    test: TestId
    target: Name
    arguments: Annotated[dict[Name, Argument | TensorLine | OtherLine], Field(max_length=200)]
    backward: bool

    def values(self) -> dict[str, Any]:
        """The arguments as predicates read them."""
        return {name: _value(value) for name, value in self.arguments.items()}


def _value(value: Argument | TensorLine | OtherLine) -> Any:
    if isinstance(value, TensorLine):
        return value.view()
    # Nothing that a predicate compares with, and not None either.
    return f"<{value.other}>" if isinstance(value, OtherLine) else value


class EndLine(Strict):
    """The run is over; `strays`: packages under test that were imported from somewhere else."""

    kind: Literal["end"]
    status: Annotated[int, Field(ge=0, le=255)]
    strays: Annotated[list[Name], Field(max_length=20)] = []


Line = CollectedLine | FileLine | ReadyLine | BeginLine | TestLine | CallLine | EndLine
_LINES: TypeAdapter[Line] = TypeAdapter(Annotated[Line, Field(discriminator="kind")])


def parse(text: bytes) -> Line:
    """One line; ValueError for anything else."""
    if len(text) > MAX_LINE:
        raise ValueError(f"a line is longer than {MAX_LINE} bytes")
    try:
        return _LINES.validate_json(text)
    except ValidationError as error:
        raise ValueError("a line breaks its form") from error


@dataclass(slots=True)
class Recording:
    """A run of tests as far as it was told. `running`: a test that has not ended.

    `loose`: several processes wrote, so that lines may stand in any order.
    """

    loose: bool = False

    collected: dict[str, None] = field(default_factory=dict)
    files: dict[str, FileLine] = field(default_factory=dict)
    tests: dict[str, TestLine] = field(default_factory=dict)
    calls: list[CallLine] = field(default_factory=list)
    running: str = ""
    ready: bool = False
    end: EndLine | None = None
    lines: int = 0

    def add(self, line: Line) -> str:
        """Take a line in; what is wrong with it where it cannot be."""
        self.lines += 1
        if self.lines > MAX_LINES:
            return f"more than {MAX_LINES} lines"
        if self.end is not None and not self.loose:
            return "a line after the end"
        match line:
            case CollectedLine():
                return self._collect(line)
            case FileLine():
                self.files[line.path] = line
                return "more files than tests may be" if len(self.files) > MAX_TESTS else ""
            case ReadyLine():
                self.ready = True
            case EndLine():
                self.end = line
            case _:
                return self._run(line)
        return ""

    def _collect(self, line: CollectedLine) -> str:
        if self.ready and not self.loose:
            return "tests are collected after the first one ran"
        self.collected.update(dict.fromkeys(line.tests))
        return f"more than {MAX_TESTS} tests" if len(self.collected) > MAX_TESTS else ""

    def _run(self, line: BeginLine | TestLine | CallLine) -> str:
        if not self.loose and not (self.ready and line.test in self.collected):
            return f"it names a test that was not collected: {line.test[:200]}"
        if line.test in self.tests:
            return f"a test is told twice: {line.test[:200]}"
        if isinstance(line, BeginLine):
            again, self.running = self.running, line.test
            return (
                f"a test begins in another: {line.test[:200]}" if again and not self.loose else ""
            )
        if isinstance(line, CallLine):
            self.calls.append(line)
            return f"more than {MAX_CALLS} calls" if len(self.calls) > MAX_CALLS else ""
        self.tests[line.test], self.running = line, ""
        return ""

    def passed_calls(self) -> Iterable[CallLine]:
        """Calls that tests which passed have made."""
        for call in self.calls:
            ended = self.tests.get(call.test)
            if ended is not None and ended.outcome == "passed":
                yield call
