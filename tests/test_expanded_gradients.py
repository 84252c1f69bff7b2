"""Means over positions of a convolution's outputs, whose gradient is expanded; the gradients of
volumes that are one slice again and again; and what their channels' sums are taken of.
"""

import re
import types

import pytest
import torch

from generator import static_rules
from generator.runtime import mean, volume_gradients
from generator.runtime.activation_gradients import _Relu
from tests.solution_tools import generated


@pytest.mark.parametrize("keepdim", [True, False])
@pytest.mark.parametrize("dims", [[2], [-1, 2], (3, 4, 2), [4]])
def test_as_pytorchs(dims, keepdim):
    """To the bit, gradients of gradients but for the order of sums; nothing is written out."""
    x = torch.randn(2, 3, 4, 5, 6, dtype=torch.float64, requires_grad=True)
    seen, found = [], []
    for form in (lambda x: mean._Mean.apply(x, dims, keepdim), lambda x: x.mean(dims, keepdim)):
        value = x * 2
        value.register_hook(seen.append)
        y = form(value)
        (first,) = torch.autograd.grad(y.square().sum(), x, create_graph=True)
        found += [y, first, torch.autograd.grad(first.square().sum(), x)[0]]
    assert torch.equal(found[0], found[3]) and torch.equal(found[1], found[4])
    assert torch.allclose(found[2], found[5], rtol=1e-14, atol=1e-14)
    assert all(seen[0].stride(dim) == 0 for dim in dims)


def test_on_a_cpu_and_without_gradients_it_is_pytorchs():
    x = torch.randn(2, 3, 4, 5, requires_grad=True)
    assert "_Mean" not in mean._mean(x, [2, 3]).grad_fn.name()
    with torch.no_grad():
        assert torch.equal(mean._mean(x, [2, 3], True), x.mean([2, 3], True))


_MODEL = """
import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = nn.ConvTranspose{rank}d(2, 3, 3)

    def forward(self, x):
        y = self.up(x)
        {behind}


def get_inputs():
    return [torch.rand({shape})]


def get_init_inputs():
    return []
"""
_SHAPES = {1: "2, 2, 9", 2: "2, 2, 4, 5", 3: "2, 2, 3, 4, 5"}


@pytest.mark.parametrize(
    ("rank", "behind", "call"),
    [
        (3, "return y.mean(dim=2, keepdim=True)", r"_mean\(\w+, \[2\], True\)"),
        (2, "return torch.mean(y * 2, (2, 3))", r"_mean\(\w+, \[2, 3\]\)"),
        (2, "return torch.mean(y, (-2, -1)) + y.sum()", r"_mean\(\w+, \[-2, -1\]\)"),
        (2, "return y.mean(1)", None),
        (2, "return y.mean((0, 2))", None),
        (2, "return y.mean()", None),
        (2, "return y.mean((2, 3), dtype=torch.float64)", None),
        (2, "return torch.softmax(y, 1).mean((2, 3))", None),  # not of the convolution's
        (1, "return y.mean(2)", None),
    ],
)
def test_which_are_taken(tmp_path, rank, behind, call):
    path = tmp_path / "mean.py"
    path.write_text(_MODEL.format(rank=rank, behind=behind, shape=_SHAPES[rank]))
    text = generated(path)
    calls = re.findall(r"(?<!def )_mean\(.*\)", text)
    assert len(calls) == (call is not None)
    if call:
        assert re.fullmatch(call, calls[0])
        assert static_rules.findings(text, "float32").errors == []
        assert "_mean(" not in generated(path, own_gradients=False)


AXES = (1,) * 3, (0,) * 3, (0,) * 3, (1,) * 3


@pytest.fixture
def given(monkeypatch):
    """What the kernels are given: the gradient; and what its channels' sums are taken of."""
    seen = []

    def in_place(grad, x, weight, axes, groups, needs):
        seen.append(grad)
        return [torch.zeros_like(x), torch.zeros_like(weight)]

    def kernel_gradients(grad, x, weight, conv, needs):
        assert needs == (False, False, True)
        assert x.shape == (grad.shape[0], 1, *grad.shape[2:])
        assert weight.shape == (1, grad.shape[1], 1, 1)
        seen.append(grad)
        return None, None, grad.sum((0, 2, 3))

    monkeypatch.setattr(volume_gradients, "_GRADIENT_DEVICES", ("cpu",))
    monkeypatch.setattr(volume_gradients, "_in_place", in_place)
    monkeypatch.setattr(volume_gradients, "_kernel_gradients", kernel_gradients)
    return seen


def gradients(grad, steps=()):
    x, weight = torch.randn(2, 8, 3, 4, 5), torch.randn(8, 6, 1, 1, 1)
    ctx = types.SimpleNamespace(
        call=(None, (steps, 0, None), AXES, 1),
        needs_input_grad=(*[False] * 5, True, True, True),
        saved_tensors=(x, weight, torch.zeros(6), None),
    )
    with torch.no_grad():
        return volume_gradients._gradients_of_volumes(ctx, grad)


def test_slices_that_are_the_same_are_not_written_out(given):
    slices = torch.randn(2, 6, 1, 4, 5)
    *_, of_bias = gradients(slices.expand(2, 6, 3, 4, 5))
    (grad,) = given
    assert grad.stride() == (120, 20, 0, 5, 1)
    torch.testing.assert_close(of_bias, 3 * slices.sum((0, 2, 3, 4)))


@pytest.mark.parametrize(
    "grad",
    [
        torch.randn(2, 6, 3, 4, 5),
        torch.randn(2, 6, 3, 5, 4).mT,
        torch.randn(2, 6, 1, 5, 4).mT.expand(2, 6, 3, 4, 5),
        torch.randn(1).expand(2, 6, 3, 4, 5),
        torch.randn(2, 6, 3, 4, 1).expand(2, 6, 3, 4, 5),
    ],
    ids=lambda grad: str(grad.stride()),
)
def test_others_are(given, grad):
    *_, of_bias = gradients(grad)
    assert [g.is_contiguous() for g in given] == [True, True]
    assert torch.equal(given[-1], grad)
    torch.testing.assert_close(of_bias, grad.sum((0, 2, 3, 4)))


def test_so_are_a_chains(given, monkeypatch):
    def before_chain(grad, value, vectors, needs, steps, chain):
        given.append(grad)
        return grad, None, []

    monkeypatch.setattr(volume_gradients, "_before_chain", before_chain)
    monkeypatch.setattr(volume_gradients, "_library_volumes", lambda *a: torch.ones(2, 6, 3, 4, 5))
    gradients(torch.randn(2, 6, 1, 4, 5).expand(2, 6, 3, 4, 5), (_Relu(),))
    assert all(grad.is_contiguous() for grad in given) and len(given) == 3
