"""GitHub in this process, for the tests of everything that talks to it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from bot.github.case import Case
from tests.github.double import Double
from tests.github.model import template
from tests.github.stage import Stage


@pytest.fixture
def github() -> Iterator[Double]:
    """A running double; a request or reply that breaks the contract fails the test at its end."""
    with Double() as double:
        yield double
        double.check()


@pytest.fixture(params=["app", "token"])
def stage(
    request: pytest.FixtureRequest,
    github: Double,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Stage:
    """A repository with the bot in both of its modes."""
    return Stage(github, tmp_path / "stage", monkeypatch, app=request.param == "app")


@pytest.fixture
def gated(github: Double, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stage:
    """A repository whose bot is an App."""
    return Stage(github, tmp_path / "stage", monkeypatch, app=True)


@pytest.fixture(scope="session")
def base(tmp_path_factory: pytest.TempPathFactory) -> Case:
    """A plan of a real change."""
    return template(tmp_path_factory.mktemp("base") / "stage")
