"""Pattern 3: transposed convolution, BatchNorm2d, activation, MaxPool2d, GroupNorm."""

from math import prod as _prod

import torch

from generator.runtime.allocation import _ALLOCATION
from generator.runtime.arguments import (
    _Conv,
    _conv_output_shape,
    _make_conv,
    _make_pool,
    _new_output,
    _output_size,
    _pooled_shape,
)
from generator.runtime.autocast import _autocast_norm, _autocasting
from generator.runtime.batch_norm import _update_running_statistics
from generator.runtime.batch_norm_pool_gradient_kernels import (
    _kernel_pool_gradients,
    _kernels_pool,
)
from generator.runtime.dispatch import _as_operator, _make_functions, _transformed, _wants_gradient
from generator.runtime.generated import _ACTIVATION, _CALL, _CHAIN_NUMBER
from generator.runtime.gradient_kernels import _GRADIENT_DEVICES, _slides
from generator.runtime.gradients import (
    _conv_gradients_with,
    _conv_output,
    _group_norm_gradients,
    _no_gradients,
    _own_kernels,
)
from generator.runtime.kept_output import _conv_shape, _keeps_output
from generator.runtime.low_precision import _narrowed, _widened
from generator.runtime.precision import _tf32_allowed
from generator.runtime.registration import _count_flops, _register

# Below: `norm` is BatchNorm's (weight, bias, running_mean, running_var, use_batch_stats, eps),
# `group_norm` GroupNorm's (num_groups, weight, bias, eps), `kept` what the kernels write of the
# batch's statistics: (running_mean, running_var, num_batches, momentum, batch_mean, batch_var);
# conv_out the convolution's output, where it is there before, or on a CPU a flat tensor for it, or
# None.
_SCHEMA = (
    f"conv_transpose2d_batch_norm_pool_group_norm{_CALL}(Tensor x, Tensor weight, Tensor? bias, "
    "int[] stride, int[] padding, "
    "int[] output_padding, int[] dilation, int groups, Tensor? batch_norm_weight, Tensor? "
    "batch_norm_bias, "
    "Tensor? running_mean, Tensor? running_var, bool use_batch_stats, float batch_norm_eps, int[] "
    "pool_kernel, "
    "int[] pool_stride, int[] pool_padding, int[] pool_dilation, bool ceil_mode, int num_groups, "
    "Tensor? norm_weight, Tensor? norm_bias, float norm_eps) -> (Tensor, Tensor, Tensor)"
)
_KEEPS_NOTHING = (None, None, None, 0.0, None, None)


def _make_run(kernels):
    def run(x, weight, bias, conv, norm, kept, pool, group_norm, conv_out=None):
        (sh, sw), (ph, pw), (oph, opw), (dh, dw), groups = conv
        norm_weight, norm_bias, running_mean, running_var, use_batch_stats, norm_eps = norm
        num_batches, momentum, batch_mean, batch_var = kept[2:]
        if use_batch_stats:
            running_mean, running_var = kept[:2]
        (pkh, pkw), (psh, psw), (pph, ppw), (pdh, pdw), ceil_mode = pool
        tf32 = _tf32_allowed()
        with _ALLOCATION:
            return kernels(
                *(x, weight, bias, sh, sw, ph, pw, oph, opw, dh, dw, groups, tf32),
                *(norm_weight, norm_bias, running_mean, running_var, num_batches, momentum),
                *(batch_mean, batch_var, use_batch_stats, norm_eps),
                *(pkh, pkw, psh, psw, pph, ppw, pdh, pdw, ceil_mode),
                *group_norm,
                conv_out,
            )

    return run


def _split_arguments(args) -> tuple:
    """(convolution, BatchNorm, pool, GroupNorm) arguments after x, weight and bias."""
    return args[:5], args[5:11], args[11:16], args[16:20]


