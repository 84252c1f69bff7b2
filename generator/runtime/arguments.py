"""Checks of the transposed convolution's arguments, and the output's shape."""

from typing import NamedTuple as _NamedTuple

from generator.runtime.abi import _KERNEL_DTYPES, _MAX_CHANNEL_VECTORS


class _Conv(_NamedTuple):
    """Parameters of nn.ConvTranspose2d; each pair is (height, width)."""

    stride: tuple
    padding: tuple
    output_padding: tuple
    dilation: tuple
    groups: int


def _require(condition, message: str) -> None:
    if not condition:
        raise RuntimeError(f"conv_transpose2d: {message}")


def _as_pair(name: str, values) -> tuple:
    _require(
        len(values) == 2,
        f"{name} must be an int or a pair (height, width), got {len(values)} values: "
        f"{tuple(values)}",
    )
    return tuple(values)


def _make_conv(stride, padding, output_padding, dilation, groups) -> _Conv:
    """Pairs of the right length and range; RuntimeError names the argument that is not."""
    conv = _Conv(
        _as_pair("stride", stride),
        _as_pair("padding", padding),
        _as_pair("output_padding", output_padding),
        _as_pair("dilation", dilation),
        groups,
    )
    _require(min(conv.stride) > 0, f"stride must be positive, got {conv.stride}")
    _require(min(conv.padding) >= 0, f"padding must be non-negative, got {conv.padding}")
    _require(min(conv.dilation) > 0, f"dilation must be positive, got {conv.dilation}")
    _require(groups > 0, f"groups must be positive, got {groups}")
    for axis, added in enumerate(conv.output_padding):
        _require(added >= 0, f"output_padding must be non-negative, got {conv.output_padding}")
        limit = max(conv.stride[axis], conv.dilation[axis])
        _require(
            added < limit,
            "output_padding must be smaller than stride or dilation on each axis, got "
            "output_padding "
            f"{conv.output_padding}, stride {conv.stride}, dilation {conv.dilation}",
        )
    return conv


def _same_kind(name: str, value, x) -> None:
    """`value` is (shape, dtype, device) of a tensor, or None; so is `x`."""
    if value is None:
        return
    _require(
        value[1] == x[1],
        f"{name} must have the input's dtype, got {name} {value[1]} and input {x[1]}",
    )
    _require(
        value[2] == x[2],
        f"{name} must be on the input's device, got {name} on {value[2]} and input on {x[2]}",
    )


def _channel_vector_ok(name: str, value, channels, x) -> None:
    """Checks an optional tensor of one value per channel, given as (shape, dtype, device)."""
    if value is None:
        return
    _require(
        len(value[0]) == 1 and value[0][0] == channels,
        f"{name} must have shape ({channels},), one value per channel, got {tuple(value[0])}",
    )
    _same_kind(name, value, x)


def _output_size(size, kernel, stride, padding, output_padding, dilation):
    """One axis of the output. Source: PyTorch ConvTranspose2d documentation."""
    return (size - 1) * stride - 2 * padding + dilation * (kernel - 1) + output_padding + 1


def _conv_output_shape(x, weight, bias, vectors, conv: _Conv) -> tuple:
    """Output shape for an input [batch, in_channels, h, w] or [in_channels, h, w].

    x, weight, bias, vectors: (shape, dtype, device) of each tensor, or None. Raises RuntimeError,
    as PyTorch does, for every combination that nn.ConvTranspose2d refuses.
    """
    x_shape, x_dtype, _ = x
    weight_shape = weight[0]
    _require(
        len(x_shape) in (3, 4),
        "input must have 3 dimensions (unbatched: channels, height, width) or 4 (batch first), "
        f"got shape {tuple(x_shape)}",
    )
    _require(
        len(weight_shape) == 4,
        "weight must have 4 dimensions (in_channels, out_channels / groups, kernel height, kernel "
        "width), "
        f"got shape {tuple(weight_shape)}",
    )
    _require(
        x_dtype in _KERNEL_DTYPES,
        f"input must be float32, float64, float16 or bfloat16, got {x_dtype}",
    )
    _same_kind("weight", weight, x)
    channels, height, width = x_shape[-3:]
    _require(
        weight_shape[0] == channels,
        f"input must have {weight_shape[0]} channels, the first dimension of weight "
        f"{tuple(weight_shape)}, "
        f"got {channels} in an input of shape {tuple(x_shape)}",
    )
    _require(
        channels % conv.groups == 0,
        f"input channels must be divisible by groups, got {channels} channels and groups "
        f"{conv.groups}",
    )
    _require(
        channels > 0 and height > 0 and width > 0,
        f"only the batch may be empty, got an input of shape {tuple(x_shape)}",
    )
    out_channels = weight_shape[1] * conv.groups
    _require(
        weight_shape[1] > 0 and weight_shape[2] > 0 and weight_shape[3] > 0,
        f"weight must not be empty, got shape {tuple(weight_shape)}",
    )
    _channel_vector_ok("bias", bias, out_channels, x)
    _require(
        len(vectors) <= _MAX_CHANNEL_VECTORS,
        f"at most {_MAX_CHANNEL_VECTORS} per-channel operands are allowed, got {len(vectors)}",
    )
    for vector in vectors:
        _channel_vector_ok("a per-channel operand", vector, out_channels, x)
    sizes = [
        _output_size(*axis)
        for axis in zip(
            (height, width),
            weight_shape[2:],
            conv.stride,
            conv.padding,
            conv.output_padding,
            conv.dilation,
            strict=True,
        )
    ]
    _require(
        sizes[0] > 0 and sizes[1] > 0,
        f"the output must have a positive size, got {sizes[0]} x {sizes[1]} for an input of shape "
        f"{tuple(x_shape)}, "
        f"a kernel of {tuple(weight_shape[2:])}, stride {conv.stride}, padding {conv.padding}",
    )
    return (*x_shape[:-3], out_channels, *sizes)


