"""The records of the element-wise operators: PyTorch's forms are found, and their gradients are
PyTorch's.
"""

import operator

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from generator import ops
from generator.ops.record import Binary, ChannelVector, Number
from generator.runtime import activation_gradients, step_gradients
from tests.operator_cases import CASES, OPERAND

CLASSES = {**vars(step_gradients), **vars(activation_gradients)}

# What KernelBench's references and ordinary decoders use, and what PyTorch's graphs make of it.
VOCABULARY = """
add sub mul div neg abs square sqrt exp log pow min max clamp relu relu6 leaky_relu elu selu celu
silu mish hardswish hardsigmoid hardtanh softplus softsign sigmoid tanh gelu rsqrt reciprocal
threshold
""".split()


def test_the_vocabulary_is_whole():
    names = [record.name for record in ops.RECORDS]
    assert set(VOCABULARY) <= set(names)
    assert len(names) == len(set(names))
    made = {case.name.partition("(")[0].split()[:2][-1] for case in CASES}
    assert set(names) <= made  # and each has cases below


class Forms(nn.Module):
    """An ATen call of every record's overloads, whose operand is a number or the weight."""

    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.rand(3, 1, 1) + 1)

    def forward(self, x):
        w = self.w
        return [
            *(x + 0.25, 0.25 + x, x + w, w + x, x - 2, 2 - x, x - w, w - x, x.sub(3.0)),
            *(x * 2, 2 * x, x * w, w * x, x / 4, x / w, w / x, x.true_divide(3), 2 / x),
            *(torch.minimum(x, w), torch.max(w, x), -x, x.abs(), abs(x), x.square(), x.sqrt()),
            *(x.rsqrt(), x.reciprocal(), x.exp(), x.log(), x**2, x.pow(1.5), x.clamp(0, 1)),
            *(x.clip(max=1), x.clamp_min(0.5), x.clamp_max(0.5), F.relu(x), F.relu6(x)),
            *(F.hardtanh(x), F.hardtanh(x, -2, 0.5), F.gelu(x), F.gelu(x, approximate="tanh")),
            *(x.tanh(), x.sigmoid(), F.leaky_relu(x), F.leaky_relu(x, 0.3), F.elu(x, 0.5)),
            *(F.selu(x), F.celu(x, 0.5), F.silu(x), F.mish(x), F.hardswish(x), F.hardsigmoid(x)),
            *(F.softplus(x), F.softplus(x, 2, 9), F.threshold(x, 0.5, 0.25), x.clone().relu_()),
            *(x.clone().mul_(3), x.clone().clamp_(0, 1), F.elu_(x.clone())),
        ]


def test_every_aten_call_has_its_step():
    """Evaluates the graph that torch.export gives with the records' own classes."""
    model = Forms().double()
    x = torch.rand(2, 3, 4, 5, dtype=torch.float64) * 4 - 1.5
    graph = torch.export.export(model, (x,)).graph
    values, seen = {}, set()
    for node in graph.nodes:
        if node.op == "placeholder":
            values[node] = model.w.detach() if node.target.endswith("w") else x
        elif node.op == "call_function" and node.target is torch.ops.aten.clone.default:
            values[node] = values[node.args[0]]
        elif node.op == "call_function":
            record = ops.by_overload(node.target)
            assert record is not None, node.target
            seen.add(record.name)
            flow, args = node.args[0], node.args[1:]
            if isinstance(record, ops.Unary):
                step = record.step_of_overload(node.target, args, node.kwargs)
            else:
                flow, step = binary_step(record, node, values, model.w)
            made = eval(step.python, dict(CLASSES))
            values[node] = made.forward(values[flow], [model.w.detach().flatten()])
    (output,) = (node for node in graph.nodes if node.op == "output")
    for node, wanted in zip(output.args[0], model(x), strict=True):
        torch.testing.assert_close(
            values[node], wanted.detach(), rtol=0, atol=1e-14, equal_nan=True
        )
    assert seen >= set(VOCABULARY) - {"relu6", "softsign"}  # hardtanh, and three operators


def binary_step(record: Binary, node, values: dict, weight):
    """(the flowing value's node, the step) of an ATen call with a number or the weight."""
    left, right = node.args[:2]
    swapped = str(node.target).removeprefix("aten.") in record.reversed_overloads
    if not isinstance(right, torch.fx.Node):
        return left, record.step(Number(right), swapped)
    if values[left] is values[right] or values[right].shape == weight.shape:
        return left, record.step(ChannelVector(0), swapped)
    return right, record.step(ChannelVector(0), not swapped)


