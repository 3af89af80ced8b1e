"""User numbers for workers: one each, that nobody else has while it is held."""

# SPDX-License-Identifier: MIT

from __future__ import annotations

import contextlib
import grp
import pwd
import secrets
import socket
from dataclasses import dataclass
from pathlib import Path

from bot.errors import InfraError
from bot.lanes.processes import kill_all, owned_by

__all__ = ["Identity", "end_abandoned"]

# Nobody has an account there: systemd leaves these numbers unused, and 16-bit maps hold them.
UIDS = range(60578, 61184)


@dataclass(slots=True)
class Identity:
    """A user number. `hold`: a name in the kernel that goes with its holder, even by kill -9."""

    uid: int
    hold: socket.socket

    @classmethod
    def take(cls) -> Identity:
        """A random one: nothing may follow from its order."""
        mapped = [uid for uid in UIDS if _is_mapped(uid, "uid") and _is_mapped(uid, "gid")]
        for uid in secrets.SystemRandom().sample(mapped, len(mapped)):
            found = None if _has_account(uid) or owned_by({uid}) else _held(uid)
            if found is not None:
                return found
        raise InfraError("no free user number for a worker")


def end_abandoned(uids: set[int]) -> None:
    """End processes of such users, unless somebody holds the number again."""
    for uid in uids & set(UIDS):
        found = _held(uid)
        if found is not None:
            with found.hold:
                kill_all(owned_by({uid}))


def _held(uid: int) -> Identity | None:
    hold = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        hold.bind(f"\0fla-bot-uid-{uid}")
    except OSError:
        hold.close()
        return None
    return Identity(uid, hold)


def _is_mapped(number: int, kind: str) -> bool:
    for line in Path(f"/proc/self/{kind}_map").read_text().splitlines():
        inside, _, count = map(int, line.split())
        if inside <= number < inside + count:
            return True
    return False


def _has_account(uid: int) -> bool:
    for find in (pwd.getpwuid, grp.getgrgid):
        with contextlib.suppress(KeyError):
            find(uid)
            return True
    return False
