"""GroupNorm, InstanceNorm and BatchNorm with steps behind them: what a solution asks for, what the
kernels are called with, and PyTorch's operators where they are not.
"""

import copy
import re
import types

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from generator import static_rules
from generator.explain import explained
from generator.runtime import large_batch_norm, large_tails, tail_gradients
from generator.runtime.activation_gradients import _Gelu
from tests.solution_tools import REFERENCES, generated, program_of
from tests.sweeps import swept
from tests.tail_tools import drawn, sums_by_bit

KINDS = "kGroupNorm", "kBatchNorm", "kCentredBatchNorm"
GROUPS, BATCH, CENTRED = range(3)
CHAIN = (_Gelu("none"),)


def centred(y):
    return y - y.mean([*range(2, y.dim())], keepdim=True)


class Library:
    """PyTorch's own in the place of the operators of both libraries, with GELU behind."""

    def __init__(self):
        self.wanted = []
        self.maps = torch.randn(3, 4)
        for name in ("group_norm", "batch_norm", "centred_batch_norm"):
            forward, backward = getattr(self, f"_{name}"), getattr(self, f"_{name}_backward")
            setattr(self, name, types.SimpleNamespace(default=forward))
            setattr(self, f"{name}_backward", types.SimpleNamespace(default=backward))

    def _group_norm(self, number, x, weight, bias, groups, eps):
        assert number == GROUPS
        return F.gelu(F.group_norm(x, groups, weight, bias, eps)), self.maps

    def _batch_norm(self, number, x, weight, bias, mean, var, count, momentum, eps):
        assert number == BATCH
        factor = momentum if count is None else 1 / int(count)
        return F.gelu(F.batch_norm(x, mean, var, weight, bias, True, factor, eps)), self.maps

    def _centred_batch_norm(self, number, x, weight, bias, mean, var, count, momentum, eps):
        assert number == CENTRED
        factor = momentum if count is None else 1 / int(count)
        y = F.batch_norm(x, mean, var, weight, bias, True, factor, eps)
        return F.gelu(centred(y)), self.maps

    def _group_norm_backward(self, number, grad, x, weight, bias, maps, groups, eps, wanted):
        return self._gradients(
            lambda v, *p: self._group_norm(number, v, *p, groups, eps),
            *(grad, x, weight, bias, maps, wanted),
        )

    def _batch_norm_backward(self, number, grad, x, weight, bias, maps, eps, wanted):
        return self._gradients(
            lambda v, *p: self._batch_norm(number, v, *p, None, None, None, 0.0, eps),
            *(grad, x, weight, bias, maps, wanted),
        )

    def _centred_batch_norm_backward(self, number, grad, x, weight, bias, maps, eps, wanted):
        return self._gradients(
            lambda v, *p: self._centred_batch_norm(number, v, *p, None, None, None, 0.0, eps),
            *(grad, x, weight, bias, maps, wanted),
        )

    def _gradients(self, run, grad, x, weight, bias, maps, wanted):
        assert maps is self.maps or torch.equal(maps, self.maps)
        self.wanted.append(wanted)
        with torch.enable_grad():
            leaves = [t if t is None else t.detach().requires_grad_() for t in (x, weight, bias)]
            y, _ = run(*leaves)
            given = [t for t in leaves if t is not None]
            found = iter(torch.autograd.grad(y, given, grad))
        grad_x, *made = (None if t is None else next(found) for t in leaves)
        return grad_x, sums_by_bit(wanted, made, x.shape[1], x)


@pytest.fixture
def library(monkeypatch):
    made = Library()
    monkeypatch.setattr(large_tails, "_tail_library", lambda: made)
    monkeypatch.setattr(tail_gradients, "_tail_gradient_library", lambda: made)
    monkeypatch.setattr(large_tails, "_group_norm_pays", lambda module, x: True)
    monkeypatch.setattr(large_batch_norm, "_norm_pays", lambda module, x: True)
    monkeypatch.setattr(tail_gradients, "_TAIL_CHAINS", (CHAIN,) * 3)
    for module in (large_tails, tail_gradients):
        monkeypatch.setattr(module, "_TAILS", KINDS)
    return made


