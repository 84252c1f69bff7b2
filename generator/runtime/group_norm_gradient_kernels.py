"""The library of the gradients through element-wise steps, and GroupNorm behind them: built and
loaded when CUDA first asks for them.
"""

from generator.runtime.allocation import _ALLOCATION
from generator.runtime.generated import NORM_GRADIENT_CUDA_SOURCE, NORM_GRADIENT_OPERATOR_SOURCE
from generator.runtime.gradient_kernels import (
    _GRADIENT_CUDA,
    _load_operators,
    _with_row_padding,
)
from generator.runtime.library_sources import _whole_library

_NORM_GRADIENTS = _whole_library(
    "tconv_norm_gradients",
    NORM_GRADIENT_CUDA_SOURCE,
    NORM_GRADIENT_OPERATOR_SOURCE,
    GRADIENT_CUDA_SOURCE=_GRADIENT_CUDA,
)

_MOST_VECTORS = 4  # kMaxChannelVectors in kernels_src/call.h


def _fake_norm_backward(grad, value, weight, num_groups, eps, *args):
    channels = value.shape[1]
    vectors, needs, pad_rows = args[:_MOST_VECTORS], args[_MOST_VECTORS:-2], args[-2]
    grads = [value.new_empty((channels if wanted else 0,)) for wanted in needs]
    count = sum(vector is not None for vector in vectors)
    shape = _with_row_padding(value.shape, pad_rows)
    return value.new_empty(shape), *grads, value.new_empty((count, channels))


def _norm_backward_kernels():
    """The operator of kernels_src/binding/operator_group_norm_gradient.cpp."""
    fakes = {"backward": _fake_norm_backward}
    namespace, _ = _load_operators(*_NORM_GRADIENTS, fakes)
    return namespace.backward.default


def _kernel_group_norm_gradients(
    grad, value, weight, num_groups: int, eps: float, vectors, needs, pad_rows: bool, chain: int
) -> tuple:
    """Gradients of `value`, whose `chain` with these per-channel operands GroupNorm normalised, of
    GroupNorm's weight and bias, the first one's sums per channel (those three None where not in
    `needs`), and those of the operands. pad_rows: the first one has whole vectors of columns, zeros
    behind its own.
    """
    kernels = _norm_backward_kernels()
    given = *vectors, *[None] * (_MOST_VECTORS - len(vectors))
    with _ALLOCATION:
        *grads, of_vectors = kernels(
            *(grad, value, weight, num_groups, eps, *given, *needs, pad_rows, chain)
        )
    wanted = (True, *needs)
    found = [g if asked else None for g, asked in zip(grads, wanted, strict=True)]
    return *found, list(of_vectors.unbind(0))


def _kernel_chain_gradients(
    grad, value, vectors, need_sums: bool, pad_rows: bool, chain: int
) -> tuple:
    """(gradient of `value`, from that of its `chain`; its sums per channel or None; gradients of
    the chain's operands)
    """
    grad, _, _, sums, of_vectors = _kernel_group_norm_gradients(
        grad, value, None, 0, 0.0, vectors, (False, False, need_sums), pad_rows, chain
    )
    return grad, sums, of_vectors
