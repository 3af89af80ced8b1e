"""Escaping of what a pull request controls, and the managed block."""

from __future__ import annotations

import pytest

from bot.report.markdown import BEGIN, END, escape, put_block, table


@pytest.mark.parametrize(
    ("text", "gone"),
    [
        ("a|b", "a|b"),
        ("`code`", " `code"),
        ("@maintainer", "@m"),
        ("fixes #12", "#1"),
        ("<img src=x>", "<"),
        ("https://evil.example", "://e"),
        ("www.evil.example", "www.e"),
        ("![x](y)", "]("),
        ("\u202etxt.exe", "\u202e"),
        ("a\nb\r\x1b[0m", "\n"),
        ("a\u2028b", "\u2028"),
        ("\udcff", "\udcff"),
        ("<!-- fla-bot:end -->", "<!--"),
        ("\u200b", "\u200b"),
    ],
)
def test_escape_leaves_nothing_active(text: str, gone: str) -> None:
    assert gone not in escape(text)


def test_escape_keeps_what_is_harmless_and_cuts_what_is_long() -> None:
    assert escape("fla/ops/kda.py:12 Größe") == "fla/ops/kda.py:12 Größe"
    assert len(escape("x" * 1000)) == 300


def test_table_cells_are_escaped() -> None:
    assert table(["a"], [["x|y"]])[-1] == "| x\\|y |"


BLOCK = f"{BEGIN}\nnew\n{END}"


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
@pytest.mark.parametrize("before", ["", "Text.", "Text.\n", "é\u2028|`@x\n\n"])
def test_block_is_added_once_and_replaced_in_place(before: str, newline: str) -> None:
    # A body without line ends has no style to keep.
    before = (before if newline == "\n" else before + "\n").replace("\n", newline)
    once = put_block(before, BLOCK)
    assert once.startswith(before)
    assert put_block(once, BLOCK) == once
    body = once + f"after{newline}"
    other = put_block(body, BLOCK.replace("new", "newer"))
    assert other.replace("newer", "new") == body


OLD = f"{BEGIN}\nold\n{END}"


@pytest.mark.parametrize(
    ("body", "repaired"),
    [
        (f"a{BEGIN}b", f"a{BLOCK}b"),
        (f"a{END}b", f"a{BLOCK}b"),
        (f"a{END}b{BEGIN}c", f"a{BLOCK}bc"),
        (f"a{OLD}b{OLD}c", f"a{BLOCK}bc"),
        (f"a{BEGIN}b{OLD}c", f"a{BLOCK}bc"),
        (f"a{OLD}b{END}c", f"a{BLOCK}bc"),
    ],
)
def test_damaged_block_becomes_one_and_no_text_is_lost(body: str, repaired: str) -> None:
    assert put_block(body, BLOCK) == repaired
    assert put_block(repaired, BLOCK) == repaired


def test_long_body_with_crlf_keeps_every_character() -> None:
    body = "é|`@x <!-- c -->\r\n" * 4000
    assert put_block(body[:65_536], BLOCK).startswith(body[:65_536])
