import pytest


@pytest.fixture(autouse=True)  # expect: TST001
def poison():
    pass
