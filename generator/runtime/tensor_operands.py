"""Operands of element-wise steps that have the output's shape, among those with a value a channel;
`whole` are their indices.
"""


def _kept_operands(operands, whole, read: bool) -> list:
    """What backward may read: those of the output's shape where `read`."""
    return [None if i in whole and not read else value for i, value in enumerate(operands)]


def _batched_operands(operands, whole) -> list:
    """As what stands behind a batch reads them."""
    return [
        value.unsqueeze(0) if i in whole and value is not None and value.dim() == 3 else value
        for i, value in enumerate(operands)
    ]


def _wanted_operands(needs, whole) -> list:
    """The indices of those whose gradients are wanted, by the last entries of `needs`."""
    return [i for i in whole if needs[i]]


def _operand_bits(whole, wanted) -> tuple:
    """The arguments `tensors` and `need_tensors` of kernels_src/binding/tensor_gradients.h."""
    return sum(1 << i for i in whole), sum(1 << i for i in wanted)


def _operand_gradients(of_vectors, of_tensors, count: int, whole, wanted) -> list:
    """Of each operand, from the kernels' results; None where not wanted."""
    tensors = iter(of_tensors.unbind(0))
    found = [next(tensors) if i in wanted else None for i in range(count)]
    return [found[i] if i in whole else of_vectors[i] for i in range(count)]


def _of_operands(grads, saved, x, whole) -> list:
    """The gradients in the shapes and dtypes of the operands, of which some are not saved."""
    return [
        None
        if grad is None
        else (grad.reshape(grad.shape[4 - x.dim() :]) if i in whole else grad).to(
            x.dtype if value is None else value.dtype
        )
        for i, (grad, value) in enumerate(zip(grads, saved, strict=True))
    ]
