"""What a pull request says in its own words: title and body, read as Markdown."""

# SPDX-License-Identifier: MIT

from __future__ import annotations

import re
from collections.abc import Iterable

from bot.model import ItemState
from bot.policy import PullRequest

__all__ = ["Word", "judge_words", "sections"]

MAX_BODY = 262_144  # the most that GitHub was seen to store
Word = tuple[str, ItemState, str]


def judge_words(
    spec: PullRequest, areas: Iterable[str], title: str | None, body: str | None
) -> list[Word]:
    """Checklist rows (id, state, text) for a title and a body; None where they are not known."""
    rows: list[Word] = []
    if spec.title and title is not None:
        good = re.search(spec.title, title) is not None
        text = "the title has the agreed form" if good else f"the title must {_title_help(spec)}"
        rows.append(("pr-title", ItemState.DONE if good else ItemState.FAILED, text))
    wanted = [name for area in ("*", *sorted(set(areas))) for name in spec.sections.get(area, [])]
    if wanted and body is not None:
        found = sections(body[:MAX_BODY])
        for name in dict.fromkeys(wanted):
            row = f"pr-section:{name}"
            if name.lower() not in found:
                rows.append((row, ItemState.FAILED, f"the body lacks the section `{name}`"))
            elif not found[name.lower()]:
                rows.append((row, ItemState.FAILED, f"the section `{name}` is empty"))
            else:
                rows.append((row, ItemState.DONE, f"the body has the section `{name}`"))
    return rows


def _title_help(spec: PullRequest) -> str:
    return spec.title_help or f"match {spec.title}"


def sections(body: str) -> dict[str, bool]:
    """Headings in lower case, and whether anything but comments stands below them.

    What stands below a smaller heading stands below the larger one round it, too.
    """
    from markdown_it import MarkdownIt

    found: dict[str, bool] = {}
    open_: list[tuple[str, str]] = []  # level (`h2`) and text of the headings that we are below
    level = ""
    for token in MarkdownIt("commonmark").parse(body):
        if token.type in ("heading_open", "heading_close"):
            level = token.tag if token.type == "heading_open" else ""
        elif level and token.type == "inline":
            heading = " ".join(token.content.split()).lower()
            open_ = [(size, name) for size, name in open_ if size < level] + [(level, heading)]
            found.setdefault(heading, False)
        elif _says_something(token.type, token.content):
            found |= {name: True for _, name in open_}
    return found


def _says_something(kind: str, content: str) -> bool:
    if kind in ("html_block", "inline"):
        return bool(re.sub(r"<!--.*?(-->|\Z)", "", content, flags=re.DOTALL).strip())
    return kind in ("fence", "code_block") and bool(content.strip())
