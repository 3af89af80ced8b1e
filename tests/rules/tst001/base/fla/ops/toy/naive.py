def naive_toy(x):
    """Reference."""
    return x * 2


def naive_documented(x):
    return x + 1


def naive_gone(x):
    return x
