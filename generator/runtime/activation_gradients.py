"""Activations after the convolution, as the backward formula sees them: classes as in
step_gradients.py, on ATen's own backward operators.
"""

import torch


class _Relu:
    needs_values = True

    def forward(self, v, vectors):
        return torch.ops.aten.relu.default(v)

    def backward(self, grad, before, after, vectors, vector_grads):
        return torch.ops.aten.threshold_backward.default(grad, after, 0)


class _Gelu:
    needs_values = True

    def __init__(self, approximate: str):
        self.approximate = approximate

    def forward(self, v, vectors):
        return torch.ops.aten.gelu.default(v, approximate=self.approximate)

    def backward(self, grad, before, after, vectors, vector_grads):
        return torch.ops.aten.gelu_backward.default(grad, before, approximate=self.approximate)


class _Tanh:
    needs_values = True

    def forward(self, v, vectors):
        return torch.ops.aten.tanh.default(v)

    def backward(self, grad, before, after, vectors, vector_grads):
        return torch.ops.aten.tanh_backward.default(grad, after)


class _Sigmoid:
    needs_values = True

    def forward(self, v, vectors):
        return torch.ops.aten.sigmoid.default(v)

    def backward(self, grad, before, after, vectors, vector_grads):
        return torch.ops.aten.sigmoid_backward.default(grad, after)


class _Hardtanh:
    """Stops the gradient on the bounds, as PyTorch's hardtanh does."""

    needs_values = True

    def __init__(self, low, high):
        self.low, self.high = low, high

    def forward(self, v, vectors):
        return torch.ops.aten.hardtanh.default(v, self.low, self.high)

    def backward(self, grad, before, after, vectors, vector_grads):
        return torch.ops.aten.hardtanh_backward.default(grad, before, self.low, self.high)


class _Threshold:
    needs_values = True

    def __init__(self, threshold, value):
        self.threshold, self.value = threshold, value

    def forward(self, v, vectors):
        return torch.ops.aten.threshold.default(v, self.threshold, self.value)

    def backward(self, grad, before, after, vectors, vector_grads):
        return torch.ops.aten.threshold_backward.default(grad, before, self.threshold)


class _LeakyRelu:
    needs_values = True

    def __init__(self, negative_slope):
        self.negative_slope = negative_slope

    def forward(self, v, vectors):
        return torch.ops.aten.leaky_relu.default(v, self.negative_slope)

    def backward(self, grad, before, after, vectors, vector_grads):
        return torch.ops.aten.leaky_relu_backward.default(grad, before, self.negative_slope, False)


class _Elu:
    """ELU, CELU and SELU."""

    needs_values = True

    def __init__(self, alpha, scale, input_scale):
        self.factors = alpha, scale, input_scale

    def forward(self, v, vectors):
        return torch.ops.aten.elu.default(v, *self.factors)

    def backward(self, grad, before, after, vectors, vector_grads):
        return torch.ops.aten.elu_backward.default(grad, *self.factors, False, before)


class _Silu:
    needs_values = True

    def forward(self, v, vectors):
        return torch.ops.aten.silu.default(v)

    def backward(self, grad, before, after, vectors, vector_grads):
        if torch.is_grad_enabled():  # create_graph=True: ATen's operator has no derivative
            share = before.sigmoid()
            return grad * share * (1 + before * (1 - share))
        return torch.ops.aten.silu_backward.default(grad, before)


class _Mish:
    needs_values = True

    def forward(self, v, vectors):
        return torch.ops.aten.mish.default(v)

    def backward(self, grad, before, after, vectors, vector_grads):
        if torch.is_grad_enabled():  # as for SiLU
            gate = torch.ops.aten.softplus.default(before).tanh()
            return grad * (gate + before * before.sigmoid() * (1 - gate * gate))
        return torch.ops.aten.mish_backward.default(grad, before)


class _Hardswish:
    needs_values = True

    def forward(self, v, vectors):
        return torch.ops.aten.hardswish.default(v)

    def backward(self, grad, before, after, vectors, vector_grads):
        return torch.ops.aten.hardswish_backward.default(grad, before)


class _Hardsigmoid:
    needs_values = True

    def forward(self, v, vectors):
        return torch.ops.aten.hardsigmoid.default(v)

    def backward(self, grad, before, after, vectors, vector_grads):
        if torch.is_grad_enabled():  # as for SiLU
            return torch.where((before > -3) & (before < 3), grad / 6, 0)
        return torch.ops.aten.hardsigmoid_backward.default(grad, before)


class _Softplus:
    needs_values = True

    def __init__(self, beta, threshold):
        self.numbers = beta, threshold

    def forward(self, v, vectors):
        return torch.ops.aten.softplus.default(v, *self.numbers)

    def backward(self, grad, before, after, vectors, vector_grads):
        return torch.ops.aten.softplus_backward.default(grad, before, *self.numbers)


class _Softsign:
    needs_values = True

    def forward(self, v, vectors):
        return v / (v.abs() + 1)

    def backward(self, grad, before, after, vectors, vector_grads):
        size = before.abs() + 1
        return grad / size - grad * (before / size) / size * before.sgn()
