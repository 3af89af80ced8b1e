from fla.ops.shown.chunk import shown_fwd


def test_shown():
    shown_fwd(1)
