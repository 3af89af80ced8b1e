from fla.ops.toy.chunk import toy_fwd


def test_toy():
    toy_fwd(1)
