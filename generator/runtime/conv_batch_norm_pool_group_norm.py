"""Pattern 3: transposed convolution, BatchNorm2d, activation, MaxPool2d, GroupNorm."""

import torch

from generator.runtime.abi import _ConvBatchNormPoolGroupNormCall
from generator.runtime.arguments import (
    _about,
    _batch_norm_ok,
    _group_norm_ok,
    _make_conv,
    _make_pool,
    _output_size,
    _plan_conv,
    _pooled_shape,
)
from generator.runtime.batch_norm import _statistics_source, _update_running_statistics
from generator.runtime.gradients import (
    _conv_gradients,
    _group_norm_gradients,
    _recompute_conv,
)
from generator.runtime.launch import (
    _dense,
    _fill_conv,
    _fill_group_norm,
    _launch,
    _plan_call,
    _pointer_of,
)
from generator.runtime.low_precision import _is_low_precision_on_cpu, _narrow, _widen
from generator.runtime.problem import _ACTIVATION
from generator.runtime.registration import _register

_SCHEMA = (
    "conv_transpose2d_batch_norm_pool_group_norm(Tensor x, Tensor weight, Tensor? bias, int[] "
    "stride, int[] padding, "
    "int[] output_padding, int[] dilation, int groups, Tensor? batch_norm_weight, Tensor? "
    "batch_norm_bias, "
    "Tensor? running_mean, Tensor? running_var, bool use_batch_stats, float batch_norm_eps, int[] "
    "pool_kernel, "
    "int[] pool_stride, int[] pool_padding, int[] pool_dilation, bool ceil_mode, int num_groups, "
    "Tensor? norm_weight, Tensor? norm_bias, float norm_eps) -> (Tensor, Tensor, Tensor)"
)


def _split_arguments(args) -> tuple:
    """(convolution, BatchNorm, pool, GroupNorm) arguments after x, weight and bias."""
    return args[:5], args[5:11], args[11:16], args[16:20]


def _check_rest(shape, about_x, norm, pool_args, group_norm) -> tuple:
    """(pool parameters, pooled shape), everything after the convolution checked."""
    _batch_norm_ok(shape, norm[4], about_x, *map(_about, norm[:4]))
    pool = _make_pool(*pool_args)
    pooled = _pooled_shape(shape, pool)
    _group_norm_ok(pooled, group_norm[0], *map(_about, group_norm[1:3]), about_x)
    return pool, pooled


