"""What takes the place of group_norm_gradient_kernels.py's functions where chains have operands of
the output's shape.
"""

from generator.runtime.allocation import _ALLOCATION
from generator.runtime.gradient_kernels import _with_row_padding
from generator.runtime.group_norm_gradient_kernels import _MOST_VECTORS, _norm_backward_kernels
from generator.runtime.tensor_operands import _operand_bits, _operand_gradients


def _fake_norm_backward(grad, value, weight, num_groups, eps, *args):
    channels, (*needs, pad_rows, _, _, wanted) = value.shape[1], args[_MOST_VECTORS:]
    return (
        value.new_empty(_with_row_padding(value.shape, pad_rows)),
        *[value.new_empty((channels if wanted else 0,)) for wanted in needs],
        value.new_empty((_MOST_VECTORS, channels)),
        value.new_empty((wanted.bit_count(), *value.shape)),
    )


def _kernel_group_norm_gradients(
    grad, value, weight, num_groups, eps, vectors, needs, pad_rows: bool, chain, whole=(), of=()
) -> tuple:
    """Gradients of `value`, whose `chain` with these operands GroupNorm normalised, of GroupNorm's
    weight and bias, the first one's sums per channel (those three None where not in `needs`), and
    those of the operands: of those in `whole`, of the value's shape, the ones in `of`. pad_rows:
    the first one has whole vectors of columns, zeros behind its own.
    """
    kernels = _norm_backward_kernels()
    given = *vectors, *[None] * (_MOST_VECTORS - len(vectors))
    with _ALLOCATION:
        *grads, of_vectors, of_tensors = kernels(
            *(grad, value, weight, num_groups, eps, *given, *needs, pad_rows, chain),
            *_operand_bits(whole, of),
        )
    wanted = (True, *needs)
    found = [g if asked else None for g, asked in zip(grads, wanted, strict=True)]
    return *found, _operand_gradients(of_vectors, of_tensors, len(vectors), whole, of)


def _kernel_chain_gradients(
    grad, value, vectors, need_sums: bool, pad_rows: bool, chain: int, whole=(), of=()
) -> tuple:
    """(gradient of `value`, from that of its `chain`; its sums per channel or None; gradients of
    the chain's operands)
    """
    grad, _, _, sums, of_operands = _kernel_group_norm_gradients(
        *(grad, value, None, 0, 0.0, vectors, (False, False, need_sums), pad_rows, chain),
        *(whole, of),
    )
    return grad, sums, of_operands
