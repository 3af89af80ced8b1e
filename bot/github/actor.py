"""Who acts, and what an event tells it beside what GitHub says."""

# SPDX-License-Identifier: MIT

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from bot.github.case import Case, LaneResult, code_digest
from bot.github.client import Client
from bot.github.ledger import Ledger, Shown
from bot.github.operate import EXECUTOR, Mode
from bot.github.publish import own_comments
from bot.github.queue import QUEUE, QueueBranch, parse_branch
from bot.github.records import Run
from bot.github.situation import Decision

__all__ = ["NO_HINT", "OPEN", "Bot", "Hint", "is_waiting"]

RECENT = timedelta(hours=36)
OPEN = ("queued", "in_progress", "pending")
# How the title of a red check begins, whose plan is still asked for.
UNPLANNED = "infra: no plan was made"


@dataclass(frozen=True, slots=True)
class Hint:
    """What an event adds: a plan or why there is none, a lane's result.

    `fault_of`: the head that the fault is of, empty where nobody knows. `pusher`: who has pushed
    which head (`pushed`), and after which one (`before`). `elsewhere`: what failed on another head.
    `doubt`: a word may be gone.
    """

    fresh: Case | None = None
    fault: str = ""
    fault_of: str = ""
    pusher: str = ""
    pushed: str = ""
    before: str = ""
    result: LaneResult | None = None
    elsewhere: LaneResult | None = None
    doubt: bool = False


NO_HINT = Hint()


def is_waiting(shown: Shown | None) -> bool:
    """Whether what is shown of a merge group is not the last word on it."""
    return shown is None or shown.state in OPEN or shown.title.startswith(UNPLANNED)


class Bot:
    """Who acts, where the ledger stands, and which switches are set.

    `check_books`: whether to look if the contracts have changed at the base though nothing is to
    be made green.
    """

    def __init__(
        self,
        client: Client,
        *,
        app: bool,
        mode: Mode,
        record: Callable[[Decision], None] = lambda _: None,
        code: str = "",
        check_books: bool = False,
    ) -> None:
        self.client, self.mode, self.record = client, mode, record
        self.check_books = check_books
        self.ledger = Ledger(client, app=app)
        self.code = code or code_digest()

    def stored(self, number: int) -> str:
        """Our comment, which holds the texts of a ledger of statuses."""
        if self.ledger.app:
            return ""
        own = own_comments(self.client.comments(number), self.client.identity.login)
        return own[0].body if own else ""

    def now(self) -> datetime:
        """The time."""
        return datetime.fromtimestamp(self.client.connection.now(), UTC)

    def queue(self) -> list[QueueBranch]:
        """The branches of all merge groups."""
        refs = self.client.refs(f"heads/{QUEUE}/")
        named = (parse_branch(ref.ref.removeprefix("refs/heads/"), ref.sha) for ref in refs)
        return [branch for branch in named if branch is not None]

    def runs(self) -> list[Run]:
        """The runs of the executor of the last days, whoever started them."""
        since = self.now() - RECENT
        created = f">={since:%Y-%m-%dT%H:%M:%SZ}"
        return self.client.runs(EXECUTOR, event="workflow_dispatch", created=created)
