"""Title and body checks."""

from __future__ import annotations

import pytest

from bot.model import ItemState
from bot.policy import PullRequest
from bot.words import judge_words, sections

SPEC = PullRequest(
    title=r"^\[[A-Za-z/ ]+\] \S",
    title_help="start with a tag, as in `[KDA] Fix the tail`",
    sections={"*": ["Summary"], "ops": ["Benchmarks"]},
)


def rows(title: str | None, body: str | None, *areas: str) -> dict[str, ItemState]:
    return {name: state for name, state, _ in judge_words(SPEC, areas, title, body)}


def test_good_words_are_done() -> None:
    body = "# Summary\r\n\r\nIt is faster.\r\n\r\n## Benchmarks\r\n\r\n| a |\r\n"
    assert set(rows("[KDA] Fix", body, "ops").values()) == {ItemState.DONE}


def test_what_is_not_known_is_not_judged() -> None:
    assert rows(None, None, "ops") == {}


@pytest.mark.parametrize(
    ("body", "state"),
    [
        ("## Summary\n\ntext", ItemState.DONE),
        ("Summary\n-------\n\ntext", ItemState.DONE),
        ("## summary ##\n\n    code", ItemState.DONE),
        ("## Summary\n\n<!-- say why -->\n", ItemState.FAILED),
        ("## Summary\n\n<!-- never closed", ItemState.FAILED),
        ("## Summary\n\n## Other\n\ntext", ItemState.FAILED),
        ("```\n## Summary\ntext\n```", ItemState.FAILED),
        ("> ## Summary\n>\n> text", ItemState.DONE),
        ("## Summary\n\n### Details\n\ntext", ItemState.DONE),
        ("<!-- ## Summary\n\ntext -->", ItemState.FAILED),
        ("", ItemState.FAILED),
        ("#" * 70_000, ItemState.FAILED),
        ("[" * 65_536, ItemState.FAILED),
        ("> " * 30_000, ItemState.FAILED),
    ],
)
def test_section_needs_text_of_its_own(body: str, state: ItemState) -> None:
    assert rows("[KDA] Fix", body)["pr-section:Summary"] is state


def test_title_that_is_wrong_says_what_is_wanted() -> None:
    found = {name: (state, text) for name, state, text in judge_words(SPEC, [], "fix", "")}
    assert found["pr-title"] == (
        ItemState.FAILED,
        "the title must start with a tag, as in `[KDA] Fix the tail`",
    )


def test_sections_are_found_in_any_order_and_spelling() -> None:
    assert sections("# A  b\n\nx\n\n# C\n") == {"a b": True, "c": False}
