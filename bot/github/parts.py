"""What is read of a pull request for a merge group that merges it, and of who made its head."""

# SPDX-License-Identifier: MIT

from __future__ import annotations

from datetime import datetime

from bot.github.approvals import MAX_COMMITS
from bot.github.case import Merged, Standing
from bot.github.client import Client
from bot.github.ledger import PREVIEW, READY, Ledger
from bot.github.publish import own_comments
from bot.github.records import Branch, Comment, Pull
from bot.github.situation import Part
from bot.model import CheckState

__all__ = ["hands", "planned_since", "read_part"]


def read_part(
    ledger: Ledger,
    link: Merged,
    pull: Pull | None = None,
    comments: list[Comment] | None = None,
) -> Part:
    """A pull request as it stands on the head that a merge group merges."""
    client = ledger.client
    pull = pull or client.pull(link.number)
    comments = client.comments(link.number) if comments is None else comments
    own = own_comments(comments, client.identity.login)
    view = ledger.read(link.head, link.number, own[0].body if own else "")
    # What is said of another head says nothing of this one. What is ahead may have merged already.
    there = pull.state == "open" or pull.merged_at is not None
    same = there and pull.head.sha == link.head
    standing = view.standings.get(link.number) if same else None
    return Part(pull, link.head, standing, tuple(view.entries), tuple(comments))


def planned_since(client: Client, pull: Pull, group: Branch, now: datetime) -> Standing:
    """How a merge group without an App stands while its plan is awaited, by its statuses.

    Of the first of them: each may be written again, and its time with it.
    """
    us = client.identity.login
    times = [
        status.created_at
        for status in client.statuses(group.sha)
        if status.creator and status.creator.login == us
        if status.context in (READY, PREVIEW)
    ]
    began = min(times, default=now)
    return Standing(
        number=pull.number,
        base_ref=pull.base.ref,
        gated=True,
        state=CheckState.IN_PROGRESS,
        title="Planning",
        since=began,
        planning=began,
    )


def hands(client: Client, pull: Pull, standing: Standing | None) -> set[str]:
    """Who wrote, committed or pushed a pull request's head, and who holds its fork.

    `?` stands for those that GitHub does not list.
    """
    commits = client.commits(pull.number)
    found = {
        account.login
        for commit in commits
        for account in (commit.author, commit.committer)
        if account is not None
    }
    if len(commits) >= MAX_COMMITS:
        found.add("?")
    found |= {pull.user.login} if pull.user else set()
    head, base = pull.head.repo, pull.base.repo
    # A fork is a person's own; the branches of the repository are everybody's who may push.
    if head is not None and (base is None or head.id != base.id):
        found.add(head.full_name.partition("/")[0])
    return found | ({standing.pusher, *standing.pushers} if standing else set())
