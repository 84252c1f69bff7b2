"""Arithmetic steps after the convolution, as the backward formula sees them.

`forward(v, vectors)` recomputes a step; `backward(grad, before, after, vectors, vector_grads)`
returns the gradient of its input, by PyTorch's own formula, and hands the one of its per-channel
operand to vector_grads. Steps with `needs_values = False` look at neither `before` nor `after`. The
forward of the operator itself runs none of this: there the steps are compiled into the kernels.
"""

import torch


class _Channel:
    """An operand with one value for each channel: vectors[index]."""

    def __init__(self, index: int):
        self.index = index

    def value(self, vectors):
        return vectors[self.index].view(1, -1, 1, 1)

    def take(self, grad, vector_grads):
        vector_grads[self.index] = grad.sum((0, 2, 3))


class _Whole(_Channel):
    """An operand of the output's shape: vectors[index]."""

    def value(self, vectors):
        return vectors[self.index]

    def take(self, grad, vector_grads):
        vector_grads[self.index] = grad


def _operand(operand, vectors):
    """Its value; a number is its own."""
    return operand.value(vectors) if isinstance(operand, _Channel) else operand


def _tensor(operand, v, vectors):
    """The same as a tensor beside v, for functions that take no numbers."""
    value = _operand(operand, vectors)
    return value if isinstance(operand, _Channel) else v.new_full((), value)


class _Negate:
    needs_values = False

    def forward(self, v, vectors):
        return -v

    def backward(self, grad, before, after, vectors, vector_grads):
        return -grad


class _Absolute:
    """No gradient at 0."""

    needs_values = True

    def forward(self, v, vectors):
        return v.abs()

    def backward(self, grad, before, after, vectors, vector_grads):
        return grad * before.sgn()


class _Sqrt:
    needs_values = True

    def forward(self, v, vectors):
        return v.sqrt()

    def backward(self, grad, before, after, vectors, vector_grads):
        return grad / (2 * after)


class _Rsqrt:
    needs_values = True

    def forward(self, v, vectors):
        return v.rsqrt()

    def backward(self, grad, before, after, vectors, vector_grads):
        return -0.5 * grad * after.pow(3)


class _Reciprocal:
    needs_values = True

    def forward(self, v, vectors):
        return v.reciprocal()

    def backward(self, grad, before, after, vectors, vector_grads):
        return grad * -(after * after)


class _Exp:
    needs_values = True

    def forward(self, v, vectors):
        return v.exp()

    def backward(self, grad, before, after, vectors, vector_grads):
        return grad * after


class _Log:
    needs_values = True

    def forward(self, v, vectors):
        return v.log()

    def backward(self, grad, before, after, vectors, vector_grads):
        return grad / before


class _Power:
    needs_values = True

    def __init__(self, exponent):
        self.exponent = exponent

    def forward(self, v, vectors):
        return v.pow(self.exponent)

    def backward(self, grad, before, after, vectors, vector_grads):
        if self.exponent == 0:
            return torch.zeros_like(grad)
        return grad * (self.exponent * before.pow(self.exponent - 1))


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


class _Add:
    """v * v_sign + operand * operand_sign."""

    needs_values = False

    def __init__(self, operand, v_sign: int, operand_sign: int):
        self.operand, self.v_sign, self.operand_sign = operand, v_sign, operand_sign

    def forward(self, v, vectors):
        return v * self.v_sign + _operand(self.operand, vectors) * self.operand_sign

    def backward(self, grad, before, after, vectors, vector_grads):
        if isinstance(self.operand, _Channel):
            self.operand.take(-grad if self.operand_sign < 0 else grad, vector_grads)
        return -grad if self.v_sign < 0 else grad


class _Multiply:
    def __init__(self, operand):
        self.operand = operand
        self.needs_values = isinstance(operand, _Channel)

    def forward(self, v, vectors):
        return v * _operand(self.operand, vectors)

    def backward(self, grad, before, after, vectors, vector_grads):
        if isinstance(self.operand, _Channel):
            self.operand.take(grad * before, vector_grads)
        return grad * _operand(self.operand, vectors)


class _Divide:
    """v / operand"""

    def __init__(self, operand):
        self.operand = operand
        self.needs_values = isinstance(operand, _Channel)

    def forward(self, v, vectors):
        return v / _operand(self.operand, vectors)

    def backward(self, grad, before, after, vectors, vector_grads):
        divisor = _operand(self.operand, vectors)
        if isinstance(self.operand, _Channel):
            self.operand.take(-grad * (after / divisor), vector_grads)
        return grad / divisor


class _DivideInto:
    """operand / v"""

    needs_values = True

    def __init__(self, operand):
        self.operand = operand

    def forward(self, v, vectors):
        return _operand(self.operand, vectors) / v

    def backward(self, grad, before, after, vectors, vector_grads):
        if isinstance(self.operand, _Channel):
            self.operand.take(grad / before, vector_grads)
        return -grad * (after / before)


class _Minimum:
    """Half of the gradient to each where both are equal; all of it to both beside NaN."""

    needs_values = True

    def __init__(self, operand):
        self.operand = operand

    def forward(self, v, vectors):
        return v.minimum(_tensor(self.operand, v, vectors))

    def backward(self, grad, before, after, vectors, vector_grads):
        other = _operand(self.operand, vectors)
        shared = torch.where(before == other, grad / 2, grad)
        if isinstance(self.operand, _Channel):
            self.operand.take(torch.where(before < other, 0, shared), vector_grads)
        return torch.where(before > other, 0, shared)


class _Maximum:
    """The same for the larger one."""

    needs_values = True

    def __init__(self, operand):
        self.operand = operand

    def forward(self, v, vectors):
        return v.maximum(_tensor(self.operand, v, vectors))

    def backward(self, grad, before, after, vectors, vector_grads):
        other = _operand(self.operand, vectors)
        shared = torch.where(before == other, grad / 2, grad)
        if isinstance(self.operand, _Channel):
            self.operand.take(torch.where(before > other, 0, shared), vector_grads)
        return torch.where(before < other, 0, shared)
