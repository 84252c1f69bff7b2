"""ctypes mirror of kernels_src/call.h, and the enumerations of kernels_src/common.h (avx2:
kernels_src/cpu/vector_code.h).
"""

import ctypes as _ctypes

import torch

_KERNEL_DTYPES = {torch.float32: 0, torch.float64: 1, torch.float16: 2, torch.bfloat16: 3}
_MATH_TF32, _MATH_STRICT = 0, 1
_KERNEL_CHOICES = {
    "auto": 0,
    "plain": 1,
    "portable": 2,
    "hopper": 3,
    "direct": 4,
    "held": 5,
    "avx2": 6,
}
_STATUS_MESSAGES = {
    -1: "the kernel does not support this dtype",
    -2: "the kernel forced by TCONV_KERNEL cannot run this problem",
    -3: "the workspace is too small",
}
_MAX_CHANNEL_VECTORS = 4

_int64 = _ctypes.c_int64
_pointer = _ctypes.c_void_p


class _Problem(_ctypes.Structure):
    _fields_ = [
        (name, _int64)
        for name in (
            "batch in_channels out_channels groups in_h in_w out_h out_w kernel_h kernel_w "
            "stride_h stride_w padding_h padding_w dilation_h dilation_w "
            "x_stride_n x_stride_c x_stride_h x_stride_w"
        ).split()
    ]


class _ConvCall(_ctypes.Structure):
    _fields_ = [
        ("problem", _Problem),
        ("dtype", _int64),
        ("math", _int64),
        ("kernel_choice", _int64),
        ("num_threads", _int64),
        ("x", _pointer),
        ("weight", _pointer),
        ("bias", _pointer),
        ("channel_vectors", _pointer * _MAX_CHANNEL_VECTORS),
        ("out", _pointer),
        ("workspace", _pointer),
        ("workspace_bytes", _int64),
        ("stream", _pointer),
    ]


class _GroupNormArgs(_ctypes.Structure):
    _fields_ = [
        ("num_groups", _int64),
        ("eps", _ctypes.c_double),
        ("weight", _pointer),
        ("bias", _pointer),
    ]


class _BatchNormPoolArgs(_ctypes.Structure):
    _fields_ = [
        ("use_batch_stats", _int64),
        ("eps", _ctypes.c_double),
        ("weight", _pointer),
        ("bias", _pointer),
        ("running_mean", _pointer),
        ("running_var", _pointer),
        ("batch_mean", _pointer),
        ("batch_var", _pointer),
        ("pool_kernel_h", _int64),
        ("pool_kernel_w", _int64),
        ("pool_stride_h", _int64),
        ("pool_stride_w", _int64),
        ("pool_padding_h", _int64),
        ("pool_padding_w", _int64),
        ("pool_dilation_h", _int64),
        ("pool_dilation_w", _int64),
        ("pooled_h", _int64),
        ("pooled_w", _int64),
    ]


class _ConvOnlyCall(_ctypes.Structure):
    _fields_ = [("conv", _ConvCall)]


class _ConvGroupNormCall(_ctypes.Structure):
    _fields_ = [("conv", _ConvCall), ("group_norm", _GroupNormArgs)]


class _ConvBatchNormPoolGroupNormCall(_ctypes.Structure):
    _fields_ = [
        ("conv", _ConvCall),
        ("batch_norm_pool", _BatchNormPoolArgs),
        ("group_norm", _GroupNormArgs),
    ]
