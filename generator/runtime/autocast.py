"""torch.autocast, as PyTorch's lists have it: convolutions in the low precision, GroupNorm in fp32
on CUDA, everything else in what it is given.
"""

import torch


def _autocasting() -> bool:
    return torch.compiler.is_compiling() or torch._C._is_any_autocast_enabled()


def _autocast_dtype(x):
    """The low precision in which a convolution of `x` is asked for, or None."""
    kind = x.device.type
    if x.dtype is torch.float64 or not torch.is_autocast_enabled(kind):
        return None
    return torch.get_autocast_dtype(kind)


def _cast_all(tensors, dtype: torch.dtype) -> list:
    return [None if tensor is None else tensor.to(dtype) for tensor in tensors]


def _autocast_chain(x, tensors, vectors) -> tuple:
    """(x, tensors, vectors) of a convolution and element-wise operations. A per-channel operand in
    fp32 makes the result fp32; then all of it is computed in fp32, and not rounded on the way.
    """
    dtype = _autocast_dtype(x)
    if dtype is None:
        return x, tensors, vectors
    for vector in vectors:
        dtype = torch.promote_types(dtype, vector.dtype)
    return x.to(dtype), _cast_all(tensors, dtype), _cast_all(vectors, dtype)


def _autocast_norm(x, tensors, norm_tensors, vectors) -> tuple:
    """The same where GroupNorm ends the chain: on CUDA its result is fp32, on a CPU the low
    precision, beside which a norm's parameters may stay in fp32.
    """
    dtype = _autocast_dtype(x)
    if dtype is None:
        return x, tensors, norm_tensors, vectors
    if x.device.type == "cuda":
        dtype = torch.float32
        norm_tensors = _cast_all(norm_tensors, dtype)
    for vector in vectors:
        dtype = torch.promote_types(dtype, vector.dtype)
    return x.to(dtype), _cast_all(tensors, dtype), norm_tensors, _cast_all(vectors, dtype)
