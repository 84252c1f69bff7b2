"""The operator of pattern 1: transposed convolution and the element-wise steps after it."""

import torch

from generator.runtime.abi import _ConvOnlyCall
from generator.runtime.arguments import _about, _make_conv, _plan_conv
from generator.runtime.gradients import (
    _batched,
    _chain_backward,
    _chain_forward,
    _chain_needs_values,
    _conv_gradients,
    _recompute_conv,
)
from generator.runtime.launch import _dense, _fill_conv, _launch, _plan_call
from generator.runtime.low_precision import _is_low_precision_on_cpu, _narrow, _widen
from generator.runtime.problem import _CHAIN, _NUM_VECTORS
from generator.runtime.registration import _register, _vector_arguments

# `vectors` below are the per-channel operands of the element-wise steps, one argument each.
_SCHEMA = (
    "conv_transpose2d(Tensor x, Tensor weight, Tensor? bias, int[] stride, int[] padding, "
    f"int[] output_padding, int[] dilation, int groups{_vector_arguments(_NUM_VECTORS)}) -> Tensor"
)


def _run_conv(
    library, x, weight, bias, stride, padding, output_padding, dilation, groups, *vectors
):
    pairs = tuple(stride), tuple(padding), tuple(output_padding), tuple(dilation)
    shape, template = _plan_call(
        _about(x),
        x.stride(),
        _about(weight),
        _about(bias),
        tuple(map(_about, vectors)),
        *pairs,
        groups,
    )
    if _is_low_precision_on_cpu(x):
        wide = _run_conv(
            library, _widen(x), _widen(weight), _widen(bias), *pairs, groups, *map(_widen, vectors)
        )
        return wide.to(x.dtype)
    out = torch.empty(shape, dtype=x.dtype, device=x.device)
    if out.numel():
        weight, bias, *vectors = map(_dense, (weight, bias, *vectors))
        call = _ConvOnlyCall()
        _fill_conv(call, template, x, weight, bias, vectors, out)
        _launch(library, call, x.device)
    return out


def _fake_conv(x, weight, bias, *args):
    conv_args, vectors = args[:5], args[5:]
    _, shape = _plan_conv(
        _about(x), _about(weight), _about(bias), tuple(map(_about, vectors)), *conv_args
    )
    return x.new_empty(shape)


def _setup_conv(ctx, inputs, output):
    x, weight, bias, *args = inputs
    ctx.conv = _make_conv(*args[:5])
    ctx.save_for_backward(x, weight, bias if _chain_needs_values(_CHAIN) else None, *args[5:])


def _backward_conv(ctx, grad):
    saved = ctx.saved_tensors
    dtype = saved[0].dtype
    if _is_low_precision_on_cpu(saved[0]):
        grad, saved = _widen(grad), [_widen(tensor) for tensor in saved]
    x, weight, bias, *vectors = saved
    values = None
    if _chain_needs_values(_CHAIN):
        values = _chain_forward(_CHAIN, _recompute_conv(x, weight, bias, ctx.conv), vectors)
    grad, vector_grads = _chain_backward(_CHAIN, _batched(grad), values, vectors)
    conv_grads = _conv_gradients(grad, x, weight, ctx.conv, ctx.needs_input_grad[:3])
    grads = *conv_grads, *[None] * 5, *vector_grads
    return tuple(_narrow(gradient, dtype) for gradient in grads)


def _register_operator(library):
    return _register(library, _SCHEMA, _run_conv, _fake_conv, _setup_conv, _backward_conv)
