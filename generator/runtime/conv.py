"""The operator of pattern 1: transposed convolution and the element-wise steps after it."""

from generator.runtime.arguments import _Conv, _make_conv
from generator.runtime.autocast import _autocast_chain, _autocasting
from generator.runtime.dispatch import _as_operator, _make_functions, _transformed, _wants_gradient
from generator.runtime.generated import _CALL, _CHAIN, _CHAIN_NUMBER, _NUM_VECTORS
from generator.runtime.gradient_kernels import _slides
from generator.runtime.gradients import (
    _batched,
    _chain_backward,
    _chain_forward,
    _chain_needs_values,
    _conv_gradients_with,
    _conv_output,
    _no_gradients,
    _own_kernels,
)
from generator.runtime.group_norm_gradient_kernels import _kernel_chain_gradients
from generator.runtime.low_precision import _narrowed, _widened
from generator.runtime.operator_forms import _fake, _make_fake_run, _make_run, _make_traced
from generator.runtime.registration import _register, _vector_arguments

# `vectors` below are the per-channel operands of the element-wise steps, one argument each.
_SCHEMA = (
    f"conv_transpose2d{_CALL}(Tensor x, Tensor weight, Tensor? bias, int[] stride, int[] padding, "
    f"int[] output_padding, int[] dilation, int groups{_vector_arguments(_NUM_VECTORS)}) -> Tensor"
)


def _save(ctx, x, weight, bias, conv, vectors) -> None:
    ctx.conv = conv
    ctx.save_for_backward(x, weight, bias, *vectors)


def _gradients(ctx, grad) -> tuple:
    """(gradients of x, weight and bias, gradients of the vectors)"""
    saved = ctx.saved_tensors
    if saved[0].numel() == 0:
        grads = _no_gradients(saved)
        return grads[:3], grads[3:]
    conv = _Conv(*ctx.conv)
    grad, tensors = _widened(grad, saved)
    x, weight, bias, *vectors = tensors
    needs, grad = ctx.needs_input_grad[:3], _batched(grad)
    values = sums = None
    if _chain_needs_values(_CHAIN):
        values = [_conv_output(x, weight, bias, conv)]
    if values and _own_kernels(x):  # the values' memory then serves the convolution's gradients
        grad, sums, vector_grads = _kernel_chain_gradients(
            grad, values.pop(), vectors, needs[2], _slides(conv), _CHAIN_NUMBER
        )
    else:
        values = values and _chain_forward(_CHAIN, values[0], vectors)
        grad, vector_grads = _chain_backward(_CHAIN, grad, values, vectors)
    conv_grads = _conv_gradients_with(sums, grad, x, weight, conv, needs)
    return _narrowed(conv_grads, saved[:3]), _narrowed(vector_grads, saved[3:])


def _setup_traced(ctx, inputs, output) -> None:
    x, weight, bias, *args = inputs
    _save(ctx, x, weight, bias, _make_conv(*args[:5]), args[5:])


def _backward_traced(ctx, grad) -> tuple:
    conv_grads, vector_grads = _gradients(ctx, grad)
    return *conv_grads, *[None] * 5, *vector_grads


def _save_eager(ctx, args) -> None:
    x, weight, bias, conv, *vectors = args
    _save(ctx, x, weight, bias, conv, vectors)


def _backward_eager(ctx, grad) -> tuple:
    conv_grads, vector_grads = _gradients(ctx, grad)
    return *conv_grads, None, *vector_grads


def _operator(x, weight, bias, stride, padding, output_padding, dilation, groups, *vectors):
    conv = _make_conv(stride, padding, output_padding, dilation, groups)
    if _autocasting():
        x, (weight, bias), vectors = _autocast_chain(x, (weight, bias), vectors)
    if _as_operator():
        return _traced(x, weight, bias, *conv, *vectors)
    if _transformed():
        return _transformed_run(x, weight, bias, conv, *vectors)
    if _wants_gradient(x, weight, bias, *vectors):
        return _run_with_gradient(x, weight, bias, conv, *vectors)
    return _run(x, weight, bias, conv, *vectors)


_run, _traced = _register(
    _CALL, _SCHEMA, _make_run, _make_fake_run, _make_traced, _fake, _setup_traced, _backward_traced
)
_run_with_gradient, _transformed_run = _make_functions(_run, _save_eager, _backward_eager)
