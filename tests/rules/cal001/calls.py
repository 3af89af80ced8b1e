# Text for the rule test, never imported. The code stands on the offending line.
import torch
import triton
import triton.language as tl
from torch.autograd import Function

from pkg.other import renamed, reexported
from pkg import other
from pkg.tuning import EXTRA, SIZES, passes_on, translates, unknown

CONFIG = {"BD": 64}


def scale(x, factor, *, eps=1e-6):
    return x * factor + eps


def spread(x, *rest, **options):
    return x, rest, options


@unknown
def wrapped(x):
    return x


@torch.compiler.disable
@passes_on
def guarded(x):
    return x


@translates("old", new="x")
def deprecated(x):
    return x


if FAST:
    def twice(x): ...
else:
    def twice(x, y): ...

try:
    from fast import quick
except ImportError:
    quick = None

alias = scale


@triton.autotune(configs=[triton.Config({"BN": n}, num_warps=4) for n in (16, 32)], key=["N"])
@triton.heuristics({"EVEN": lambda a: True})
@triton.jit
def kernel(x, y, N, BN: tl.constexpr, BD: tl.constexpr, EVEN: tl.constexpr):
    helper(x, y)
    helper(x)  # expect: CAL001


@triton.jit
def helper(x, y): ...


def configs():
    return [triton.Config({"BK": 64, **EXTRA}) for n in SIZES] + [triton.Config({"BK": 32, "BV": 1})]


@some_autotune(configs=configs(), key=["N"])
@triton.jit
def tuned(x, N, BK: tl.constexpr, BV: tl.constexpr): ...


@triton.autotune(configs=SIZES, key=[])
@triton.jit
def known(x, BV: tl.constexpr, BW: tl.constexpr): ...


@triton.autotune(configs=read_from_disk(), key=[])
@triton.jit
def untold(x, BV: tl.constexpr): ...


class Plain:
    def __init__(self, x, y=1): ...

    @staticmethod
    def make(x): ...

    @classmethod
    def build(cls, x): ...

    def method(self, x): ...


class Meta(metaclass=Registry):
    def __init__(self, x): ...


class Op(Function):
    @staticmethod
    def forward(ctx, x, eps):
        kernel[(1,)](x, x, N=3, BD=64, num_warps=4)
        kernel[(1,)](x, x, N=3)  # expect: CAL001
        kernel[(1,)](x, x, N=3, BD=64, BK=64)  # expect: CAL001
        kernel[(1,)](x, x, 3, N=3, BD=64)  # expect: CAL001
        tuned[(1,)](x, 3)
        tuned[(1,)](x)  # expect: CAL001
        known[(1,)](x)  # expect: CAL001
        known[(1,)](x, BW=1)
        untold[(1,)](x)
        chosen = helper if x else tuned
        chosen[(1,)](x, nope=2)  # expect: CAL001
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
    twice(x, 1)
    twice(x, 1, 2, 3)  # expect: CAL001
    quick(x, 1, 2, 3)
    guarded(x)
    guarded(x, 1)  # expect: CAL001
    deprecated(old=x)
    deprecated(older=x)  # expect: CAL001
    alias(x, 2)
    alias(x)  # expect: CAL001
    Plain(x)
    Plain(x, z=1)  # expect: CAL001
    Plain.make(x)
    Plain.make()  # expect: CAL001
    Plain.build(x)
    Plain.build(x, 1)  # expect: CAL001
    Plain.method(x, 1)
    Meta(x, 1, 2)
    Op.apply(x, 1e-6)
    Op.apply(x)  # expect: CAL001
    Op.apply(x, 1, 2)  # expect: CAL001
    renamed(x)
    renamed(x, old=1)  # expect: CAL001
    reexported(x)  # expect: CAL001
    other.renamed(x, 1, 2)  # expect: CAL001
    x.scale(1, 2, 3)


def bound_otherwise(x):
    try:
        x()
    except ValueError as scale:
        scale(1, 2, 3)
    match x:
        case twice:
            twice()
        case [*scale]:
            scale()
        case {"a": 1, **helper}:
            helper()


def shadow(scale):
    scale(1, 2, 3, 4)


def late(x):
    from pkg.deep import far
    far(x)
    far(x, 1)  # expect: CAL001
    for scale in x:
        scale()
    [scale() for scale in x]
