"""What the tests of an operand that the Hopper kernel reads where it stores its outputs share: the
chain of tests/references/joined_upsampling.py behind random layers, and its truth in float64.
"""

import random

import torch
import torch.nn.functional as F

from tests.gpu_tools import tf32
from tests.tensor_operand_tools import CONVS, STEPS

DIMENSIONS = 2, 3


class Case:
    """A random layer of two columns' stride whose rows are of an even number."""

    def __init__(self, dimensions: int, seed: int, dtype: torch.dtype, large: bool = False):
        rng = random.Random(f"{dimensions} {seed}")
        ones = (1,) * (dimensions - 1)
        kernel = *(rng.randint(1, 3) for _ in ones[1:]), rng.choice((2, 3)), rng.choice((2, 3, 4))
        self.stride = *(rng.randint(1, k) for k in kernel[:-2]), 2, 2
        self.padding = *(rng.randint(0, k // 2) for k in kernel[:-1]), 1 if kernel[-1] > 2 else 0
        self.output_padding = *(0 for _ in ones), 1 if kernel[-1] == 3 else 0
        groups = rng.choice((1, 1, 2))
        in_channels = groups * 8 * rng.choice((2, 3, 8))
        out_channels = groups * 16 * rng.choice((3, 4, 5))  # of fewer columns are joined
        size = *(rng.randint(2, 5) for _ in ones), rng.choice((8, 9, 16))
        made = torch.Generator().manual_seed(seed)
        weight = in_channels, out_channels // groups, *kernel
        x = torch.randn(rng.randint(1, 3), in_channels, *size, generator=made)
        self.x = (x * 1e6 if large else x).to(dtype)
        self.weight = torch.randn(weight, generator=made).to(dtype) / in_channels**0.5
        self.bias = torch.randn(out_channels, generator=made).to(dtype)
        self.groups, self.dimensions = groups, dimensions
        parameters = self.stride, self.padding, self.output_padding, groups
        operands = [t.double() for t in (self.x, self.weight, self.bias)]
        value = CONVS[dimensions](*operands, *parameters)
        self.skip = torch.randn(value.shape, generator=made).to(dtype)
        sizes = [t.abs() for t in operands]
        self.size = CONVS[dimensions](*sizes, *parameters) + self.skip.double().abs()
        joined = value + self.skip.double()
        self.truth = joined * F.hardswish(joined)

    def called(self, solution: dict, skip: torch.Tensor) -> torch.Tensor:
        parameters = self.stride, self.padding, self.output_padding, (1,) * self.dimensions
        operands = self.x, self.weight, self.bias, *parameters, self.groups, skip
        with tf32(True), torch.no_grad():
            if self.dimensions == 2:
                return solution["_operator"](*operands)
            chain = solution["_CHAIN"], solution["_CHAIN_NUMBER"]
            return solution["_in_three_dimensions"](solution["_operator"], "", chain, *operands)

    def called_with_value(self, solution: dict, skip: torch.Tensor) -> tuple:
        """(result, what its chain begins with) of a volume, as forward keeps it for gradients."""
        namespace = getattr(torch.ops, solution["_NAMESPACE"])
        kernels = solution["_volume_operator"](namespace)
        axes = self.stride, self.padding, self.output_padding, (1, 1, 1)
        kept = torch.full_like(self.skip, float("nan"))
        with tf32(True), torch.no_grad():
            operands = kernels, self.x, self.weight, self.bias, axes, self.groups, (skip,)
            return solution["_run_volumes"](*operands, kept=kept), kept


def misaligned(tensor: torch.Tensor) -> torch.Tensor:
    """The same values where no pair of them is aligned: a pass behind the kernel reads them."""
    longer = tensor.new_empty(tensor.numel() + 1)
    return longer[1:].copy_(tensor.flatten()).view(tensor.shape)


def beyond(case: Case, found: torch.Tensor) -> float:
    """How far the result lies from the truth, of what rounding every operand of its products
    allows: x * hardswish(x) is off by at most 2 |x| / 3 + 1 times as much as x is.
    """
    slope = 2 * case.truth.abs().sqrt() + 2
    bound = 4 * STEPS[found.dtype] * (case.size * slope + case.truth.abs())
    return float(((found.double() - case.truth).abs() / bound).max())