def _statistics_dtype(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype == torch.float64 else torch.float32


def _run_pattern(library, x, weight, bias, *args):
    conv_args, norm, pool_args, group_norm = _split_arguments(args)
    about_x = _about(x)
    pairs = tuple(map(tuple, conv_args[:4]))
    shape, template = _plan_call(
        about_x, x.stride(), _about(weight), _about(bias), (), *pairs, conv_args[4]
    )
    pool, pooled = _check_rest(shape, about_x, norm, pool_args, group_norm)
    if _is_low_precision_on_cpu(x):
        wide = [_widen(arg) if isinstance(arg, torch.Tensor) else arg for arg in args]
        out, mean, var = _run_pattern(library, _widen(x), _widen(weight), _widen(bias), *wide)
        return _narrow(out, x.dtype), mean, var
    norm_weight, norm_bias, running_mean, running_var, use_batch_stats, norm_eps = norm
    dtype = _statistics_dtype(x.dtype)
    out = torch.empty(pooled, dtype=x.dtype, device=x.device)
    channels = shape[1] if use_batch_stats else 0
    make = torch.empty if out.numel() else torch.zeros
    mean, var = (make(channels, dtype=dtype, device=x.device) for _ in range(2))
    if out.numel():
        weight, bias, norm_weight, norm_bias = map(_dense, (weight, bias, norm_weight, norm_bias))
        group_norm = (group_norm[0], _dense(group_norm[1]), _dense(group_norm[2]), group_norm[3])
        call = _ConvBatchNormPoolGroupNormCall()
        _fill_conv(call, template, x, weight, bias, (), out)
        _fill_group_norm(call.group_norm, *group_norm)
        block = call.batch_norm_pool
        block.use_batch_stats = use_batch_stats
        block.eps = norm_eps
        block.weight = _pointer_of(norm_weight)
        block.bias = _pointer_of(norm_bias)
        if use_batch_stats:
            block.batch_mean, block.batch_var = mean.data_ptr(), var.data_ptr()
        else:
            running_mean, running_var = (
                _dense(tensor.to(dtype)) for tensor in (running_mean, running_var)
            )
            block.running_mean, block.running_var = running_mean.data_ptr(), running_var.data_ptr()
        block.pool_kernel_h, block.pool_kernel_w = pool.kernel
        block.pool_stride_h, block.pool_stride_w = pool.stride
        block.pool_padding_h, block.pool_padding_w = pool.padding
        block.pool_dilation_h, block.pool_dilation_w = pool.dilation
        block.pooled_h, block.pooled_w = pooled[2:]
        _launch(library, call, x.device)
    return out, mean, var


def _fake_pattern(x, weight, bias, *args):
    conv_args, norm, pool_args, group_norm = _split_arguments(args)
    _, shape = _plan_conv(_about(x), _about(weight), _about(bias), (), *conv_args)
    _, pooled = _check_rest(shape, _about(x), norm, pool_args, group_norm)
    channels = shape[1] if norm[4] else 0
    dtype = _statistics_dtype(x.dtype)
    return x.new_empty(pooled), *(x.new_empty(channels, dtype=dtype) for _ in range(2))


def _setup_pattern(ctx, inputs, output):
    x, weight, bias, *args = inputs
    conv_args, norm, pool_args, group_norm = _split_arguments(args)
    norm_weight, norm_bias, running_mean, running_var, ctx.use_batch_stats, ctx.norm_eps = norm
    ctx.conv = _make_conv(*conv_args)
    ctx.pool = _make_pool(*pool_args)
    ctx.num_groups, group_weight, _, ctx.group_eps = group_norm
    ctx.mark_non_differentiable(*output[1:])
    ctx.save_for_backward(
        x, weight, bias, norm_weight, norm_bias, running_mean, running_var, group_weight
    )


def _backward_pattern(ctx, grad, _grad_mean, _grad_var):
    saved = ctx.saved_tensors
    dtype = saved[0].dtype
    if _is_low_precision_on_cpu(saved[0]):
        grad, saved = _widen(grad), [_widen(tensor) for tensor in saved]
    x, weight, bias, norm_weight, norm_bias, running_mean, running_var, group_weight = saved
    aten, training, pool = torch.ops.aten, ctx.use_batch_stats, ctx.pool
    needs = ctx.needs_input_grad
    conv_out = _recompute_conv(x, weight, bias, ctx.conv)
    normed, mean, rstd = aten.native_batch_norm(
        conv_out, norm_weight, norm_bias, running_mean, running_var, training, 0.0, ctx.norm_eps
    )
    active = _ACTIVATION.forward(normed, ())
    pooled, indices = aten.max_pool2d_with_indices(active, *pool)
    grad, grad_group_weight, grad_group_bias = _group_norm_gradients(
        grad, pooled, group_weight, ctx.num_groups, ctx.group_eps, needs[-3:-1]
    )
    grad = aten.max_pool2d_with_indices_backward(grad, active, *pool, indices)
    grad = _ACTIVATION.backward(grad, normed, active, (), None)
    grad, grad_norm_weight, grad_norm_bias = aten.native_batch_norm_backward(
        grad,
        conv_out,
        norm_weight,
        running_mean,
        running_var,
        mean,
        rstd,
        training,
        ctx.norm_eps,
        [True, needs[8], needs[9]],
    )
    grads = (
        *_conv_gradients(grad, x, weight, ctx.conv, needs[:3]),
        *[None] * 5,
        grad_norm_weight,
        grad_norm_bias,
        *[None] * 10,
        grad_group_weight,
        grad_group_bias,
        None,
    )
    return tuple(_narrow(g, dtype) for g in grads)


def _forward_and_track(operator, norm, x, weight, bias, conv_args, pool_args, group_norm_args):
    """Runs the operator with the nn.BatchNorm2d `norm`, then updates its running statistics."""
    running_mean, running_var, use_batch_stats = _statistics_source(norm)
    out, mean, var = operator(
        x,
        weight,
        bias,
        *conv_args,
        norm.weight,
        norm.bias,
        running_mean,
        running_var,
        use_batch_stats,
        norm.eps,
        *pool_args,
        *group_norm_args,
    )
    count = x.shape[0]
    for axis, size in enumerate(x.shape[2:]):
        count = count * _output_size(
            size, weight.shape[2 + axis], *(pair[axis] for pair in conv_args[:4])
        )
    _update_running_statistics(norm, mean, var, count)
    return out


def _register_operator(library):
    return _register(
        library, _SCHEMA, _run_pattern, _fake_pattern, _setup_pattern, _backward_pattern
    )
