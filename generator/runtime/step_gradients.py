"""Element-wise steps after the convolution, as the backward formula sees them.

`forward(v, vectors)` recomputes a step; `backward(grad, before, after, vectors, vector_grads)`
returns the gradient of its input and writes the one of its per-channel operand into
vector_grads[index]. Steps with `needs_values = False` look at neither `before` nor `after`. The
forward of the operator itself runs none of this: there the steps are compiled into the kernels.
"""

import torch


def _per_channel(vector: torch.Tensor) -> torch.Tensor:
    return vector.view(1, -1, 1, 1)


def _channel_sum(values: torch.Tensor) -> torch.Tensor:
    return values.sum((0, 2, 3))


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


class _Clamp:
    """Lets the gradient through on the bounds, as PyTorch's clamp does; None: unbounded."""

    needs_values = True

    def __init__(self, low, high):
        self.low, self.high = low, high

    def forward(self, v, vectors):
        return torch.ops.aten.clamp(v, self.low, self.high)

    def backward(self, grad, before, after, vectors, vector_grads):
        inside = torch.ones_like(before, dtype=torch.bool)
        if self.low is not None:
            inside = inside & (before >= self.low)
        if self.high is not None:
            inside = inside & (before <= self.high)
        return torch.where(inside, grad, 0)


class _Hardtanh:
    """Stops the gradient on the bounds, as PyTorch's hardtanh does."""

    needs_values = True

    def __init__(self, low, high):
        self.low, self.high = low, high

    def forward(self, v, vectors):
        return torch.ops.aten.hardtanh.default(v, self.low, self.high)

    def backward(self, grad, before, after, vectors, vector_grads):
        return torch.ops.aten.hardtanh_backward.default(grad, before, self.low, self.high)


class _Affine:
    """v * scale + shift, with numbers."""

    needs_values = False

    def __init__(self, scale, shift):
        self.scale, self.shift = scale, shift

    def forward(self, v, vectors):
        return v * self.scale + self.shift

    def backward(self, grad, before, after, vectors, vector_grads):
        return grad * self.scale


class _Divide:
    needs_values = False

    def __init__(self, divisor):
        self.divisor = divisor

    def forward(self, v, vectors):
        return v / self.divisor

    def backward(self, grad, before, after, vectors, vector_grads):
        return grad / self.divisor


class _AddVector:
    """v * v_sign + vector * vector_sign, one value of the vector per channel."""

    needs_values = False

    def __init__(self, index: int, v_sign: int, vector_sign: int):
        self.index, self.v_sign, self.vector_sign = index, v_sign, vector_sign

    def forward(self, v, vectors):
        return v * self.v_sign + _per_channel(vectors[self.index]) * self.vector_sign

    def backward(self, grad, before, after, vectors, vector_grads):
        vector_grads[self.index] = _channel_sum(grad) * self.vector_sign
        return grad * self.v_sign


class _MultiplyVector:
    needs_values = True

    def __init__(self, index: int):
        self.index = index

    def forward(self, v, vectors):
        return v * _per_channel(vectors[self.index])

    def backward(self, grad, before, after, vectors, vector_grads):
        vector_grads[self.index] = _channel_sum(grad * before)
        return grad * _per_channel(vectors[self.index])


class _DivideVector:
    needs_values = True

    def __init__(self, index: int):
        self.index = index

    def forward(self, v, vectors):
        return v / _per_channel(vectors[self.index])

    def backward(self, grad, before, after, vectors, vector_grads):
        vector = _per_channel(vectors[self.index])
        vector_grads[self.index] = -_channel_sum(grad * after / vector)
        return grad / vector
