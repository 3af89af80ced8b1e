def unrelated(x):
    return x


def assert_close(name, ref, tri, ratio):
    assert abs(ref - tri) < ratio