def _statistics_dtype(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype == torch.float64 else torch.float32


def _make_traced(run):
    def traced(x, weight, bias, *args):
        conv, norm, pool, group_norm = _split_arguments(args)
        channels = weight.shape[1] * conv[4] if norm[4] else 0
        dtype = _statistics_dtype(x.dtype)
        mean, var = (torch.zeros(channels, dtype=dtype, device=x.device) for _ in range(2))
        kept = (None, None, None, 0.0, mean, var) if norm[4] else _KEEPS_NOTHING
        out = run(x, weight, bias, conv, norm, kept, _make_pool(*pool), group_norm)
        return out, mean, var

    return traced


def _make_fake_run(fake):
    def fake_run(x, weight, bias, *args):
        conv_pairs = zip(args[0:8:2], args[1:8:2], strict=True)
        pool_pairs = zip(args[20:28:2], args[21:28:2], strict=True)
        norm = args[10], args[11], args[12], args[13], args[18], args[19]
        return fake(x, weight, bias, *conv_pairs, args[8], *norm, *pool_pairs, *args[28:32])[0]

    return fake_run


def _fake(x, weight, bias, *args):
    conv_args, norm, pool_args, _ = _split_arguments(args)
    shape = _conv_output_shape(x, weight, bias, _make_conv(*conv_args))
    pooled = _pooled_shape(shape, _make_pool(*pool_args))
    channels = shape[1] if norm[4] else 0
    dtype = _statistics_dtype(x.dtype)
    return _new_output(pooled, x, weight), *(x.new_empty(channels, dtype=dtype) for _ in range(2))


def _save(ctx, x, weight, bias, conv, norm, pool, group_norm, conv_out=None, batch=(None, None)):
    """conv_out, batch: the convolution's output, and the batch's mean and variance, where kept."""
    norm_weight, norm_bias, running_mean, running_var, ctx.use_batch_stats, ctx.norm_eps = norm
    ctx.conv, ctx.pool = conv, pool
    ctx.num_groups, group_weight, group_bias, ctx.group_eps = group_norm
    parameters = norm_weight, norm_bias, group_weight, group_bias
    statistics = batch
    if not ctx.use_batch_stats:  # a later batch may move them
        statistics = running_mean.clone(), running_var.clone()
    ctx.save_for_backward(x, weight, bias, *parameters, *statistics, conv_out)


def _aten_pool_gradients(grad, conv_out, norm, pool, group_norm, norm_needs, group_needs) -> tuple:
    """(gradient of conv_out, of BatchNorm's weight and bias, of GroupNorm's)"""
    aten = torch.ops.aten
    norm_weight, norm_bias, running_mean, running_var, training, eps = norm
    if training:
        running_mean = running_var = None
    normed, mean, rstd = aten.native_batch_norm.default(
        conv_out, norm_weight, norm_bias, running_mean, running_var, training, 0.0, eps
    )
    active = _ACTIVATION.forward(normed, ())
    pooled, indices = aten.max_pool2d_with_indices.default(active, *pool)
    grad, *group_grads = _group_norm_gradients(grad, pooled, *group_norm, group_needs)
    grad = aten.max_pool2d_with_indices_backward.default(grad, active, *pool, indices)
    grad = _ACTIVATION.backward(grad, normed, active, (), None)
    grad, *norm_grads = aten.native_batch_norm_backward.default(
        *(grad, conv_out, norm_weight, running_mean, running_var, mean, rstd, training, eps),
        [True, *norm_needs],
    )
    return grad, norm_grads, group_grads


def _gradients(ctx, grad, norm_needs, group_needs) -> tuple:
    """(gradients of x, weight and bias, of BatchNorm's and of GroupNorm's weight and bias)"""
    *saved, mean, var, conv_out = ctx.saved_tensors
    if saved[0].numel() == 0:
        grads = _no_gradients(saved)
        return grads[:3], grads[3:5], grads[5:]
    conv = _Conv(*ctx.conv)
    grad, tensors = _widened(grad, saved)
    x, weight, bias, norm_weight, norm_bias, group_weight, _ = tensors
    if not ctx.use_batch_stats and x.dtype is not saved[0].dtype:
        mean, var = mean.float(), var.float()
    own = _own_kernels(x) and _kernels_pool(ctx.pool)
    if conv_out is None or torch.is_grad_enabled():
        conv_out = _conv_output(x, weight, bias, conv)
    elif conv_out.dim() == 1:
        conv_out = conv_out.view(_conv_shape(x, weight, conv))
    norm = norm_weight, norm_bias, mean, var, ctx.use_batch_stats, ctx.norm_eps
    group_norm = group_weight, ctx.num_groups, ctx.group_eps
    needs, sums = ctx.needs_input_grad[:3], None
    if own:
        norm_needs = *norm_needs, *group_needs, needs[2]
        grad, *grads, sums = _kernel_pool_gradients(
            *(grad, conv_out, norm, ctx.pool, group_norm, norm_needs),
            *(_slides(conv), _CHAIN_NUMBER),
        )
        norm_grads, group_grads = grads[:2], grads[2:]
    else:
        grad, norm_grads, group_grads = _aten_pool_gradients(
            grad, conv_out.contiguous(), norm, ctx.pool, group_norm, norm_needs, group_needs
        )
    del conv_out  # its memory serves the convolution's gradients
    conv_grads = _conv_gradients_with(sums, grad, x, weight, conv, needs)
    parts = (conv_grads, saved[:3]), (norm_grads, saved[3:5]), (group_grads, saved[5:])
    return tuple(_narrowed(*part) for part in parts)


def _setup_traced(ctx, inputs, output) -> None:
    x, weight, bias, *args = inputs
    conv_args, norm, pool_args, group_norm = _split_arguments(args)
    ctx.mark_non_differentiable(*output[1:])
    _save(ctx, x, weight, bias, _make_conv(*conv_args), norm, _make_pool(*pool_args), group_norm)


def _backward_traced(ctx, grad, _grad_mean, _grad_var) -> tuple:
    needs = ctx.needs_input_grad
    conv_grads, norm_grads, group_grads = _gradients(ctx, grad, needs[8:10], needs[20:22])
    return *conv_grads, *[None] * 5, *norm_grads, *[None] * 10, *group_grads, None


def _flat_run(x, weight, bias, conv, pool, *args):
    norm, kept, group_norm, conv_out = args[:6], args[6:12], args[12:16], args[16]
    return _run(x, weight, bias, conv, norm, kept, pool, group_norm, conv_out)


def _flat_traced(x, weight, bias, conv, pool, *args):
    return _traced(x, weight, bias, *conv, *args[:6], *pool, *args[12:16])


def _save_eager(ctx, args) -> None:
    x, weight, bias, conv, pool, *rest = args
    norm, batch, group_norm, conv_out = rest[:6], rest[10:12], rest[12:16], rest[16]
    _save(ctx, x, weight, bias, conv, norm, pool, group_norm, conv_out, batch)


def _backward_eager(ctx, grad) -> tuple:
    needs = ctx.needs_input_grad
    conv_grads, norm_grads, group_grads = _gradients(ctx, grad, needs[5:7], needs[18:20])
    return *conv_grads, None, None, *norm_grads, *[None] * 11, *group_grads, None, None


def _operator(x, weight, bias, *args):
    """The output; statistics are read, never kept."""
    conv_args, norm, pool_args, group_norm = _split_arguments(args)
    conv, pool = _make_conv(*conv_args), _make_pool(*pool_args)
    if _as_operator():
        return _traced(x, weight, bias, *conv, *norm, *pool, *group_norm)[0]
    return _apply(x, weight, bias, conv, norm, _KEEPS_NOTHING, pool, group_norm)


def _apply(x, weight, bias, conv, norm, kept, pool, group_norm):
    if _transformed():
        return _apply_transformed(x, weight, bias, conv, norm, pool, group_norm)[0]
    parameters = norm[0], norm[1], group_norm[1], group_norm[2]
    if _wants_gradient(x, weight, bias, *parameters):
        conv_out = None
        if _keeps_output(x, weight, conv, pool, (bias, *parameters)):
            with torch.no_grad():
                if x.device.type in _GRADIENT_DEVICES:
                    conv_out = _conv_output(x, weight, bias, _Conv(*conv))
                else:
                    conv_out = x.new_empty(_prod(_conv_shape(x, weight, conv)))
            if norm[4] and kept[4] is None:
                shape, dtype = weight.shape[1] * conv[4], _statistics_dtype(x.dtype)
                kept = *kept[:4], *(x.new_empty(shape, dtype=dtype) for _ in range(2))
        return _run_with_gradient(x, weight, bias, conv, pool, *norm, *kept, *group_norm, conv_out)
    return _run(x, weight, bias, conv, norm, kept, pool, group_norm)


def _apply_transformed(x, weight, bias, conv, norm, pool, group_norm) -> tuple:
    """(output, mean and variance of the batch)"""
    return _transformed_run(
        *(x, weight, bias, conv, pool, *norm, *_KEEPS_NOTHING, *group_norm), None
    )


def _is_batched(tensor) -> bool:
    return torch._C._functorch.is_batchedtensor(tensor)


def _forward_and_track(norm, x, weight, bias, conv_args, pool_args, group_norm):
    """Runs the operator with the nn.BatchNorm2d `norm`, whose running statistics it updates."""
    conv, pool = _make_conv(*conv_args), _make_pool(*pool_args)
    norm_weight, norm_bias = norm.weight, norm.bias
    if _autocasting():
        num_groups, *affine, group_eps = group_norm
        x, (weight, bias), (norm_weight, norm_bias, *affine), _ = _autocast_norm(
            x, (weight, bias), (norm_weight, norm_bias, *affine), ()
        )
        group_norm = num_groups, *affine, group_eps
    mean, var = norm.running_mean, norm.running_var
    use_batch_stats = norm.training or mean is None
    tracks = norm.training and norm.track_running_stats
    if tracks:  # batches are counted before they are normalised
        counted = norm.num_batches_tracked
        if counted is not None:
            counted.add_(1)
    read = (None, None) if use_batch_stats else (mean, var)
    about_norm = (norm_weight, norm_bias, *read, use_batch_stats, norm.eps)
    keeps = tracks and mean is not None
    if keeps and _transformed() and _is_batched(x) and not _is_batched(mean):
        raise RuntimeError(
            "conv_transpose2d: torch.vmap cannot update BatchNorm's running statistics in place; "
            "call eval() or construct it with track_running_stats=False"
        )
    if _as_operator():
        out, batch_mean, batch_var = _traced(
            x, weight, bias, *conv, *about_norm, *pool, *group_norm
        )
    elif _transformed():
        out, batch_mean, batch_var = _apply_transformed(
            x, weight, bias, conv, about_norm, pool, group_norm
        )
    else:
        if not keeps:
            return _apply(x, weight, bias, conv, about_norm, _KEEPS_NOTHING, pool, group_norm)
        momentum, dtype = norm.momentum, _statistics_dtype(x.dtype)
        if mean.dtype is dtype and var.dtype is dtype:
            kept = (mean, var, None, momentum, None, None)
            if momentum is None:
                kept = (mean, var, counted, 0.0, None, None)
            return _apply(x, weight, bias, conv, about_norm, kept, pool, group_norm)
        channels = weight.shape[1] * conv[4]
        batch_mean, batch_var = (
            torch.zeros(channels, dtype=dtype, device=x.device) for _ in range(2)
        )
        kept = (None, None, None, 0.0, batch_mean, batch_var)
        out = _apply(x, weight, bias, conv, about_norm, kept, pool, group_norm)
    if keeps:
        count = x.shape[0]
        for axis, size in enumerate(x.shape[2:]):
            taps = weight.shape[2 + axis]
            count = count * _output_size(size, taps, *(pair[axis] for pair in conv[:4]))
        _update_running_statistics(norm, batch_mean, batch_var, count)
    return out


def _count_own_flops(x_shape, weight_shape, *args, out_shape=None, **kwargs) -> int:
    """None where the last argument is a convolution's output, not a flat tensor for it: that has
    been counted.
    """
    is_there = isinstance(args[-1], tuple | list) and len(args[-1]) > 1
    return 0 if is_there else _count_flops(x_shape, weight_shape)


_run, _traced = _register(
    *(_CALL, _SCHEMA, _make_run, _make_fake_run, _make_traced, _fake, _setup_traced),
    *(_backward_traced, _count_own_flops),
)
_run_with_gradient, _transformed_run = _make_functions(
    _flat_run, _save_eager, _backward_eager, _flat_traced
)
