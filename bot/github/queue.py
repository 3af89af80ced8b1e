"""Merge groups: what the branch of one says, and whether git makes the same of it.

Whoever may push can make a branch of such a name, so a name only says what to look for: a group
counts where merging the pull request's head, as it is now, onto the commit that the name holds
gives the very tree of the group, and that commit is of the base branch or of another such group.
"""

# SPDX-License-Identifier: MIT

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from bot.change import Repository
from bot.errors import UserError
from bot.github.case import Merged
from bot.process import ProgramFailed

__all__ = ["QUEUE", "QueueBranch", "groups_of", "merges", "parse_branch"]

QUEUE = "gh-readonly-queue"
MAX_AHEAD = 4  # groups that one may go on top of; GitHub builds five at a time by default
_BRANCH = re.compile(rf"{QUEUE}/(.{{1,200}})/pr-([1-9][0-9]{{0,9}})-([0-9a-f]{{40}})")


@dataclass(frozen=True, slots=True)
class QueueBranch:
    """What the branch of a merge group is called after, and its commit."""

    name: str
    sha: str
    base_ref: str
    number: int
    parent: str


def parse_branch(name: str, sha: str) -> QueueBranch | None:
    """A branch as that of a merge group; None if it is called otherwise."""
    match = _BRANCH.fullmatch(name)
    return QueueBranch(name, sha, match[1], int(match[2]), match[3]) if match else None


def groups_of(number: int, branches: Iterable[QueueBranch]) -> list[QueueBranch]:
    """The groups that merge a pull request: its own, and those on top of it."""
    left, found = list(branches), list[QueueBranch]()
    heads: set[str] = set()
    while new := [b for b in left if b.number == number or b.parent in heads]:
        found += new
        heads |= {branch.sha for branch in new}
        left = [branch for branch in left if branch not in new]
    return found


def merges(
    repository: Repository,
    group: QueueBranch,
    branches: Iterable[QueueBranch],
    pull_head: Callable[[int], str],
) -> list[Merged]:
    """What a group merges, its own pull request first; a UserError where git does not agree.

    `pull_head` fetches the head of a pull request.
    """
    return list(_links(repository, group, tuple(branches), pull_head))


def _links(
    repository: Repository,
    group: QueueBranch,
    branches: tuple[QueueBranch, ...],
    pull_head: Callable[[int], str],
) -> Iterator[Merged]:
    base = f"refs/remotes/origin/{group.base_ref}"
    for _ in range(MAX_AHEAD + 1):
        head = pull_head(group.number)
        if not _is_merge(repository, group, head):
            raise UserError(
                f"{group.name} is not what merging #{group.number} as it is now ({head[:12]}) "
                f"onto {group.parent[:12]} gives"
            )
        yield Merged(number=group.number, head=head)
        if _is_ancestor(repository, group.parent, base):
            return
        ahead = (b for b in branches if b.sha == group.parent and b.base_ref == group.base_ref)
        found = next(ahead, None)
        if found is None:
            raise UserError(
                f"{group.name} goes on top of what is neither in {group.base_ref} nor in the queue"
            )
        group = found
    raise UserError(f"more than {MAX_AHEAD} merge groups are ahead: let the queue build fewer")


def _is_merge(repository: Repository, group: QueueBranch, head: str) -> bool:
    """Whether a group has the tree that merging a head gives; squashed and rebased ones have."""
    try:
        merged = repository.git("merge-tree", "--write-tree", group.parent, head)
        tree = repository.git("rev-parse", "--verify", f"{group.sha}^{{tree}}")
    except ProgramFailed:  # conflicts, or a commit that is not here
        return False
    same = merged.split(b"\n")[0] == tree.strip()
    return same and _is_ancestor(repository, group.parent, group.sha)


def _is_ancestor(repository: Repository, one: str, other: str) -> bool:
    try:
        repository.git("merge-base", "--is-ancestor", one, other)
    except ProgramFailed:
        return False
    return True
