"""How large an error may be: bounds derived from the precision and the reduction length."""

import math
from dataclasses import dataclass

import torch

# How many times PyTorch's own error, at the same precision and on the same input, is still fine.
OWN_ERROR_FACTOR = 4.0


@dataclass(frozen=True)
class Precision:
    """Unit roundoffs of a precision.

    `operand`: of a factor of a product, or of a value handed from one layer to the next.
    `output`: of the stored result. `accumulate`: of one addition in a sum.
    """

    operand: float
    output: float
    accumulate: float


PRECISIONS = {
    "float64": Precision(0.0, 2.0**-53, 2.0**-53),
    "float32": Precision(0.0, 2.0**-24, 2.0**-24),
    "tf32": Precision(2.0**-11, 2.0**-24, 2.0**-24),
    "float16": Precision(2.0**-11, 2.0**-11, 2.0**-24),
    "bfloat16": Precision(2.0**-8, 2.0**-8, 2.0**-24),
}


@dataclass(frozen=True)
class Bounds:
    """The largest allowed relative L2 error and the largest allowed error of one element."""

    rel_l2: float
    max_abs: float


def relative_bound(precision: str, reduction_length: int, magnified: float = 1.0) -> float:
    """sqrt(2) u_operand + magnified (u_output + sqrt(K) u_accumulate).

    Both factors of each product are rounded to the operands' precision (independent errors, so
    they add as a root of squares), K = reduction_length products are added with rounding errors
    that behave like a random walk, and the result is stored once. Roundings are errors of random
    sign, so this estimate holds for the norm over many outputs whatever the data's mean; a bound
    that assumed all errors aligned would be sqrt(K) times larger and would let a coarser precision
    pass. Where a layer subtracts a mean that is `magnified` times the spread, roundings of sums
    near that mean are so many times larger beside what is left; those of the products, which have
    the spread's size, are not. Source: N. J. Higham, Accuracy and Stability of Numerical
    Algorithms, sections 2.8, 3.1.
    """
    unit = PRECISIONS[precision]
    summed = unit.output + math.sqrt(reduction_length) * unit.accumulate
    return math.sqrt(2) * unit.operand + magnified * summed


def bounds(
    precision: str,
    reduction_length: int,
    own_rel_l2: float,
    own_max_abs: float,
    reference_max_abs: float,
    magnified: float = 1.0,
) -> Bounds:
    """The bounds for one output.

    Relative L2 error ||y - ref|| / ||ref||: at most the larger of `relative_bound` and four times
    PyTorch's own error at the same precision on the same input. The first is what a convolution is
    owed. The second is how a chain is treated: a normalisation subtracts a mean and divides by
    a spread, which magnifies rounding errors by a factor that depends on the data, and PyTorch's
    own layers, given the same data, show that factor. Four is enough for another order of
    summation and too little for the next coarser precision: bf16 operands err 8 times as much as
    TF32 ones, and TF32 ones about 1000 times as much as fp32.

    Largest error of one element: at most the larger of twice the relative bound times the largest
    |ref|, and four times PyTorch's own largest error. It is what catches a few wrong elements
    (a corner, a border column) that the norm over millions would hide.
    """
    relative = relative_bound(precision, reduction_length, magnified)
    return Bounds(
        rel_l2=max(relative, OWN_ERROR_FACTOR * own_rel_l2),
        max_abs=max(2 * relative * reference_max_abs, OWN_ERROR_FACTOR * own_max_abs),
    )


def gradient_bound(
    precision: str, reduction_length: int, own_rms: float, reference_rms: float, scale_rms: float
) -> float:
    """The largest allowed root-mean-square error of a gradient, in the gradient's own unit.

    relative_bound * (rms of the true gradient + scale_rms), or four times PyTorch's own error.
    `scale_rms` is the largest true gradient rms among the parameters of the same layer. It is
    needed because a true gradient can be zero: that of a convolution's bias before a BatchNorm in
    training mode is, and a purely relative bound would reject every honest answer.
    """
    relative = relative_bound(precision, reduction_length)
    return max(relative * (reference_rms + scale_rms), OWN_ERROR_FACTOR * own_rms)


def kernelbench_rule(ours: torch.Tensor, eager: torch.Tensor) -> dict:
    """KernelBench's own verdict, for information: allclose to eager PyTorch, atol = rtol = t.

    t is 1e-4 for fp32 and fp64 and 1e-2 for fp16 and bf16.
    """
    tolerance = 1e-2 if ours.dtype in (torch.float16, torch.bfloat16) else 1e-4
    outside = 0
    flat, flat_eager = ours.reshape(-1), eager.reshape(-1)
    step = 1 << 25
    for begin in range(0, flat.numel(), step):
        close = torch.isclose(
            flat[begin : begin + step],
            flat_eager[begin : begin + step],
            rtol=tolerance,
            atol=tolerance,
        )
        outside += int((~close).sum())
    return {
        "passes": outside == 0,
        "tolerance": tolerance,
        "fraction_outside": outside / max(flat.numel(), 1),
    }
