"""BatchNorm by kernels of ours: what they are called with, and when PyTorch runs it."""

import copy
import re
import types

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from generator.explain import explained
from generator.runtime import large_batch_norm
from tests.solution_tools import REFERENCES, generated, program_of


class Library:
    """PyTorch's own in the place of the operators, which count their calls."""

    def __init__(self):
        self.calls = self.gradients = 0
        self.normalise = types.SimpleNamespace(default=self._normalise)
        self.backward = types.SimpleNamespace(default=self._backward)

    def _normalise(self, x, weight, bias, mean, var, counted, momentum, eps, softmax):
        self.calls += 1
        self.softmax = softmax
        factor = momentum if counted is None else 1.0 / float(counted)
        y = F.batch_norm(x, mean, var, weight, bias, True, factor, eps)
        return torch.softmax(y, 3) if softmax else y

    def _backward(self, grad, x, weight, eps, *needs):
        assert not torch.is_autocast_enabled("cpu") and not torch.is_grad_enabled()
        self.gradients += 1
        ones = torch.ones(x.shape[1], dtype=x.dtype)
        given = [x, ones if weight is None else weight, torch.zeros_like(ones)]
        with torch.enable_grad():
            leaves = [t.detach().requires_grad_() for t in given]
            y = F.batch_norm(leaves[0], None, None, *leaves[1:], True, 0.0, eps)
        found = torch.autograd.grad(y, leaves, grad)
        wanted = (True, *needs)
        return [g if w else g.new_empty(0) for g, w in zip(found, wanted, strict=True)]


@pytest.fixture
def kernels(monkeypatch):
    made = Library()
    monkeypatch.setattr(large_batch_norm, "_batch_norm_library", lambda: made)
    return made


@pytest.fixture
def pays(monkeypatch):
    monkeypatch.setattr(large_batch_norm, "_norm_pays", lambda module, x: True)


_ARGUMENTS = [
    {},
    {"momentum": None},
    {"affine": False, "momentum": 0.3},
    {"track_running_stats": False},
    {"track_running_stats": False, "momentum": None},
]
_SHAPES = {
    nn.BatchNorm1d: (2, 3, 4),
    nn.BatchNorm2d: (2, 3, 4, 5),
    nn.BatchNorm3d: (2, 3, 4, 5, 6),
}


