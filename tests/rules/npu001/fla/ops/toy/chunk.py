import triton


@triton.autotune(configs=[triton.Config({"BK": 64}, num_warps=4)], key=[])
@triton.jit
def toy_fwd_kernel(x, BK): ...


def toy_fwd(x):
    toy_fwd_kernel[(1,)](x, num_stages=2)
