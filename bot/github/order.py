"""What a lane is told on its own machine: the commits, the plan over them, and which lane it is."""

# SPDX-License-Identifier: MIT

from __future__ import annotations

from pathlib import Path

from pydantic import ValidationError

from bot.check import Request
from bot.document import Strict
from bot.errors import UserError
from bot.files import write_whole
from bot.github.case import Case
from bot.model import Plan

__all__ = ["Order", "read_order", "write_order"]

MAX_BYTES = 8 << 20


class Order(Strict):
    """One lane of one plan."""

    lane: str
    plan: Plan

    def request(self) -> Request:
        """The change that the plan was made of."""
        return Request(base=self.plan.base, head=self.plan.head, trusted=self.plan.trusted)


def write_order(path: Path, case: Case, lane: str) -> None:
    """Leave the order for whoever runs the lane."""
    order = Order(lane=lane, plan=case.report.plan)
    write_whole(path, order.model_dump_json().encode())


def read_order(path: Path) -> Order:
    """The order; a UserError where it is none, or its plan is not what its hash says."""
    try:
        if path.stat().st_size > MAX_BYTES:
            raise UserError(f"{path} is larger than {MAX_BYTES} bytes")
        found = Order.model_validate_json(path.read_bytes())
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}") from error
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(str(part) for part in first["loc"])
        raise UserError(f"{path}: {place}: {first['msg']}") from error
    if found.plan.compute_hash() != found.plan.hash:
        raise UserError(f"{path}: the plan's hash is not that of its content")
    return found
