"""Gradients through tails, by kernels of ours."""

import torch

from generator.runtime.allocation import _ALLOCATION
from generator.runtime.dispatch import _outside_autocast
from generator.runtime.generated import _TAIL_CHAINS, _TAILS
from generator.runtime.gradients import _chain_forward
from generator.runtime.tail_libraries import _tail_gradient_library

# Which have sums of weight and bias, and none of the steps' operands.
_OF_NORMS = "layer_norm", "group_norm", "batch_norm", "centred_batch_norm"
# By operator, of how many of the steps' operands the kernels form gradients.
_MOST_TAIL_SUMS = dict.fromkeys(_OF_NORMS, 0) | {"softmax": 1}


def _has_tail_gradient(name: str, vectors) -> bool:
    """Do the kernels form those that are wanted?"""
    wanted = sum(vector.requires_grad for vector in vectors)
    return wanted <= _MOST_TAIL_SUMS.get(name, len(vectors))


class _Tail(torch.autograd.Function):
    """run(): the result of x, of `count` tensors of the layer's and of the steps' operands, and
    what the kernels of the gradients read besides; call: (the tail's number, its operator's name,
    the numbers that this is given).
    """

    @staticmethod
    def forward(ctx, run, call, count, x, *operands):
        y, kept = run()
        ctx.call, ctx.count, ctx.given = call, count, 1 + len(operands)
        ctx.save_for_backward(x, *operands, *kept)
        return y

    @staticmethod
    def backward(ctx, grad):
        return None, None, None, *_outside_autocast(_tail_gradients, ctx, grad)


def _tail_gradients(ctx, grad) -> list:
    """Of x and the operands, those that are wanted."""
    (number, name, numbers), count = ctx.call, ctx.count
    x, *operands = ctx.saved_tensors[: ctx.given]
    needs = ctx.needs_input_grad[3:]
    if torch.is_grad_enabled():  # create_graph=True
        return _differentiated_tail(ctx, grad, needs)
    tensors, vectors = operands[:count], operands[count:]
    first, last = (0, count) if name in _OF_NORMS else (count, len(operands))
    summed = needs[1 + first : 1 + last]
    wanted = sum(1 << bit for bit, need in enumerate(summed) if need)
    flat = [None if tensor is None else tensor.reshape(-1) for tensor in tensors]
    backward = getattr(_tail_gradient_library(), f"{name}_backward").default
    with _ALLOCATION:
        kept = ctx.saved_tensors[ctx.given :]
        grad_x, sums = backward(number, grad, x, *flat, *kept, *numbers, wanted, *vectors)
    found = [grad_x if needs[0] else None, *[None] * len(operands)]
    for bit, need in enumerate(summed):
        if need:
            found[1 + first + bit] = sums[bit].view(operands[first + bit].shape)
    return found


def _differentiated_tail(ctx, grad, needs) -> list:
    """The same by PyTorch's operators, as functions of x, the operands and grad: of views, for one
    tensor may come twice, or be computed from another one.
    """
    (number, name, numbers), count = ctx.call, ctx.count
    saved = ctx.saved_tensors[: ctx.given]
    views = [None if tensor is None else tensor.view_as(tensor) for tensor in saved]
    x, tensors, vectors = views[0], views[1 : 1 + count], views[1 + count :]
    y = _tail_of_pytorch(number, name, x, tensors, numbers)
    steps = _chain_forward(_TAIL_CHAINS[number], y.flatten(2).unsqueeze(-1), vectors)
    wanted = [view for view, need in zip(views, needs, strict=True) if need]
    out = steps[-1].reshape(y.shape)
    found = iter(torch.autograd.grad(out, wanted, grad, create_graph=True, allow_unused=True))
    return [next(found) if need else None for need in needs]


def _tail_of_pytorch(number: int, name: str, x, tensors, numbers) -> torch.Tensor:
    """Ahead of the steps."""
    aten = torch.ops.aten
    if name == "layer_norm":
        eps, row = numbers
        flat = [None if tensor is None else tensor.reshape(-1) for tensor in tensors]
        return aten.layer_norm.default(x.reshape(-1, row), [row], *flat, eps).view(x.shape)
    if name == "group_norm":
        sizes = x.shape[0], x.shape[1], x.numel() // (x.shape[0] * x.shape[1])
        return aten.native_group_norm.default(x, *tensors, *sizes, *numbers)[0]
    if "batch_norm" in name:
        y = aten.native_batch_norm.default(x, *tensors, None, None, True, 0.0, *numbers)[0]
        centred = name == "centred_batch_norm"
        return aten.sub.Tensor(y, aten.mean.dim(y, [*range(2, y.dim())], True)) if centred else y
    if name == "softmax":
        return aten.softmax.int(x, 1)
    if name == "plane_softmax":
        return aten.softmax.int(x.flatten(2), 2).view(x.shape)
    largest = _TAILS[number] == "kMaxPool"
    pool = aten.max_pool3d.default if largest else aten.avg_pool3d.default
    return pool(x, list(numbers))