@pytest.mark.parametrize("arguments", _ARGUMENTS, ids=str)
@pytest.mark.parametrize("kind", _SHAPES)
def test_as_the_module(kernels, pays, arguments, kind):
    torch.manual_seed(0)
    ours = kind(3, **arguments)
    theirs = copy.deepcopy(ours)
    with torch.no_grad():
        for _ in range(3):
            x = torch.randn(_SHAPES[kind])
            assert torch.equal(large_batch_norm._large_batch_norm(ours, x), theirs(x))
    assert kernels.calls == 3
    for a, b in zip(ours.buffers(), theirs.buffers(), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize(
    ("softmax", "width", "joined"),
    [
        *((nn.Softmax(-1), 64, True), (nn.Softmax(3), 128, True), (nn.Softmax(1), 64, False)),
        *((nn.Softmax(-1), 60, False), (nn.LogSoftmax(-1), 64, False)),
    ],
    ids=str,
)
@pytest.mark.parametrize("ours", [True, False])
def test_softmax_is_taken_along(kernels, monkeypatch, softmax, width, joined, ours):
    monkeypatch.setattr(large_batch_norm, "_norm_pays", lambda module, x: ours)
    norm = nn.BatchNorm2d(3)
    theirs, x = copy.deepcopy(norm), torch.randn(2, 3, 4, width)
    with torch.no_grad():
        y = large_batch_norm._large_batch_norm(norm, x, softmax)
        assert torch.equal(y, softmax(theirs(x)))
    assert kernels.calls == ours and (not ours or kernels.softmax == joined)


def test_softmax_of_a_volume_is_called(kernels, pays):
    """Whatever its axis: 3 is not a row's."""
    norm = nn.BatchNorm3d(3)
    theirs, x = copy.deepcopy(norm), torch.randn(2, 3, 2, 64, 64)
    with torch.no_grad():
        for softmax in (nn.Softmax(3), nn.Softmax(-1)):
            y = large_batch_norm._large_batch_norm(norm, x, softmax)
            assert torch.equal(y, softmax(theirs(x)))
            assert not kernels.softmax
    assert kernels.calls == 2


def hooked() -> nn.Module:
    norm = nn.BatchNorm2d(3)
    norm.register_forward_hook(lambda module, given, out: 2 * out)
    return norm


class Doubled(nn.BatchNorm2d):
    def forward(self, x):
        return 2 * super().forward(x)


@pytest.mark.parametrize(
    "make",
    [hooked, lambda: Doubled(3), lambda: nn.BatchNorm2d(3).eval(), nn.Identity],
)
def test_other_modules_are_called(kernels, pays, make):
    module, x = make(), torch.randn(2, 3, 4, 5)
    with torch.no_grad():
        torch.testing.assert_close(large_batch_norm._large_batch_norm(module, x), module(x))
    assert kernels.calls == 0


@pytest.mark.parametrize("frozen", [(), ("x",), ("weight",), ("bias", "x"), ("weight", "bias")])
@pytest.mark.parametrize("arguments", _ARGUMENTS, ids=str)
@pytest.mark.parametrize("kind", _SHAPES)
def test_gradients_as_the_modules(kernels, pays, kind, arguments, frozen):
    """And the statistics move once a step."""
    torch.manual_seed(0)
    ours = kind(3, eps=0.1, **arguments)
    for parameter in ours.parameters():
        nn.init.normal_(parameter)
    theirs = copy.deepcopy(ours)
    for step in range(2):
        x, grad = torch.randn(_SHAPES[kind]), torch.randn(_SHAPES[kind])
        found = []
        for norm, call in ((ours, large_batch_norm._large_batch_norm), (theirs, _called)):
            leaf = x.clone()
            tensors = {"x": leaf, "weight": norm.weight, "bias": norm.bias}
            given = {name: t for name, t in tensors.items() if t is not None}
            wanted = [t.requires_grad_(name not in frozen) for name, t in given.items()]
            wanted = [t for t in wanted if t.requires_grad]
            y = call(norm, leaf)
            assert y.requires_grad == bool(wanted)
            found.append([y, *(torch.autograd.grad(y, wanted, grad) if wanted else ())])
        torch.testing.assert_close(*found)
        assert kernels.calls == step + 1 and kernels.gradients == (step + 1) * bool(wanted)
    for a, b in zip(ours.buffers(), theirs.buffers(), strict=True):
        assert torch.equal(a, b)


def _called(module, x):
    return module(x)


@pytest.mark.parametrize("softmax", [nn.Softmax(-1), nn.Softmax(1)], ids=str)
def test_softmax_is_called_where_a_gradient_is_wanted(kernels, pays, softmax):
    norm, x = nn.BatchNorm2d(3), torch.randn(2, 3, 4, 64, requires_grad=True)
    theirs = copy.deepcopy(norm)
    y, wanted = large_batch_norm._large_batch_norm(norm, x, softmax), softmax(theirs(x))
    torch.testing.assert_close(y, wanted)
    assert kernels.calls == 1 and not kernels.softmax
    grad = torch.randn_like(y)
    found = [torch.autograd.grad(t, x, grad) for t in (y, wanted)]
    torch.testing.assert_close(*found)


def test_gradients_of_gradients_are_pytorchs(kernels, pays):
    norm = nn.BatchNorm3d(3, track_running_stats=False).double()
    x = torch.randn(2, 3, 2, 2, 3, dtype=torch.float64, requires_grad=True)

    def call(x, weight, bias):
        given = copy.copy(norm)
        given._parameters = {"weight": weight, "bias": bias}
        return large_batch_norm._large_batch_norm(given, x)

    leaves = x, norm.weight.detach().requires_grad_(), norm.bias.detach().requires_grad_()
    assert torch.autograd.gradcheck(call, leaves) and torch.autograd.gradgradcheck(call, leaves)
    # One tensor twice, and one computed from another: x from the weight, too.
    weight = leaves[1]
    shared = torch.randn(2, 3, 2, 2, 3, dtype=torch.float64, requires_grad=True)
    found = []
    for form in (lambda *given: F.batch_norm(given[0], None, None, *given[1:], True), call):
        y = form(2 * shared * (weight + 1).view(3, 1, 1, 1), weight, weight) * shared
        first = torch.autograd.grad(y.pow(3).sum(), [shared, weight], create_graph=True)
        size = sum(t.square().sum() for t in first)
        found.append([*first, *torch.autograd.grad(size, [shared, weight])])
    torch.testing.assert_close(*found)


def test_gradients_as_a_training_step_has_them(kernels, pays):
    """Of a mean, whose gradient is one number for all; behind an operator that writes to the
    result; called under autocast.
    """
    norm, x = nn.BatchNorm3d(3), torch.randn(2, 3, 4, 5, 6, requires_grad=True)
    nn.init.normal_(norm.bias)
    theirs = copy.deepcopy(norm)
    grads = []
    for module, call in ((norm, large_batch_norm._large_batch_norm), (theirs, _called)):
        y = call(module, x).relu_()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            grads.append(torch.autograd.grad(y.mean(), (x, *module.parameters())))
    torch.testing.assert_close(*grads)
    assert kernels.gradients == 1


def test_what_is_written_to_is_noticed(kernels, pays):
    x = torch.randn(2, 3, 4, 5, requires_grad=True) * 1
    y = large_batch_norm._large_batch_norm(nn.BatchNorm2d(3), x)
    x.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_compilers_see_pytorchs(kernels, pays, monkeypatch):
    monkeypatch.setattr(large_batch_norm, "_as_operator", lambda: True)
    with torch.no_grad():
        large_batch_norm._large_batch_norm(nn.BatchNorm2d(3), torch.randn(2, 3, 4, 5))
    assert kernels.calls == 0


class OnCuda(torch.Tensor):
    """A tensor on no device that says so."""

    is_cuda = True
    device = torch.device("meta")


def asked(norm, shape=(8, 64, 128, 128), dtype=torch.float32, change=lambda x: x) -> bool:
    x = torch.empty(shape, dtype=dtype, device="meta")
    return large_batch_norm._norm_pays(norm.to("meta"), change(x).as_subclass(OnCuda))


def test_what_pays(monkeypatch):
    monkeypatch.setattr(large_batch_norm, "_is_hopper", lambda device: True)
    assert asked(nn.BatchNorm2d(64)) and asked(nn.BatchNorm2d(64, affine=False))
    assert asked(nn.BatchNorm2d(64, track_running_stats=False))
    assert asked(nn.BatchNorm3d(64), (8, 64, 16, 32, 32))
    assert asked(nn.BatchNorm1d(64), (8, 64, 1 << 14))
    assert not asked(nn.BatchNorm3d(64), (8, 64, 4, 32, 32))  # few values
    assert not asked(nn.BatchNorm2d(63))  # whose error is PyTorch's
    assert not asked(nn.BatchNorm2d(8), (1, 8, 256, 512))  # few values
    assert not asked(nn.BatchNorm2d(64), (8, 64, 64, 64))  # few of a channel
    assert not asked(nn.BatchNorm1d(64), (1 << 17, 64))  # rows
    assert asked(nn.BatchNorm2d(64), (1 << 14, 64, 8, 8))
    assert not asked(nn.BatchNorm2d(64), (1 << 14, 64, 7, 9))  # few of a plane
    assert not asked(nn.BatchNorm2d(64), dtype=torch.float16)
    assert not asked(nn.BatchNorm2d(64, dtype=torch.float64))
    assert not asked(nn.BatchNorm2d(64), change=lambda x: x.mT)
    assert not asked(nn.BatchNorm2d(64), change=lambda x: x[0])
    monkeypatch.setattr(large_batch_norm, "_is_hopper", lambda device: False)
    assert not asked(nn.BatchNorm2d(64))


def test_a_solution_calls_it_beside_ordinary_convolutions():
    text = generated(REFERENCES / "many_channels.py")
    assert (
        re.search(r"_large_batch_norm\(self\.norm, \w+, self\.soft\)", text)
        and 'BATCH_NORM_CUDA_SOURCE = r"""' in text
    )
    program = program_of(REFERENCES / "many_channels.py")
    assert any(_SAID in line.text for line in explained(program))


_SAID = "kernels for it in training mode, and for its gradients"


def test_a_solution_calls_it_where_no_kernel_takes_it_along():
    text = generated(REFERENCES / "dcgan_block.py")  # where steps follow
    assert re.search(r"done, \w+ = _tail\(0, \w+, self\.block\.norm, \(\), \(\)\)", text)
    assert "_large_batch_norm" not in text
    taken_along = generated(REFERENCES / "pooled.py")
    assert "_batch_norm_pool" in taken_along and "_large_batch_norm" not in taken_along


@pytest.mark.parametrize(
    ("dimensions", "size"), [("1d", "5)]"), ("3d", "5, 6, 7)]")], ids=("1d", "3d")
)
def test_a_solution_calls_it_of_other_dimensions(tmp_path, dimensions, size):
    path = tmp_path / "reference.py"
    text = _READ_TWICE.format(more="").replace("2d", dimensions).replace("5, 6)]", size)
    path.write_text(text)
    text = generated(path)
    assert re.search(r"_large_batch_norm\(self\.norm, \w+(, self\.soft)?\)", text)
    assert any(_SAID in line.text for line in explained(program_of(path)))


_READ_TWICE = """\
import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = nn.ConvTranspose2d(3, 4, 2, stride=2)
        self.smooth = nn.Conv2d(4, 4, 3, padding=1)
        self.norm = nn.BatchNorm2d(4)
        self.soft = nn.Softmax(dim=-1)

    def forward(self, x):
        y = self.norm(self.smooth(self.up(x)))
        return self.soft(y){more}


def get_inputs():
    return [torch.randn(2, 3, 5, 6)]


def get_init_inputs():
    return []
"""


@pytest.mark.parametrize(("more", "joined"), [("", True), (" * y", False), (", y", False)])
def test_softmax_that_reads_alone_is_taken_along(tmp_path, more, joined):
    path = tmp_path / "reference.py"
    path.write_text(_READ_TWICE.format(more=more))
    text = generated(path)
    assert bool(re.search(r"_large_batch_norm\(self\.norm, \w+, self\.soft\)", text)) == joined
    assert bool(re.search(r"= self\.soft\(|return self\.soft\(", text)) == (not joined)


def test_pytorchs_gradients_come_without_it():
    text = generated(REFERENCES / "many_channels.py", own_gradients=False)
    assert "_large_batch_norm" not in text and "BATCH_NORM_CUDA_SOURCE" not in text
    assert _SAID not in text


def test_softmax_that_begins_a_tail_is_the_tails(tmp_path):
    path = tmp_path / "reference.py"
    text = _READ_TWICE.format(more=".sigmoid()").replace("2d", "3d").replace("5, 6)]", "5, 6, 7)]")
    path.write_text(text.replace("dim=-1", "dim=1"))
    text = generated(path)
    assert re.search(r"_large_batch_norm\(self\.norm, \w+\)", text)
    assert re.search(r"done, \w+ = _tail\(0, \w+, self\.soft, \(\), \(\)\)", text)
