"""The closed grammar: what it computes and what it refuses."""

import pytest

from bot.cells import TensorView
from bot.expression import ExpressionError, expression

VIEW = TensorView((2, 8, 4), (32, 4, 1), "fp16", requires_grad=True)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1 + 2 * 3", 7),
        ("cdiv(T, 64) * 2", 4),
        ("T if T > 100 else -T", -65),
        ("1 < T <= 65", True),
        ("x.shape[-1] * x.strides[0]", 128),
        ("x.dtype == 'fp16' and not x.contiguous or x is None", False),
        ("x.ndim in (3, 4)", True),
        ("gone is None", True),
        ("max(1, T // 2, min(T, 3))", 32),
        ("[0, 15, T]", (0, 15, 65)),
        ("sum((1, 2)) + len([1, 2]) + abs(-1)", 6),
        ("T and 0 or 5", 5),
    ],
)
def test_value(text: str, value: object) -> None:
    assert expression(text)({"T": 65, "x": VIEW, "gone": None}) == value


@pytest.mark.parametrize(
    "text",
    [
        "__import__('os').system('true')",
        "x.__class__",
        "x.shape.__len__()",
        "(lambda: 1)()",
        "[i for i in (1, 2)]",
        "f'{T}'",
        "T ** T",
        "T << 3",
        "open('f')",
        "max(*x.shape)",
        "max(1, key=abs)",
        "{'a': 1}",
        "x.shape[0:1]",
        "(y := 3)",
        "b'x'",
        "1 +",
        "",
        "1" * 500,
        "(" * 90 + "1" + ")" * 90 + "+1" * 100,
    ],
)
def test_outside_the_grammar(text: str) -> None:
    with pytest.raises(ExpressionError):
        expression(text)


@pytest.mark.parametrize(
    "text",
    [
        "T // 0",
        "'a' * 9",
        "x.shape * 9",
        "unknown",
        "x.shape[7]",
        "None < 1",
        "9223372036854775807 + T",
    ],
)
def test_no_value(text: str) -> None:
    with pytest.raises(ExpressionError):
        expression(text)({"T": 65, "x": VIEW})


def test_names_are_the_variables_and_not_the_functions() -> None:
    assert expression("cdiv(T, BT) + x.shape[0]").names == {"T", "BT", "x"}
