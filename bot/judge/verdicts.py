"""The form of a verdict that every judge gives."""

# SPDX-License-Identifier: MIT

from __future__ import annotations

from bot.model import Job, Row, Verdict

__all__ = ["Finding", "row"]

# Cell, verdict and the figure or the reason behind it.
Finding = tuple[str, Verdict, str]


def row(job: Job, cell: str, verdict: Verdict, reason: str) -> Row:
    """A verdict over one cell, with the lines that are suspected where it is a fail."""
    suspect = ", ".join(str(place) for place in job.because[:3])
    return Row(
        job=job.id,
        lane=job.lane,
        op=job.op,
        cell=cell,
        verdict=verdict,
        reason=reason,
        because=suspect if verdict is Verdict.FAIL else "",
    )
