"""nn.GroupNorm and nn.InstanceNorm by kernels of ours: what they are called with, and when PyTorch
runs them.
"""

import copy
import functools
import re
import types

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from generator.explain import explained
from generator.runtime import large_group_norm
from tests.solution_tools import REFERENCES, generated, program_of

_SHAPE = 2, 6, 3, 4, 5


class Library:
    """PyTorch's own in the place of the operators, which count their calls."""

    def __init__(self):
        self.calls = self.gradients = 0
        self.normalise = types.SimpleNamespace(default=self._normalise)
        self.backward = types.SimpleNamespace(default=self._backward)

    def _normalise(self, x, weight, bias, num_groups, eps):
        self.calls += 1
        return F.group_norm(x, num_groups, weight, bias, eps)

    def _backward(self, grad, x, weight, num_groups, eps, *needs):
        self.gradients += 1
        ones = torch.ones(x.shape[1], dtype=x.dtype)
        given = [x, ones if weight is None else weight, torch.zeros_like(ones)]
        with torch.enable_grad():
            leaves = [t.detach().requires_grad_() for t in given]
            y = F.group_norm(leaves[0], num_groups, *leaves[1:], eps)
        found = torch.autograd.grad(y, leaves, grad)
        wanted = (True, *needs)
        return [g if w else g.new_empty(0) for g, w in zip(found, wanted, strict=True)]


@pytest.fixture
def library(monkeypatch):
    made = Library()
    monkeypatch.setattr(large_group_norm, "_group_norm_library", lambda: made)
    return made


@pytest.fixture
def pays(monkeypatch):
    monkeypatch.setattr(large_group_norm, "_group_norm_pays", lambda module, x: True)


@pytest.mark.parametrize("frozen", [(), ("x",), ("weight",), ("bias", "x"), ("weight", "bias")])
@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("kind", [functools.partial(nn.GroupNorm, 3), nn.InstanceNorm3d])
def test_as_the_module(library, pays, kind, affine, frozen):
    torch.manual_seed(0)
    ours = kind(6, eps=0.1, affine=affine)
    if affine:
        nn.init.normal_(ours.weight), nn.init.normal_(ours.bias)
    x = torch.randn(_SHAPE)
    tensors = {"x": x, "weight": ours.weight, "bias": ours.bias}
    for name, tensor in tensors.items():
        if tensor is not None:
            tensor.requires_grad_(name not in frozen)
    wanted = [t for t in tensors.values() if t is not None and t.requires_grad]
    theirs, found = ours(x), large_group_norm._large_group_norm(ours, x)
    # PyTorch runs InstanceNorm another way.
    same = torch.equal if isinstance(ours, nn.GroupNorm) else torch.allclose
    assert same(found, theirs) and found.requires_grad == bool(wanted)
    grad = torch.randn(_SHAPE)
    if wanted:
        pairs = (torch.autograd.grad(y, wanted, grad) for y in (found, theirs))
        for a, b in zip(*pairs, strict=True):
            torch.testing.assert_close(a, b)
    assert library.calls == 1 and library.gradients == bool(wanted)
    with torch.no_grad():
        assert same(large_group_norm._large_group_norm(ours, x), theirs)
    assert library.calls == 2


def test_gradients_of_gradients_are_pytorchs(library, pays):
    norm = nn.GroupNorm(2, 4).double()
    x = torch.randn(2, 4, 3, 3, dtype=torch.float64, requires_grad=True)

    def call(x, weight, bias):
        given = copy.copy(norm)
        given._parameters = {"weight": weight, "bias": bias}
        return large_group_norm._large_group_norm(given, x)

    leaves = x, norm.weight.detach().requires_grad_(), norm.bias.detach().requires_grad_()
    assert torch.autograd.gradcheck(call, leaves) and torch.autograd.gradgradcheck(call, leaves)
    # One tensor twice, and one computed from another.
    shared = torch.randn(2, 4, 3, 3, dtype=torch.float64, requires_grad=True)
    for form in (norm, lambda x: call(x, norm.weight, norm.bias)):
        y = form(2 * shared) * shared
        (first,) = torch.autograd.grad(y.square().sum(), shared, create_graph=True)
        (second,) = torch.autograd.grad(first.square().sum(), shared)
        if form is norm:
            wanted = first, second
    torch.testing.assert_close((first, second), wanted)


