"""Gradients through tails: what the kernels are asked for, and PyTorch's where they are not."""

import types

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from generator.runtime import large_tails, tail_gradients
from generator.runtime.activation_gradients import _Gelu
from generator.runtime.step_gradients import _Add, _Channel, _Multiply
from tests.tail_tools import drawn, sums_by_bit
from tests.test_large_tails import AVERAGE, KINDS, LARGEST, PLANE, ROWS, SOFTMAX

NAMES = "layer_norm", "softmax", "plane_softmax", "pool"


def stepped(v, vectors):
    """What CHAIN computes."""
    like = [1, -1, *[1] * (v.dim() - 2)]
    by, to = (vector.view(like) for vector in vectors if vector is not None)
    return F.gelu(v * by + to)


CHAIN = (_Multiply(_Channel(0)), _Add(_Channel(1), 1, 1), _Gelu("none"))


def run(name, number, x, rest):
    if name == "layer_norm":
        weight, bias, eps, row, *vectors = rest
        y = F.layer_norm(x.reshape(-1, row), (row,), weight, bias, eps).view(x.shape)
    elif name == "pool":
        window, vectors = rest[:3], rest[3:]
        y = (F.avg_pool3d if number == AVERAGE else F.max_pool3d)(x, window)
    else:
        vectors = rest
        y = torch.softmax(x, 1 if name == "softmax" else 2)
    return stepped(y, vectors) if vectors else y


class Library:
    """PyTorch's own in the place of the operators of both libraries."""

    def __init__(self):
        self.wanted = []
        for name in NAMES:
            forward = self._forward(name)
            setattr(self, name, types.SimpleNamespace(default=forward))
            setattr(self, f"{name}_backward", types.SimpleNamespace(default=self._backward(name)))

    def _forward(self, name):
        return lambda number, x, *rest: run(name, number, x, rest)

    def _backward(self, name):
        place = {"layer_norm": 4, "pool": 3}.get(name, 0)

        def backward(number, grad, x, *rest):
            rest, wanted = [*rest[:place], *rest[place + 1 :]], rest[place]
            self.wanted.append(wanted)
            summed = slice(0, 2) if name == "layer_norm" else slice(place, None)
            with torch.enable_grad():
                leaf = x.detach().requires_grad_()
                sums = [None if t is None else t.detach().requires_grad_() for t in rest[summed]]
                rest[summed] = sums
                y = run(name, number, leaf, rest)
                leaves = [leaf, *(t for t in sums if t is not None)]
                found = iter(torch.autograd.grad(y, leaves, grad))
            grad_x = next(found)
            made = [None if t is None else next(found) for t in sums]
            columns = rest[3] if name == "layer_norm" else x.shape[1]
            return grad_x, sums_by_bit(wanted, made, columns, x)

        return backward


@pytest.fixture
def library(monkeypatch):
    made = Library()
    monkeypatch.setattr(large_tails, "_tail_library", lambda: made)
    monkeypatch.setattr(tail_gradients, "_tail_gradient_library", lambda: made)
    monkeypatch.setattr(large_tails, "_tail_pays", lambda x, vectors: True)
    for module in (large_tails, tail_gradients):
        monkeypatch.setattr(module, "_TAILS", KINDS)
    return made


LAYERS = [
    (ROWS, drawn(nn.LayerNorm(6, eps=0.1)), (2, 3, 4, 5, 6)),
    (ROWS, drawn(nn.LayerNorm((5, 6))), (2, 3, 4, 5, 6)),
    (ROWS, drawn(nn.LayerNorm(6, bias=False)), (2, 3, 6)),
    (ROWS, nn.LayerNorm(6, elementwise_affine=False), (2, 3, 6)),
    (SOFTMAX, nn.Softmax(1), (2, 3, 4, 8)),
    (PLANE, nn.Softmax(2), (2, 3, 7)),
    (AVERAGE, nn.AvgPool3d(2), (2, 3, 4, 5, 6)),
    (LARGEST, nn.MaxPool3d((1, 3, 2)), (2, 3, 4, 5, 6)),
    (AVERAGE, nn.AvgPool2d(2), (2, 3, 5, 6)),
    (LARGEST, nn.MaxPool2d((3, 2)), (2, 3, 5, 6)),
]
EACH = pytest.mark.parametrize(("number", "layer", "shape"), LAYERS, ids=str)


def operands(shape, seed=0):
    generator = torch.Generator().manual_seed(seed)

    def made(*size):
        return torch.randn(size, generator=generator, dtype=torch.float64)

    return made(*shape), [made(shape[1]), made(shape[1])]


