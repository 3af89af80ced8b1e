import triton


@triton.jit
def toy_fwd_kernel(x, BK): ...


def toy_fwd(x):
    toy_fwd_kernel[(1,)](x, BK=64)


def toy_shape(x):
    return x.shape
