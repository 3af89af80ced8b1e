"""The only place that starts other programs and waits for them."""

# SPDX-License-Identifier: MIT

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from bot.errors import InfraError

__all__ = ["ProgramFailed", "run", "start"]


class ProgramFailed(Exception):
    """A program ended with a non-zero status; the caller knows what that means."""

    def __init__(self, argv: Sequence[str], status: int, stderr: str) -> None:
        self.status, self.stderr = status, stderr.strip()
        super().__init__(f"{argv[0]} exited with {status}: {self.stderr or 'no message'}")


def run(
    argv: Sequence[str],
    *,
    cwd: Path,
    env: Mapping[str, str] | None = None,
    stdin: bytes = b"",
    timeout_s: float = 60,
) -> bytes:
    """Run to the end and return standard output; raise ProgramFailed or InfraError."""
    try:
        done = subprocess.run(
            argv, cwd=cwd, env=env, input=stdin, capture_output=True, timeout=timeout_s, check=False
        )
    except OSError as error:
        raise InfraError(f"{argv[0]} cannot be started: {error}") from error
    except subprocess.TimeoutExpired as error:
        raise InfraError(f"{argv[0]} did not end within {timeout_s:g} s") from error
    if done.returncode:
        raise ProgramFailed(argv, done.returncode, done.stderr.decode(errors="replace"))
    return done.stdout


def start(
    argv: Sequence[str],
    *,
    cwd: Path,
    env: Mapping[str, str],
    pass_fds: Sequence[int] = (),
    stdin: int | None = subprocess.DEVNULL,
    stdout: int | None = subprocess.PIPE,
    stderr: int | None = subprocess.STDOUT,
) -> subprocess.Popen[bytes]:
    """Start in a session of its own, so that all it leaves running can be killed together."""
    return subprocess.Popen(
        argv,
        cwd=cwd,
        env=env,
        pass_fds=pass_fds,
        stdin=stdin,
        stdout=stdout,
        stderr=stderr,
        start_new_session=True,
    )
