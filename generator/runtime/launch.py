"""From checked tensors to one call of the shared library."""

import ctypes as _ctypes
import functools as _functools
import os as _os

import torch

from generator.runtime.abi import (
    _KERNEL_CHOICES,
    _KERNEL_DTYPES,
    _MATH_STRICT,
    _MATH_TF32,
    _STATUS_MESSAGES,
    _ConvCall,
    _Problem,
)
from generator.runtime.arguments import _plan_conv

_WORKSPACE_ALIGNMENT = 256


def _kernel_choice() -> int:
    """TCONV_KERNEL = auto | plain | direct | portable | hopper | held | avx2 forces one; unset:
    auto.
    """
    name = _os.environ.get("TCONV_KERNEL", "auto")
    if name not in _KERNEL_CHOICES:
        raise ValueError(f"TCONV_KERNEL must be one of {', '.join(_KERNEL_CHOICES)}, got {name!r}")
    return _KERNEL_CHOICES[name]


def _math_mode(dtype: torch.dtype) -> int:
    """How fp32 products are formed, read at every call.

    This reading is what cuDNN convolutions obey: PyTorch resolves the old switch (cudnn.allow_tf32)
    and the new ones (cudnn.conv, cudnn, then torch.backends) into it, and it never raises, however
    they were set.
    """
    if dtype == torch.float32 and torch.backends.cudnn.conv.fp32_precision == "tf32":
        return _MATH_TF32
    return _MATH_STRICT


def _pointer_of(tensor) -> int | None:
    return None if tensor is None else tensor.data_ptr()


def _dense(tensor):
    """The kernels read everything but the input as contiguous memory."""
    return None if tensor is None else tensor.contiguous()


@_functools.lru_cache(maxsize=1024)
def _plan_call(x, x_stride, weight, bias, vectors, *conv_args) -> tuple:
    """(output shape, the bytes of a ConvCall without its pointers), checked once per combination of
    arguments.

    x, weight, bias, vectors: what `_about` says of each tensor.
    """
    conv, shape = _plan_conv(x, weight, bias, vectors, *conv_args)
    problem = _Problem(
        x[0][0] if len(x[0]) == 4 else 1,
        x[0][-3],
        shape[-3],
        conv.groups,
        *x[0][-2:],
        *shape[-2:],
        *weight[0][2:],
        *conv.stride,
        *conv.padding,
        *conv.dilation,
        x_stride[0] if len(x[0]) == 4 else 0,
        *x_stride[-3:],
    )
    return shape, bytes(_ConvCall(problem=problem, dtype=_KERNEL_DTYPES[x[1]]))


def _fill_conv(call, template: bytes, x, weight, bias, vectors, out) -> None:
    """Fills the ConvCall at the head of `call`; weight, bias and vectors must be contiguous."""
    _ctypes.memmove(_ctypes.addressof(call), template, len(template))
    conv = call.conv
    conv.math = _math_mode(x.dtype)
    conv.kernel_choice = _kernel_choice()
    conv.x = x.data_ptr()
    conv.weight = weight.data_ptr()
    conv.bias = _pointer_of(bias)
    for index, vector in enumerate(vectors):
        conv.channel_vectors[index] = vector.data_ptr()
    conv.out = out.data_ptr()


def _fill_group_norm(args, num_groups: int, weight, bias, eps: float) -> None:
    args.num_groups = num_groups
    args.eps = eps
    args.weight = _pointer_of(weight)
    args.bias = _pointer_of(bias)


def _raise_failure(library, status: int) -> None:
    if status < 0:
        raise RuntimeError(f"conv_transpose2d: {_STATUS_MESSAGES.get(status, f'status {status}')}")
    text = library.tconv_cuda_error_string(status).decode()
    raise RuntimeError(f"conv_transpose2d: CUDA error {status}: {text}")


def _call_kernel(library, call, workspace_bytes, run, device: torch.device) -> None:
    address = _ctypes.addressof(call)
    needed = workspace_bytes(address)
    if needed < 0:
        _raise_failure(library, needed)
    if needed:
        workspace = torch.empty(needed + _WORKSPACE_ALIGNMENT, dtype=torch.uint8, device=device)
        start = workspace.data_ptr()
        call.conv.workspace = start + -start % _WORKSPACE_ALIGNMENT
        call.conv.workspace_bytes = needed
    status = run(address)
    if status:
        _raise_failure(library, status)


def _launch(library, call, device: torch.device) -> None:
    """Runs a filled argument block: on the host, or on the device's current stream. Raises
    RuntimeError on failure.
    """
    if device.type == "cpu":
        call.conv.num_threads = torch.get_num_threads()
        _call_kernel(
            library, call, library.tconv_cpu_workspace_bytes, library.tconv_cpu_run, device
        )
        return
    if not library.has_cuda:
        raise RuntimeError(
            "conv_transpose2d: the CUDA kernels were not built: this needs a CUDA build of "
            "PyTorch and nvcc "
            "(CUDA_HOME) when the file is loaded"
        )
    with torch.cuda.device(device):
        call.conv.stream = torch.cuda.current_stream().cuda_stream
        _call_kernel(
            library, call, library.tconv_cuda_workspace_bytes, library.tconv_cuda_run, device
        )
