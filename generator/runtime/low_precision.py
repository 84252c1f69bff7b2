"""Backward formulas in fp32 where PyTorch's would not take the dtypes: 16 bits on a CPU, a 16-bit
input beside fp32 parameters of a norm. Rounded once at the end.
"""

import torch

_LOW = (torch.float16, torch.bfloat16)


def _widened(grad, tensors) -> tuple:
    """(grad, tensors), in fp32 where that is needed; tensors[0] is the input."""
    x = tensors[0]
    if x.dtype not in _LOW:
        return grad, tensors
    if x.device.type != "cpu" and all(t is None or t.dtype == x.dtype for t in tensors):
        return grad, tensors
    return grad.float(), [None if t is None else t.float() for t in tensors]


def _narrowed(grads, tensors) -> list:
    """Each gradient in the dtype of its own tensor."""
    return [
        grad
        if grad is None or tensor is None or grad.dtype is tensor.dtype
        else grad.to(tensor.dtype)
        for grad, tensor in zip(grads, tensors, strict=True)
    ]