def _group_norm_ok(shape, num_groups, weight, bias, x) -> None:
    """Checks GroupNorm over an output of `shape` [batch, channels, h, w], as PyTorch does."""
    _require(
        len(shape) == 4,
        "an unbatched input (3 dimensions) cannot be followed by GroupNorm; add a batch dimension",
    )
    batch, channels, height, width = shape
    _require(num_groups > 0, f"num_groups must be positive, got {num_groups}")
    _require(
        channels % num_groups == 0,
        f"channels must be divisible by num_groups, got {channels} channels and num_groups "
        f"{num_groups}",
    )
    _channel_vector_ok("the GroupNorm weight", weight, channels, x)
    _channel_vector_ok("the GroupNorm bias", bias, channels, x)
    if batch * channels // num_groups * height * width == 1:
        raise ValueError(
            "group_norm: expected more than 1 value per group, got an input of shape "
            f"{tuple(shape)} "
            f"and num_groups {num_groups}"
        )


class _Pool(_NamedTuple):
    """Parameters of nn.MaxPool2d; each pair is (height, width)."""

    kernel: tuple
    stride: tuple
    padding: tuple
    dilation: tuple
    ceil_mode: bool


def _make_pool(kernel, stride, padding, dilation, ceil_mode) -> _Pool:
    pool = _Pool(
        _as_pair("the pool's kernel_size", kernel),
        _as_pair("the pool's stride", stride),
        _as_pair("the pool's padding", padding),
        _as_pair("the pool's dilation", dilation),
        ceil_mode,
    )
    for name, pair in zip(
        ("kernel_size", "stride", "dilation"), (pool[0], pool[1], pool[3]), strict=True
    ):
        _require(min(pair) > 0, f"the pool's {name} must be positive, got {pair}")
    for size, added, spacing in zip(pool.kernel, pool.padding, pool.dilation, strict=True):
        _require(
            0 <= added <= (spacing * (size - 1) + 1) // 2,
            "the pool's padding must be between 0 and half of the dilated kernel, got padding "
            f"{pool.padding}, kernel_size {pool.kernel}, dilation {pool.dilation}",
        )
    return pool


def _pooled_size(size, kernel, stride, padding, dilation, ceil_mode):
    """One axis after nn.MaxPool2d: in ceil_mode a last window that starts beyond the image is
    dropped.
    """
    reach = size + 2 * padding - dilation * (kernel - 1) - 1
    if not ceil_mode:
        return reach // stride + 1
    pooled = -(-reach // stride) + 1
    return pooled - 1 if (pooled - 1) * stride >= size + padding else pooled


def _pooled_shape(shape, pool: _Pool) -> tuple:
    sizes = [_pooled_size(*axis, pool.ceil_mode) for axis in zip(shape[2:], *pool[:4], strict=True)]
    _require(
        sizes[0] > 0 and sizes[1] > 0,
        f"the pooled output must have a positive size, got {sizes[0]} x {sizes[1]} for an image of "
        f"{shape[2]} x {shape[3]} and a kernel of {pool.kernel}",
    )
    return (*shape[:2], *sizes)


def _batch_norm_ok(shape, use_batch_stats: bool, x, weight, bias, mean, var) -> None:
    """Checks BatchNorm2d over an output of `shape`; ValueError as PyTorch for a wrong number of
    dimensions or values.
    """
    if len(shape) != 4:
        raise ValueError(
            "batch_norm: input must have 4 dimensions (batch, channels, height, width), got a "
            "convolution output of "
            f"shape {tuple(shape)}"
        )
    batch, channels, height, width = shape
    _channel_vector_ok("the BatchNorm weight", weight, channels, x)
    _channel_vector_ok("the BatchNorm bias", bias, channels, x)
    if use_batch_stats:
        if batch * height * width == 1:
            raise ValueError(
                "batch_norm: expected more than 1 value per channel when training, got shape "
                f"{tuple(shape)}"
            )
        return
    for name, value in (("running_mean", mean), ("running_var", var)):
        _require(
            value is not None, f"{name} is needed where batch statistics are not used, got None"
        )
        _require(
            len(value[0]) == 1 and value[0][0] == channels and value[2] == x[2],
            f"{name} must have shape ({channels},) on {x[2]}, got {tuple(value[0])} on {value[2]}",
        )


def _plan_conv(x, weight, bias, vectors, *conv_args) -> tuple:
    """(parameters, output shape), checked; tensors are given as (shape, dtype, device)."""
    conv = _make_conv(*conv_args)
    return conv, _conv_output_shape(x, weight, bias, vectors, conv)


def _about(tensor):
    """What the checks need of a tensor; hashable where its shape is."""
    return None if tensor is None else (tensor.shape, tensor.dtype, tensor.device)
