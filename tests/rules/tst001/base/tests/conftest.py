import pytest


@pytest.fixture(autouse=True)
def poison():
    fill("nan")
