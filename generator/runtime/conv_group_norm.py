"""The operator of pattern 2: transposed convolution, element-wise steps, GroupNorm."""

from generator.runtime.arguments import _Conv, _make_conv
from generator.runtime.autocast import _autocast_norm, _autocasting
from generator.runtime.dispatch import _as_operator, _make_functions, _transformed, _wants_gradient
from generator.runtime.generated import _CALL, _CHAIN, _CHAIN_NUMBER, _NUM_VECTORS
from generator.runtime.gradient_kernels import _slides
from generator.runtime.gradients import (
    _chain_backward,
    _chain_forward,
    _conv_gradients_with,
    _conv_output,
    _group_norm_gradients,
    _no_gradients,
    _own_kernels,
)
from generator.runtime.group_norm_gradient_kernels import _kernel_group_norm_gradients
from generator.runtime.low_precision import _narrowed, _widened
from generator.runtime.operator_forms import _fake, _make_fake_run, _make_run, _make_traced
from generator.runtime.registration import _register, _vector_arguments

# `vectors` below are the per-channel operands of the element-wise steps, one argument each; `norm`
# is GroupNorm's (num_groups, weight, bias, eps).
_SCHEMA = (
    f"conv_transpose2d_group_norm{_CALL}(Tensor x, Tensor weight, Tensor? bias, int[] stride, "
    "int[] padding, "
    "int[] output_padding, int[] dilation, int groups, int num_groups, Tensor? norm_weight, "
    f"Tensor? norm_bias, float norm_eps{_vector_arguments(_NUM_VECTORS)}) -> Tensor"
)


def _save(ctx, x, weight, bias, conv, norm, vectors) -> None:
    ctx.conv = conv
    ctx.num_groups, norm_weight, norm_bias, ctx.norm_eps = norm
    ctx.save_for_backward(x, weight, bias, norm_weight, norm_bias, *vectors)


def _gradients(ctx, grad, norm_needs) -> tuple:
    """(gradients of x, weight and bias, of GroupNorm's weight and bias, of the vectors)"""
    saved = ctx.saved_tensors
    if saved[0].numel() == 0:
        grads = _no_gradients(saved)
        return grads[:3], grads[3:5], grads[5:]
    conv = _Conv(*ctx.conv)
    grad, tensors = _widened(grad, saved)
    x, weight, bias, norm_weight, _, *vectors = tensors
    value = _conv_output(x, weight, bias, conv)
    needs = ctx.needs_input_grad[:3]
    norm, sums = (norm_weight, ctx.num_groups, ctx.norm_eps), None
    if _own_kernels(x):
        grad, *norm_grads, sums, vector_grads = _kernel_group_norm_gradients(
            *(grad, value, *norm, vectors, (*norm_needs, needs[2])),
            *(_slides(conv), _CHAIN_NUMBER),
        )
    else:  # ATen's GroupNorm wants its input contiguous
        values = _chain_forward(_CHAIN, value.contiguous(), vectors)
        grad, *norm_grads = _group_norm_gradients(grad, values[-1], *norm, norm_needs)
        grad, vector_grads = _chain_backward(_CHAIN, grad, values, vectors)
    del value  # its memory serves the convolution's gradients
    conv_grads = _conv_gradients_with(sums, grad, x, weight, conv, needs)
    parts = (conv_grads, saved[:3]), (norm_grads, saved[3:5]), (vector_grads, saved[5:])
    return tuple(_narrowed(*part) for part in parts)


def _setup_traced(ctx, inputs, output) -> None:
    x, weight, bias, *args = inputs
    _save(ctx, x, weight, bias, _make_conv(*args[:5]), args[5:9], args[9:])


def _backward_traced(ctx, grad) -> tuple:
    conv_grads, norm_grads, vector_grads = _gradients(ctx, grad, ctx.needs_input_grad[9:11])
    return *conv_grads, *[None] * 6, *norm_grads, None, *vector_grads


def _save_eager(ctx, args) -> None:
    x, weight, bias, conv, *rest = args
    _save(ctx, x, weight, bias, conv, rest[:4], rest[4:])


def _backward_eager(ctx, grad) -> tuple:
    conv_grads, norm_grads, vector_grads = _gradients(ctx, grad, ctx.needs_input_grad[5:7])
    return *conv_grads, None, None, *norm_grads, None, *vector_grads


def _operator(x, weight, bias, stride, padding, output_padding, dilation, groups, *rest):
    conv = _make_conv(stride, padding, output_padding, dilation, groups)
    num_groups, norm_weight, norm_bias, eps, *vectors = rest
    if _autocasting():
        x, (weight, bias), (norm_weight, norm_bias), vectors = _autocast_norm(
            x, (weight, bias), (norm_weight, norm_bias), vectors
        )
        rest = num_groups, norm_weight, norm_bias, eps, *vectors
    if _as_operator():
        return _traced(x, weight, bias, *conv, *rest)
    if _transformed():
        return _transformed_run(x, weight, bias, conv, *rest)
    if _wants_gradient(x, weight, bias, norm_weight, norm_bias, *vectors):
        return _run_with_gradient(x, weight, bias, conv, *rest)
    return _run(x, weight, bias, conv, *rest)


_run, _traced = _register(
    _CALL, _SCHEMA, _make_run, _make_fake_run, _make_traced, _fake, _setup_traced, _backward_traced
)
_run_with_gradient, _transformed_run = _make_functions(_run, _save_eager, _backward_eager)
