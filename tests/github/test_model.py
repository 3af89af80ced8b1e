"""Any order of events, crashes, clashes and people: nothing gets green that is not proved, nothing
waits for ever, and nobody reads two comments.

The model plays GitHub's users and machines against the double; the bot runs through its own client
and HTTP.
"""

from __future__ import annotations

import pytest

from bot.github.case import Case
from tests.github.model import run_model


@pytest.mark.parametrize("app", [True, False], ids=["app", "token"])
def test_model(base: Case, app: bool) -> None:
    run_model(base, app=app, examples=7, steps=14)


@pytest.mark.fuzz
@pytest.mark.parametrize("app", [True, False], ids=["app", "token"])
def test_model_long(base: Case, app: bool) -> None:
    run_model(base, app=app, examples=300, steps=40)