LAYERS = [
    (GROUPS, drawn(nn.GroupNorm(2, 4, eps=0.1)), (2, 4, 3, 5)),
    (GROUPS, drawn(nn.GroupNorm(1, 4, affine=False)), (2, 4, 3, 2, 5)),
    (GROUPS, drawn(nn.GroupNorm(4, 4)), (2, 4, 7)),
    (GROUPS, drawn(nn.InstanceNorm2d(4, eps=0.1, affine=True)), (2, 4, 3, 5)),
    (GROUPS, nn.InstanceNorm3d(4).eval(), (2, 4, 3, 2, 5)),
    (GROUPS, nn.InstanceNorm1d(4), (2, 4, 7)),
    (BATCH, drawn(nn.BatchNorm2d(4, eps=0.1)), (2, 4, 3, 5)),
    (BATCH, drawn(nn.BatchNorm3d(4, momentum=None)), (2, 4, 3, 2, 5)),
    (BATCH, drawn(nn.BatchNorm1d(4, affine=False, momentum=0.5)), (2, 4, 7)),
    (BATCH, drawn(nn.BatchNorm2d(4, track_running_stats=False)), (2, 4, 3, 5)),
    (CENTRED, drawn(nn.BatchNorm3d(4, eps=0.1)), (2, 4, 3, 2, 5)),
    (CENTRED, drawn(nn.BatchNorm2d(4, momentum=None)), (2, 4, 3, 5)),
    (CENTRED, drawn(nn.BatchNorm1d(4, affine=False, track_running_stats=False)), (2, 4, 7)),
]
EACH = pytest.mark.parametrize(("number", "layer", "shape"), LAYERS, ids=str)


def value(*shape):
    generator = torch.Generator().manual_seed(len(shape))
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def of_layer(number, layer, x):
    """The same by the layer and PyTorch's operators."""
    y = layer(x)
    return F.gelu(centred(y) if number == CENTRED else y)


def of_tail(number, layer, x, steps=()):
    ran, found = large_tails._tail(number, x, layer, (), steps)
    assert ran
    return found


@EACH
def test_as_the_layer(library, number, layer, shape):
    """Statistics move and batches count as the layer's do, in a call without gradients and in one
    with them, once each.
    """
    ours, theirs = copy.deepcopy(layer), copy.deepcopy(layer)
    for step in range(3):
        x = value(*shape) + step
        with torch.set_grad_enabled(step == 1):
            found, wanted = of_tail(number, ours, x), of_layer(number, theirs, x)
        assert torch.allclose(found, wanted)
    for mine, its in zip(ours.buffers(), theirs.buffers(), strict=True):
        assert torch.allclose(mine, its)


@EACH
def test_gradients_are_pytorchs(library, number, layer, shape):
    x = value(*shape).requires_grad_()
    leaves = [x, *layer.parameters()]
    ours, theirs = of_tail(number, layer, x), of_layer(number, layer, x)
    grad = value(*shape)
    for mine, its in zip(
        *(torch.autograd.grad(y, leaves, grad) for y in (ours, theirs)), strict=True
    ):
        assert torch.allclose(mine, its)
    assert library.wanted == [2 ** (len(leaves) - 1) - 1]


@EACH
def test_gradients_of_gradients(library, number, layer, shape):
    """PyTorch's, and so are the first ones of create_graph=True; statistics stay."""
    x = value(*shape).requires_grad_()
    leaves, both = [x, *layer.parameters()], []
    for y in (of_tail(number, layer, x), of_layer(number, layer, x)):
        before = [buffer.clone() for buffer in layer.buffers()]
        first = torch.autograd.grad(y.square().sum(), leaves, create_graph=True)
        assert library.wanted == []
        of_first = sum(g.square().sum() for g in first)
        both.append([*first, *torch.autograd.grad(of_first, leaves)])
        assert all(map(torch.equal, before, layer.buffers()))
        library.wanted.clear()
    assert all(torch.allclose(a, b) for a, b in zip(*both, strict=True))


@pytest.mark.parametrize("number", [GROUPS, BATCH, CENTRED])
@pytest.mark.parametrize("frozen", ["x", "weight", "bias"])
def test_frozen_tensors(library, number, frozen):
    layer = drawn(nn.GroupNorm(2, 4) if number == GROUPS else nn.BatchNorm2d(4))
    x = value(2, 4, 3, 5)
    tensors = {"x": x, "weight": layer.weight, "bias": layer.bias}
    for name, tensor in tensors.items():
        tensor.requires_grad_(name != frozen)
    leaves = [tensor for name, tensor in tensors.items() if name != frozen]
    grad = value(2, 4, 3, 5)
    ours = torch.autograd.grad(of_tail(number, layer, x), leaves, grad)
    theirs = torch.autograd.grad(of_layer(number, layer, x), leaves, grad)
    assert all(torch.allclose(a, b) for a, b in zip(ours, theirs, strict=True))


