"""What the report for a terminal shows of what it has no room for."""

from __future__ import annotations

import pytest

from bot.report.terminal import nearest

TESTS = (
    "tests/bot/test_anchors.py",
    "tests/bot/test_check.py",
    "tests/gaming/test_l2norm_fixtures.py",
    "tests/modules/test_l2norm.py",
    "tests/ops/test_gdn.py",
    "tests/ops/test_kda.py",
    "tests/ops/test_kda_chunk_gate.py",
)


@pytest.mark.parametrize(
    ("changed", "first"),
    [
        (["fla/modules/l2norm.py"], ["tests/modules/test_l2norm.py", TESTS[2]]),
        (["fla/modules/l2norm/__init__.py", "README.md"], ["tests/modules/test_l2norm.py"]),
        (["fla/ops/kda/gate.py"], ["tests/ops/test_kda_chunk_gate.py", "tests/ops/test_kda.py"]),
        (["fla/ops/kda/naive.py"], ["tests/ops/test_kda.py"]),
        (["fla/ops/gdn/chunk.py"], ["tests/ops/test_gdn.py"]),
        ([], ["tests/bot/test_anchors.py"]),
    ],
)
def test_tests_that_mirror_a_changed_file_come_first(changed: list[str], first: list[str]) -> None:
    found = nearest(TESTS[::-1], changed)
    assert found[: len(first)] == first
    assert sorted(found) == list(TESTS)