def outcome(number, layer, x, vectors, chain, monkeypatch):
    """(by the tail, by PyTorch)"""
    monkeypatch.setattr(tail_gradients, "_TAIL_CHAINS", (chain,) * len(KINDS))
    ran, found = large_tails._tail(number, x, layer, tuple(vectors), ())
    y = layer(x)
    return found if ran else None, stepped(y, vectors) if vectors else y


@EACH
def test_as_pytorchs(library, monkeypatch, number, layer, shape):
    """Of x and the layer's parameters, where no step has an operand that wants one."""
    x, vectors = operands(shape)
    leaves = [x.requires_grad_(), *layer.parameters()]
    found, wanted = outcome(number, layer, x, vectors, CHAIN, monkeypatch)
    grad = torch.randn_like(wanted)
    assert torch.allclose(found, wanted)
    for ours, theirs in zip(
        torch.autograd.grad(found, leaves, grad),
        torch.autograd.grad(wanted, leaves, grad),
        strict=True,
    ):
        assert torch.allclose(ours, theirs)
    assert library.wanted == [2 ** len([*layer.parameters()]) - 1]


@pytest.mark.parametrize("want", [[0], [1], [0, 1]], ids=str)
@EACH
def test_operands_of_steps(library, monkeypatch, number, layer, shape, want):
    x, vectors = operands(shape)
    leaves = [vectors[i].requires_grad_() for i in want]
    found, wanted = outcome(number, layer, x, vectors, CHAIN, monkeypatch)
    if number == ROWS or (number == SOFTMAX and len(want) > 1):
        assert found is None  # PyTorch's operators run
        return
    grad = torch.randn_like(wanted)
    ours, theirs = (torch.autograd.grad(y, leaves, grad) for y in (found, wanted))
    assert all(torch.allclose(a, b) for a, b in zip(ours, theirs, strict=True))
    assert library.wanted == [sum(1 << i for i in want)]


@pytest.mark.parametrize("frozen", ["x", "weight", "bias"])
def test_frozen_tensors(library, monkeypatch, frozen):
    layer = drawn(nn.LayerNorm(6))
    x, _ = operands((2, 3, 6))
    tensors = {"x": x, "weight": layer.weight, "bias": layer.bias}
    for name, tensor in tensors.items():
        tensor.requires_grad_(name != frozen)
    found, wanted = outcome(ROWS, layer, x, [], (), monkeypatch)
    for y in (found, wanted):
        y.square().sum().backward()
        grads = {name: tensor.grad for name, tensor in tensors.items()}
        assert grads.pop(frozen) is None
        kept = {name: grad.clone() for name, grad in grads.items()}
        for tensor in tensors.values():
            tensor.grad = None
        if y is found:
            ours = kept
    assert all(torch.allclose(ours[name], kept[name]) for name in kept)


@EACH
def test_gradients_of_gradients(library, monkeypatch, number, layer, shape):
    """PyTorch's, and the first ones of create_graph=True, too; a tensor may come twice."""
    x, vectors = operands(shape)
    for vector in vectors:
        vector.requires_grad_(number in (PLANE, AVERAGE, LARGEST))
    leaves = [x.requires_grad_(), *layer.parameters(), *(v for v in vectors if v.requires_grad)]
    found, wanted = outcome(number, layer, x, vectors, CHAIN, monkeypatch)
    both = []
    for y in (found, wanted):
        first = torch.autograd.grad(y.square().sum(), leaves, create_graph=True)
        assert library.wanted == []
        of_first = sum(g.square().sum() for g in first)
        both.append([*first, *torch.autograd.grad(of_first, leaves)])
        library.wanted.clear()
    assert all(torch.allclose(a, b) for a, b in zip(*both, strict=True))


def test_without_a_gradient_nothing_is_kept(library, monkeypatch):
    layer = nn.Softmax(1)
    x, _ = operands((2, 3, 4, 8))
    with torch.no_grad():
        found, _ = outcome(SOFTMAX, layer, x.requires_grad_(), [], (), monkeypatch)
    assert found.grad_fn is None


def test_gradients_under_autocast(library, monkeypatch):
    """Formed in the dtypes of what forward saved, wherever backward is called."""
    layer = nn.LayerNorm(6)
    x = torch.randn(2, 3, 6, requires_grad=True)
    found, wanted = outcome(ROWS, layer, x, [], (), monkeypatch)
    (theirs,) = torch.autograd.grad(wanted.sum(), x)
    with torch.autocast("cpu", torch.bfloat16):
        (ours,) = torch.autograd.grad(found.sum(), x)
    assert ours.dtype == torch.float32 and torch.allclose(ours, theirs, atol=1e-6)