def hooked() -> nn.Module:
    norm = nn.GroupNorm(3, 6)
    norm.register_forward_hook(lambda module, given, out: 2 * out)
    return norm


class Doubled(nn.GroupNorm):
    def forward(self, x):
        return 2 * super().forward(x)


def of_statistics() -> nn.Module:
    return nn.InstanceNorm3d(6, track_running_stats=True)


@pytest.mark.parametrize("make", [hooked, lambda: Doubled(3, 6), nn.Identity, of_statistics])
def test_other_modules_are_called(library, pays, make):
    module, x = make(), torch.randn(_SHAPE)
    torch.testing.assert_close(large_group_norm._large_group_norm(module, x), module(x))
    assert library.calls == 0


def test_compilers_and_transforms_see_pytorchs(library, pays, monkeypatch):
    norm, x = nn.GroupNorm(3, 6), torch.randn(_SHAPE)
    found = torch.func.vmap(lambda x: large_group_norm._large_group_norm(norm, x))(x[None])
    torch.testing.assert_close(found[0], norm(x))
    monkeypatch.setattr(large_group_norm, "_as_operator", lambda: True)
    large_group_norm._large_group_norm(norm, x)
    assert library.calls == 0


class OnCuda(torch.Tensor):
    """A tensor on no device that says so."""

    is_cuda = True
    device = torch.device("meta")


def asked(norm, shape=(8, 64, 16, 32, 32), dtype=torch.float32, change=lambda x: x) -> bool:
    x = torch.empty(shape, dtype=dtype, device="meta")
    return large_group_norm._group_norm_pays(norm.to("meta"), change(x).as_subclass(OnCuda))


def test_what_pays(monkeypatch):
    monkeypatch.setattr(large_group_norm, "_is_hopper", lambda device: True)
    monkeypatch.setattr(torch, "is_autocast_enabled", lambda kind: False)
    assert asked(nn.GroupNorm(8, 64)) and asked(nn.GroupNorm(8, 64, affine=False))
    assert asked(nn.GroupNorm(8, 64, dtype=torch.float16), dtype=torch.float16)
    assert asked(nn.GroupNorm(8, 64), (8, 64, 256, 256))
    assert asked(nn.InstanceNorm3d(64)) and asked(nn.InstanceNorm2d(64), (8, 64, 256, 256))
    assert not asked(nn.InstanceNorm2d(64))  # whose error is PyTorch's, as
    assert not asked(nn.InstanceNorm2d(64), (1 << 10, 1 << 10, 1, 1))
    assert not asked(nn.GroupNorm(9, 63))  # whose error is PyTorch's
    assert not asked(nn.GroupNorm(8, 64), (1, 64, 4, 32, 32))  # few values
    assert not asked(nn.GroupNorm(8, 64), dtype=torch.float16)
    assert not asked(nn.GroupNorm(8, 64), dtype=torch.float64)
    assert not asked(nn.GroupNorm(8, 64), change=lambda x: x.mT)
    assert not asked(nn.GroupNorm(8, 64), (1 << 15, 64))
    monkeypatch.setattr(torch, "is_autocast_enabled", lambda kind: True)
    assert asked(nn.GroupNorm(8, 64))
    assert not asked(nn.GroupNorm(8, 64, dtype=torch.float16), dtype=torch.float16)
    monkeypatch.setattr(large_group_norm, "_is_hopper", lambda device: False)
    assert not asked(nn.GroupNorm(8, 64))


def test_a_solution_calls_it_where_no_kernel_takes_it_along():
    path = REFERENCES / "grouped_volumes.py"
    text = generated(path)
    calls = re.findall(r"_large_group_norm\(self\.(\w+), \w+\)", text)
    assert calls == ["norm", "last"] and 'GROUP_NORM_CUDA_SOURCE = r"""' in text
    said = [line.text for line in explained(program_of(path))]
    assert any("for its gradients" in line for line in said)


def test_pytorchs_gradients_come_without_it():
    text = generated(REFERENCES / "grouped_volumes.py", own_gradients=False)
    assert "_large_group_norm" not in text and "GROUP_NORM_CUDA_SOURCE" not in text
    taken_along = generated(REFERENCES / "tanh_gelu_norm.py")
    assert "_large_group_norm" not in taken_along and "GROUP_NORM_CUDA_SOURCE" not in taken_along
