"""nn.BatchNorm2d by kernels of ours: what they are called with, and when PyTorch runs it."""

import copy
import re

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from generator.explain import explained
from generator.runtime import large_batch_norm
from tests.solution_tools import REFERENCES, generated, program_of


class Normalised:
    """PyTorch's own in the place of the operator, which counts its calls."""

    def __init__(self):
        self.calls = 0

    def __call__(self, x, weight, bias, mean, var, counted, momentum, eps, softmax):
        self.calls += 1
        self.softmax = softmax
        factor = momentum if counted is None else 1.0 / float(counted)
        y = F.batch_norm(x, mean, var, weight, bias, True, factor, eps)
        return torch.softmax(y, 3) if softmax else y


@pytest.fixture
def kernels(monkeypatch):
    made = Normalised()
    monkeypatch.setattr(large_batch_norm, "_batch_norm_kernels", lambda: made)
    return made


@pytest.fixture
def pays(monkeypatch):
    monkeypatch.setattr(large_batch_norm, "_norm_pays", lambda module, x: True)


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"momentum": None},
        {"affine": False, "momentum": 0.3},
        {"track_running_stats": False},
        {"track_running_stats": False, "momentum": None},
    ],
    ids=str,
)
@pytest.mark.parametrize("kind", [nn.BatchNorm2d, nn.BatchNorm3d])
def test_as_the_module(kernels, pays, arguments, kind):
    torch.manual_seed(0)
    ours = kind(3, **arguments)
    theirs = copy.deepcopy(ours)
    with torch.no_grad():
        for _ in range(3):
            x = torch.randn((2, 3, 4, 5) if kind is nn.BatchNorm2d else (2, 3, 4, 5, 6))
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


@pytest.mark.parametrize("wanted", ["x", "weight", "nothing"])
def test_gradients_are_pytorchs(kernels, pays, wanted):
    norm = nn.BatchNorm2d(3).requires_grad_(wanted == "weight")
    x = torch.randn(2, 3, 4, 5).requires_grad_(wanted == "x")
    y = large_batch_norm._large_batch_norm(norm, x)
    assert kernels.calls == (wanted == "nothing") == (not y.requires_grad)


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
    assert not asked(nn.BatchNorm3d(64), (8, 64, 4, 32, 32))  # few values
    assert not asked(nn.BatchNorm2d(63))  # whose error is PyTorch's
    assert not asked(nn.BatchNorm2d(8), (1, 8, 256, 512))  # few values
    assert not asked(nn.BatchNorm2d(64), (8, 64, 64, 64))  # few of a channel
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
    assert any("in training mode where no gradient" in line.text for line in explained(program))
    other = generated(REFERENCES / "dcgan_block.py")
    assert "BatchNorm2d" in other and "_large_batch_norm" not in other


def test_a_solution_calls_it_of_volumes(tmp_path):
    path = tmp_path / "reference.py"
    text = _READ_TWICE.format(more="").replace("2d", "3d").replace("5, 6)]", "5, 6, 7)]")
    path.write_text(text)
    text = generated(path)
    assert re.search(r"_large_batch_norm\(self\.norm, \w+(, self\.soft)?\)", text)
    said = [line.text for line in explained(program_of(path))]
    assert any("in training mode where no gradient" in line for line in said)


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
    assert "_large_batch_norm" not in text and "in training mode where no" not in text


def test_softmax_that_begins_a_tail_is_the_tails(tmp_path):
    path = tmp_path / "reference.py"
    text = _READ_TWICE.format(more=".sigmoid()").replace("2d", "3d").replace("5, 6)]", "5, 6, 7)]")
    path.write_text(text.replace("dim=-1", "dim=1"))
    text = generated(path)
    assert re.search(r"_large_batch_norm\(self\.norm, \w+\)", text)
    assert re.search(r"done, \w+ = _tail\(0, \w+, self\.soft, \(\), \(\)\)", text)
