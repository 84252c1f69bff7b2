"""The operator of pattern 2: transposed convolution, element-wise steps, GroupNorm."""

import torch

from generator.runtime.abi import _KERNEL_CHOICES, _ConvGroupNormCall
from generator.runtime.arguments import _about, _group_norm_ok, _make_conv, _plan_conv
from generator.runtime.gradients import (
    _chain_backward,
    _chain_forward,
    _conv_gradients,
    _group_norm_gradients,
    _recompute_conv,
)
from generator.runtime.launch import _dense, _fill_conv, _fill_group_norm, _launch, _plan_call
from generator.runtime.low_precision import _is_low_precision_on_cpu, _narrow, _widen
from generator.runtime.problem import _CHAIN, _NUM_VECTORS
from generator.runtime.registration import _register, _vector_arguments

# `vectors` below are the per-channel operands of the element-wise steps, one argument each.
_SCHEMA = (
    "conv_transpose2d_group_norm(Tensor x, Tensor weight, Tensor? bias, int[] stride, int[] "
    "padding, "
    "int[] output_padding, int[] dilation, int groups, int num_groups, Tensor? norm_weight, "
    f"Tensor? norm_bias, float norm_eps{_vector_arguments(_NUM_VECTORS)}) -> Tensor"
)


# A way of this pattern alone: kernels_src/cuda/conv_group_norm_passes.cuh.
_KERNEL_CHOICES |= {"slices": 7}


def _run_conv_group_norm(library, x, weight, bias, *args):
    pairs, groups = tuple(map(tuple, args[:4])), args[4]
    num_groups, norm_weight, norm_bias, norm_eps, *vectors = args[5:]
    about_x = _about(x)
    shape, template = _plan_call(
        about_x,
        x.stride(),
        _about(weight),
        _about(bias),
        tuple(map(_about, vectors)),
        *pairs,
        groups,
    )
    _group_norm_ok(shape, num_groups, _about(norm_weight), _about(norm_bias), about_x)
    if _is_low_precision_on_cpu(x):
        norm = num_groups, _widen(norm_weight), _widen(norm_bias), norm_eps
        operands = _widen(x), _widen(weight), _widen(bias)
        wide = _run_conv_group_norm(
            library, *operands, *pairs, groups, *norm, *map(_widen, vectors)
        )
        return wide.to(x.dtype)
    out = torch.empty(shape, dtype=x.dtype, device=x.device)
    if out.numel():
        weight, bias, norm_weight, norm_bias, *vectors = map(
            _dense, (weight, bias, norm_weight, norm_bias, *vectors)
        )
        call = _ConvGroupNormCall()
        _fill_conv(call, template, x, weight, bias, vectors, out)
        _fill_group_norm(call.group_norm, num_groups, norm_weight, norm_bias, norm_eps)
        _launch(library, call, x.device)
    return out


def _fake_conv_group_norm(x, weight, bias, *args):
    num_groups, norm_weight, norm_bias, _, *vectors = args[5:]
    _, shape = _plan_conv(
        _about(x), _about(weight), _about(bias), tuple(map(_about, vectors)), *args[:5]
    )
    _group_norm_ok(shape, num_groups, _about(norm_weight), _about(norm_bias), _about(x))
    return x.new_empty(shape)


def _setup_conv_group_norm(ctx, inputs, output):
    x, weight, bias, *args = inputs
    num_groups, norm_weight, _, norm_eps, *vectors = args[5:]
    ctx.conv = _make_conv(*args[:5])
    ctx.num_groups, ctx.norm_eps = num_groups, norm_eps
    ctx.save_for_backward(x, weight, bias, norm_weight, *vectors)


def _backward_conv_group_norm(ctx, grad):
    saved = ctx.saved_tensors
    dtype = saved[0].dtype
    if _is_low_precision_on_cpu(saved[0]):
        grad, saved = _widen(grad), [_widen(tensor) for tensor in saved]
    x, weight, bias, norm_weight, *vectors = saved
    needs = ctx.needs_input_grad
    values = _chain_forward(_CHAIN, _recompute_conv(x, weight, bias, ctx.conv), vectors)
    grad, grad_norm_weight, grad_norm_bias = _group_norm_gradients(
        grad, values[-1], norm_weight, ctx.num_groups, ctx.norm_eps, needs[9:11]
    )
    grad, vector_grads = _chain_backward(_CHAIN, grad, values, vectors)
    conv_grads = _conv_gradients(grad, x, weight, ctx.conv, needs[:3])
    grads = *conv_grads, *[None] * 6, grad_norm_weight, grad_norm_bias, None, *vector_grads
    return tuple(_narrow(gradient, dtype) for gradient in grads)


def _register_operator(library):
    return _register(
        library,
        _SCHEMA,
        _run_conv_group_norm,
        _fake_conv_group_norm,
        _setup_conv_group_norm,
        _backward_conv_group_norm,
    )
