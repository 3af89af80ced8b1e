import triton

OPTIONS = {"num_warps": 4}  # expect: NPU001


@triton.autotune(
    configs=[
        triton.Config({"BK": 64}),
        triton.Config({"BK": 32}, num_stages=2),  # expect: NPU001
    ],
    key=[],
)
@triton.jit
def toy_fwd_kernel(x, BK): ...


def toy_fwd(x, kernel, num_warps=1):
    toy_fwd_kernel[(1,)](x)
    toy_fwd_kernel[(1,)](
        x,
        num_warps=4,  # expect: NPU001
    )
    kernel[(1,)](x, **dict(num_warps=num_warps))  # expect: NPU001
    return tune(x, num_warps=2)
