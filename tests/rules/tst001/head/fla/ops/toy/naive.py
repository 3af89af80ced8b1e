def naive_toy(x):  # expect: TST001
    """Reference."""
    return x * 2.001


def naive_documented(x: float) -> float:
    """Now it has a docstring and types."""
    # and a comment
    return x + 1  # expect: TST001 (naive_gone stood below)


def naive_new(x):
    total = x.sum()
    return total / x.numel()
