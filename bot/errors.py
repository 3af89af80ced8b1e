"""The three families of failure: the user's, the world's, and (anything else) our own bugs."""

# SPDX-License-Identifier: MIT

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

__all__ = ["Fault", "InfraError", "UserError"]


@dataclass(frozen=True, slots=True, order=True)
class Fault:
    """One thing that is wrong, and where; lines and columns count from 1, 0 means the whole."""

    path: str
    line: int
    column: int
    message: str

    def __str__(self) -> str:
        """`path:line:column: message`, without the parts that are unknown."""
        place = ":".join(str(part) for part in (self.path, self.line, self.column) if part)
        return f"{place}: {self.message}" if place else self.message


class UserError(Exception):
    """The change, a contract or the command is wrong: exit 1, all faults at once."""

    def __init__(self, *messages: str, faults: Iterable[Fault] = ()) -> None:
        self.faults = [Fault("", 0, 0, message) for message in messages] + sorted(faults)
        super().__init__("\n".join(str(fault) for fault in self.faults))


class InfraError(Exception):
    """Git, GitHub, a runner or a toolchain is down: exit 3, worth another try."""