def hooked(layer):
    layer.register_forward_hook(lambda module, given, out: 2 * out)
    return layer


def with_statistics(layer):
    layer.running_mean, layer.running_var = torch.zeros(4), torch.ones(4)
    return layer


class Doubled(nn.BatchNorm2d):
    def forward(self, x):
        return 2 * super().forward(x)


@pytest.mark.parametrize(
    ("number", "layer"),
    [
        (GROUPS, hooked(nn.GroupNorm(2, 4))),
        (GROUPS, nn.BatchNorm2d(4)),
        (GROUPS, hooked(nn.InstanceNorm2d(4))),
        (GROUPS, nn.InstanceNorm2d(4, track_running_stats=True)),
        (GROUPS, nn.InstanceNorm2d(4, track_running_stats=True).eval()),
        (GROUPS, with_statistics(nn.InstanceNorm2d(4))),
        (GROUPS, nn.InstanceNorm2d(5)),  # of which PyTorch warns
        (GROUPS, nn.InstanceNorm1d(4)),  # whose error is PyTorch's
        (BATCH, hooked(nn.BatchNorm2d(4))),
        (BATCH, nn.BatchNorm2d(4).eval()),
        (BATCH, nn.BatchNorm3d(4)),  # whose error is PyTorch's
        (BATCH, Doubled(4)),
        (BATCH, nn.Identity()),
        (CENTRED, hooked(nn.BatchNorm2d(4))),
        (CENTRED, nn.BatchNorm2d(4).eval()),
        (CENTRED, nn.GroupNorm(2, 4)),
    ],
    ids=str,
)
def test_other_layers_are_pytorchs(library, number, layer):
    x, before = value(2, 4, 3, 5), copy.deepcopy(layer.state_dict())
    assert large_tails._tail(number, x, layer, (), ()) == (False, x)
    assert all(map(torch.equal, before.values(), layer.state_dict().values()))


def test_one_position_of_an_instance_is_pytorchs_error(library):
    layer, x = nn.InstanceNorm2d(4), value(2, 4, 1, 1)
    assert large_tails._tail(GROUPS, x, layer, (), ()) == (False, x)
    with pytest.raises(ValueError, match="more than 1 spatial element"):
        layer(x)


@pytest.mark.parametrize("number", [GROUPS, BATCH, CENTRED])
def test_a_step_that_is_another_one_is_pytorchs_and_no_batch_counts(library, number):
    layer = nn.GroupNorm(2, 4) if number == GROUPS else nn.BatchNorm2d(4)
    step = nn.LeakyReLU(0.1)
    was, before = repr(step), copy.deepcopy(layer.state_dict())
    step.negative_slope = 0.2
    assert large_tails._tail(number, value(2, 4, 3, 5), layer, (), ((step, was),))[0] is False
    assert all(map(torch.equal, before.values(), layer.state_dict().values()))


def test_compilers_and_transforms_see_pytorchs(library, monkeypatch):
    layer, x = nn.BatchNorm2d(4), value(2, 4, 3, 5)

    def call(v):
        return large_tails._tail(BATCH, v, layer, (), ())[1]

    assert torch.equal(torch.func.vmap(call)(x[None])[0], x)
    monkeypatch.setattr(large_tails, "_as_operator", lambda: True)
    assert call(x) is x and int(layer.num_batches_tracked) == 0


def test_as_without_steps_it_has_to_pay(library, monkeypatch):
    monkeypatch.setattr(large_tails, "_group_norm_pays", lambda module, x: False)
    monkeypatch.setattr(large_batch_norm, "_norm_pays", lambda module, x: False)
    x = value(2, 4, 3, 5)
    norms = (GROUPS, nn.GroupNorm(2, 4)), (BATCH, nn.BatchNorm2d(4)), (CENTRED, nn.BatchNorm2d(4))
    for number, layer in norms:
        assert large_tails._tail(number, x, layer, (), ()) == (False, x)


def written(tmp_path, norm: str, behind: str, more: str = ""):
    path = tmp_path / "stepped.py"
    path.write_text(_WRITTEN.format(norm=norm, behind=behind, more=more))
    return path