def test_a_division_by_a_number_is_a_product():
    """Where its reciprocal is an ordinary number. By powers of two compilers do that themselves."""
    divide = next(record for record in ops.RECORDS if record.name == "div")
    for value, device in (
        (3.0, f"v = v * Acc({1 / 3!r});"),
        (-0.3, f"v = v * Acc({1 / -0.3!r});"),
        (-2.0, "v = v / Acc(-2.0);"),
        (0.25, "v = v / Acc(0.25);"),
        (3e-39, "v = v / Acc(3e-39);"),
        (3e38, "v = v / Acc(3e+38);"),
        (0.0, "v = v / Acc(0.0);"),
        (float("inf"), "v = v / Acc(INFINITY);"),
    ):
        assert divide.step(Number(value), False).device == device
    assert "/" in divide.step(ChannelVector(0), False).device


@pytest.mark.parametrize("record", ops.RECORDS, ids=lambda record: record.name)
def test_forms_are_pytorchs(record):
    """Every name that a record gives is one that PyTorch has."""
    for overload in record.all_overloads:
        packet, _, kind = overload.partition(".")
        target = getattr(getattr(torch.ops.aten, packet), kind)
        assert ops.by_overload(target) is record
    assert all(hasattr(torch.Tensor, name) or hasattr(torch, name) for name in record.methods)
    assert all(hasattr(operator, function.__name__) for function in record.operators)
    if isinstance(record, ops.Unary):
        assert all(hasattr(F, name) for name in record.functional)
        if record.module is not None:
            module = record.module(*(0.5,) * (2 if record.name == "threshold" else 0))
            assert record.step_of_module(module).kind


KINKS = [0.0, -0.0, 0.1, 0.3, 0.37, 0.5, 0.75, 1.0, 1.25, OPERAND, 2.0, 3.0, 6.0, 8.0 / 2.5, 20.0]
_INFINITE = [float("inf"), -float("inf"), float("nan")]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_gradients_are_pytorchs(case):
    """In float64, on the kinks and at Inf and NaN, too; of the operand as well."""
    values = torch.tensor(KINKS + [-v for v in KINKS] + _INFINITE, dtype=torch.float64)
    values = torch.cat([values, torch.randn(500, dtype=torch.float64) * 3])
    grad = torch.rand(1, 1, 1, values.numel(), dtype=torch.float64) + 0.5
    # One value a channel: as many channels as values, so that each has its own operand's gradient.
    v = values.view(1, -1, 1, 1).clone().requires_grad_()
    operand = torch.full((values.numel(),), OPERAND, dtype=torch.float64, requires_grad=True)
    grad = grad.view(v.shape)
    case.function(v, operand.view(1, -1, 1, 1)).backward(grad)
    made = eval(case.step.python, dict(CLASSES))
    before, vector_grads = v.detach(), [None]
    with torch.no_grad():
        after = made.forward(before, [operand.detach()])
        given = (before, after) if made.needs_values else (None, None)
        ours = made.backward(grad, *given, [operand.detach()], vector_grads)
    torch.testing.assert_close(ours, v.grad, rtol=1e-14, atol=1e-14, equal_nan=True)
    if operand.grad is None:
        assert vector_grads == [None]
    else:
        wanted = operand.grad
        torch.testing.assert_close(vector_grads[0], wanted, rtol=1e-14, atol=1e-14, equal_nan=True)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_gradients_of_gradients_are_pytorchs(case):
    """Where PyTorch has them, of the gradient formula under create_graph=True."""
    v = (torch.randn(200, dtype=torch.float64) * 3).view(1, 1, 1, -1).requires_grad_()
    operand = torch.full((1,), OPERAND, dtype=torch.float64)
    grad = (torch.rand(v.shape, dtype=torch.float64) + 0.5).requires_grad_()
    direction = torch.randn(v.shape, dtype=torch.float64)

    def second(first):
        if not first.requires_grad:
            return [torch.zeros_like(v)] * 2
        found = torch.autograd.grad(first, (v, grad), direction, allow_unused=True)
        return [torch.zeros_like(v) if one is None else one for one in found]

    out = case.function(v, operand)
    (first,) = torch.autograd.grad(out, v, grad, create_graph=True)
    made = eval(case.step.python, dict(CLASSES))
    ours = made.backward(grad, v, made.forward(v, [operand]), [operand], [None])
    if case.name.startswith("hardsigmoid"):  # PyTorch has none there: zero wherever it is smooth
        wanted = [torch.zeros_like(v), torch.where(v.abs() < 3, direction / 6, 0)]
    else:
        wanted = second(first)
    for one, other in zip(second(ours), wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12, equal_nan=True)
