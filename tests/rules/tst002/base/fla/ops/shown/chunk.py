import triton


@triton.jit
def shown_fwd_kernel(x, BK): ...


def shown_fwd(x):
    shown_fwd_kernel[(1,)](x, BK=64)


def shown_shape(x):
    return x.shape
