def unrelated(x):
    return x + 1


def assert_close(name, ref, tri, ratio):  # expect: TST001
    assert abs(ref - tri) < 2 * ratio
