"""GitHub in this process, for the tests of everything that talks to it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.github.double import Double


@pytest.fixture
def github() -> Iterator[Double]:
    """A running double; a request or reply that breaks the contract fails the test at its end."""
    with Double() as double:
        yield double
        double.check()