_WRITTEN = """
import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = nn.ConvTranspose3d(3, 4, 3)
        self.norm = {norm}
        self.act = nn.LeakyReLU(0.2)
        self.gain = nn.Parameter(torch.randn(4, 1, 1, 1)){more}

    def forward(self, x):
        y = self.norm(self.up(x))
        {behind}


def get_inputs():
    return [torch.rand(2, 3, 3, 4, 5)]


def get_init_inputs():
    return []
"""
NORMS = ["nn.GroupNorm(2, 4)", "nn.BatchNorm3d(4)", "nn.InstanceNorm3d(4, affine=True)"]


BEHIND = [
    ("return self.act(y) * 2", 2),
    ("return F.relu(y, inplace=True)", 1),
    ("return torch.tanh(y * 0.5 + 1)", 3),
    ("return torch.sigmoid(y) * y", 1),  # branches
    ("return F.relu(y) * self.gain", 1),  # the operand's step is PyTorch's
    ("return F.gelu(y) + x.sum()", 1),
    ("return F.relu(y.view(y.shape[0], 4, -1))", 1),
    ("return y * self.gain", 0),
    ("return y.cumsum(1)", 0),
    ("return torch.relu(y), y", 0),  # read twice
    ("return torch.sigmoid(y) * y * self.gain", 1),
]
_EACH = [(norm, *case) for norm in NORMS for case in BEHIND]


@pytest.mark.parametrize("case", swept(_EACH, range(0, len(_EACH), 2)), ids=str)
def test_what_is_a_tail(tmp_path, case):
    """A norm that has steps without operands behind it; else it is a library's of its own."""
    norm, behind, steps = case
    path = written(tmp_path, norm, behind)
    program = program_of(path)
    entry, name = ("kBatchNorm", "batch") if "Batch" in norm else ("kGroupNorm", "group")
    assert [(t.entry, len(t.steps), t.vectors) for t in program.training.tails] == (
        [(entry, steps, [])] if steps else []
    )
    assert program.norms == (frozenset() if steps else {f"{name}_norm"})


@pytest.mark.parametrize("norm", NORMS)
def test_a_solution_asks_for_it(tmp_path, norm):
    path = written(tmp_path, norm, "return self.act(y) * 2")
    name = "batch" if "Batch" in norm else "group"
    text = generated(path)
    act = r"\(\(self\.act, 'LeakyReLU\(negative_slope=0\.2\)'\),\)"
    assert re.search(rf"done, \w+ = _tail\(0, \w+, self\.norm, \(\), {act}\)", text)
    depth = 4 if name == "batch" else 3  # below what eval mode runs in the convolution's kernel
    assert re.search(rf"\n{'    ' * depth}\w+ = self\.norm\(\w+\)\n", text)
    assert f"_large_{name}_norm(" not in text and f"{name.upper()}_NORM_CUDA_SOURCE" not in text
    assert "TCONV_NORM_TAILS" not in text and "StepsBehind" in text
    found = static_rules.findings(text, "float32")
    assert found.errors == found.warnings == []
    said = " ".join(line.text for line in explained(program_of(path)))
    assert "-> LeakyReLU -> mul where the tensor is large" in said
    assert ("is large, in training mode" in said) == (name == "batch")


def test_pytorchs_gradients_come_without_it(tmp_path):
    text = generated(written(tmp_path, NORMS[1], "return F.relu(y)"), own_gradients=False)
    assert "_tail(" not in text and "TAIL_CUDA_SOURCE" not in text
    assert re.search(r"\w+ = self\.norm\(\w+\)\n", text)


def test_two_norms_of_which_one_has_steps(tmp_path):
    """Each has its library; where a tail's kernels do not run, the other one serves its norm."""
    more = "\n        self.last = nn.BatchNorm3d(4)"
    path = written(tmp_path, NORMS[1], "return self.last(F.relu(y))", more)
    text = generated(path)
    assert re.search(r"= _tail\(0, \w+, self\.norm, \(\), \(\)\)", text)
    assert re.search(r"_large_batch_norm\(self\.last, \w+\)", text)
    assert re.search(r"    \w+ = _large_batch_norm\(self\.norm, \w+\)", text)


def test_other_tails_come_without_norms():
    text = generated(REFERENCES / "normed_volumes.py")
    assert "StepsBehind" not in text and "group_norm_plane_moments" not in text
