"""A report after evidence and people's words: rows, accepted digests and waivers put in; pure."""

# SPDX-License-Identifier: MIT

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from bot.model import ChecklistItem, ItemState, Report, Row, Verdict
from bot.report.checklist import conclude, job_item, rules_item
from bot.words import Word

__all__ = ["settle"]


def settle(
    report: Report,
    rows: Sequence[Row],
    *,
    words: Iterable[Word] = (),
    accepted: Mapping[str, str] | None = None,
    waived: Mapping[str, str] | None = None,
    more: Iterable[ChecklistItem] = (),
    hits: Mapping[str, tuple[int, int]] | None = None,
) -> Report:
    """The report with `rows` in place of its own, concluded anew.

    `accepted`: who accepted a digest. `waived`: who waived a rule's code or a job, and why. `more`:
    items that come first, such as an approval that is missing. `hits`: errors and warnings by
    rule, where the report holds only some of them.
    """
    accepted, waived = accepted or {}, waived or {}
    judged = [
        row.model_copy(update={"verdict": Verdict.WAIVED, "reason": waived[row.job]})
        if row.job in waived and row.verdict is not Verdict.PASS
        else row
        for row in rows
    ]
    counted = [finding for finding in report.findings if finding.code not in waived]
    left = {code: count for code, count in (hits or {}).items() if code not in waived}
    items = list(more)
    for item in report.checklist:
        if item.id.startswith("job:"):
            continue
        if item.id == "rules":
            items += [rules_item(counted, left), *_waived_rules(report, waived)]
            items += [ChecklistItem(id=name, state=state, text=text) for name, state, text in words]
        elif item.state is ItemState.HUMAN and item.accept in accepted:
            text = f"{item.text.partition(';')[0]}; {accepted[item.accept]} accepted {item.accept}"
            items.append(item.model_copy(update={"state": ItemState.DONE, "text": text}))
        else:
            items.append(item)
    last = [item for item in items if item.id.startswith("declared:")]
    items = [item for item in items if not item.id.startswith("declared:")]
    items += [job_item(job, judged) for job in report.plan.jobs] + last
    verdict, state, headline, next_step = conclude(items, judged, report.plan)
    return report.model_copy(
        update={
            "rows": judged,
            "checklist": items,
            "verdict": verdict,
            "state": state,
            "headline": headline,
            "next_step": next_step,
        }
    )


def _waived_rules(report: Report, waived: Mapping[str, str]) -> list[ChecklistItem]:
    codes = sorted({finding.code for finding in report.findings} & set(waived))
    done = ItemState.DONE
    return [
        ChecklistItem(id=f"waived:{c}", state=done, text=f"{c} is waived", evidence=waived[c])
        for c in codes
    ]
