# Text for the rule test, never imported. The code stands on the offending line.
import triton
import triton.language as tl
from torch.autograd import Function

from pkg.other import renamed, reexported
from pkg import other

CONFIG = {"BD": 64}


def scale(x, factor, *, eps=1e-6):
    return x * factor + eps


def spread(x, *rest, **options):
    return x, rest, options


@functools.cache
def wrapped(x):
    return x


if FAST:
    def twice(x): ...
else:
    def twice(x, y): ...


@triton.autotune(configs=[triton.Config({"BN": n}, num_warps=4) for n in (16, 32)], key=["N"])
@triton.heuristics({"EVEN": lambda a: True})
@triton.jit
def kernel(x, y, N, BN: tl.constexpr, BD: tl.constexpr, EVEN: tl.constexpr):
    helper(x, y)
    helper(x)  # expect: CAL001


@triton.jit
def helper(x, y): ...


class Op(Function):
    @staticmethod
    def forward(ctx, x, eps):
        kernel[(1,)](x, x, N=3, BD=64, num_warps=4)
        kernel[(1,)](x, x, N=3)  # expect: CAL001
        kernel[(1,)](x, x, N=3, BD=64, BK=64)  # expect: CAL001
        kernel[(1,)](x, x, 3, N=3, BD=64)  # expect: CAL001
        return x

    @staticmethod
    def backward(ctx, dy):
        return dy, None


def run(x, scale_by, helper_arg):
    scale(x, 2)
    scale(x, factor=2, eps=0)
    scale(x, factr=2)  # expect: CAL001
    scale(x)  # expect: CAL001
    scale(x, 2, 3)  # expect: CAL001
    scale(*x)
    scale(**x)
    scale(**x, nope=1)  # expect: CAL001
    spread(x, 1, 2, a=3)
    wrapped(x, 1, 2)
    twice(x, 1, 2, 3)
    Op.apply(x, 1e-6)
    Op.apply(x)  # expect: CAL001
    Op.apply(x, 1, 2)  # expect: CAL001
    renamed(x)
    renamed(x, old=1)  # expect: CAL001
    reexported(x)  # expect: CAL001
    other.renamed(x, 1, 2)  # expect: CAL001
    x.scale(1, 2, 3)


def shadow(scale):
    scale(1, 2, 3, 4)
