"""Tails by kernels of ours: what they are called with, when PyTorch runs them, and how a solution's
forward asks.
"""

import re
import types

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from generator import static_rules
from generator.explain import explained
from generator.runtime import large_tails
from tests.solution_tools import REFERENCES, generated, program_of

NORMED = REFERENCES / "normed_volumes.py"
KINDS = "kLayerNorm", "kSoftmax", "kAveragePool", "kMaxPool", "kPlaneSoftmax"
ROWS, SOFTMAX, AVERAGE, LARGEST, PLANE = range(5)


class Library:
    """PyTorch's own in the place of the operators, which keep what they were called with."""

    def __init__(self):
        self.calls = []
        for name in ("layer_norm", "softmax", "plane_softmax", "pool"):
            setattr(self, name, types.SimpleNamespace(default=getattr(self, f"_{name}")))

    def _layer_norm(self, number, x, weight, bias, eps, row, *vectors):
        self.calls.append((number, vectors))
        rows = F.layer_norm(x.reshape(-1, row), (row,), weight, bias, eps)
        return rows.view(x.shape)

    def _softmax(self, number, x, *vectors):
        self.calls.append((number, vectors))
        return torch.softmax(x, 1)

    def _plane_softmax(self, number, x, *vectors):
        self.calls.append((number, vectors))
        return torch.softmax(x, 2)

    def _pool(self, number, x, *window_and_vectors):
        window, vectors = window_and_vectors[:3], window_and_vectors[3:]
        self.calls.append((number, vectors))
        pool = F.avg_pool3d if number == AVERAGE else F.max_pool3d
        return pool(x, window)


@pytest.fixture
def library(monkeypatch):
    made = Library()
    monkeypatch.setattr(large_tails, "_tail_library", lambda: made)
    monkeypatch.setattr(large_tails, "_TAILS", KINDS)
    return made


@pytest.fixture
def pays(monkeypatch):
    monkeypatch.setattr(large_tails, "_tail_pays", lambda x, vectors: True)


def volume(*shape):
    generator = torch.Generator().manual_seed(0)
    return torch.randn(shape or (2, 6, 5, 8, 12), generator=generator)


def drawn(layer):
    for parameter in layer.parameters():
        nn.init.normal_(parameter)
    return layer


@pytest.mark.parametrize(
    ("number", "layer"),
    [
        (ROWS, nn.LayerNorm(12, eps=0.1)),
        (ROWS, drawn(nn.LayerNorm((8, 12)))),
        (ROWS, drawn(nn.LayerNorm(12, bias=False))),
        (ROWS, nn.LayerNorm((5, 8, 12), elementwise_affine=False)),
        (SOFTMAX, nn.Softmax(1)),
        (SOFTMAX, nn.Softmax(-4)),
        (AVERAGE, nn.AvgPool3d(2)),
        (AVERAGE, nn.AvgPool3d((1, 3, 2), count_include_pad=False)),
        (LARGEST, nn.MaxPool3d(2)),
        (LARGEST, nn.MaxPool3d((5, 1, 4))),
    ],
    ids=str,
)
def test_as_the_layer(library, pays, number, layer):
    x, vectors = volume(), (torch.randn(6),)
    with torch.no_grad():
        ran, found = large_tails._tail(number, x, layer, vectors, ())
    assert ran and torch.allclose(found, layer(x), atol=1e-6)
    assert library.calls == [(number, vectors)]


@pytest.mark.parametrize(
    ("number", "layer"),
    [
        (AVERAGE, nn.AvgPool2d(2)),
        (AVERAGE, nn.AvgPool2d((1, 3))),
        (LARGEST, nn.MaxPool2d(2)),
        (LARGEST, nn.MaxPool2d((5, 4))),
    ],
    ids=str,
)
def test_pools_of_images(library, pays, number, layer):
    x = volume(2, 6, 9, 12)
    ran, found = large_tails._tail(number, x, layer, (), ())
    assert ran and torch.equal(found, layer(x)) and library.calls == [(number, ())]
    for other in (nn.MaxPool2d(2, stride=1), nn.MaxPool2d(3, padding=1), nn.MaxPool3d((1, 2, 2))):
        assert large_tails._tail(number, x, other, (), ()) == (False, x)


def test_softmax_as_a_function(library, pays):
    ran, found = large_tails._tail(SOFTMAX, volume(), None, (), ())
    assert ran and torch.equal(found, volume().softmax(1))


@pytest.mark.parametrize("layer", [None, nn.Softmax(2), nn.Softmax(-1)])
def test_softmax_over_positions(library, pays, layer):
    x = volume().flatten(2)
    ran, found = large_tails._tail(PLANE, x, layer, (), ())
    assert ran and torch.equal(found, x.softmax(2))
    for other, of in ((nn.Softmax(1), x), (layer, volume()), (nn.LogSoftmax(2), x)):
        assert large_tails._tail(PLANE, of, other, (), ()) == (False, of)


def hooked(layer):
    layer.register_forward_hook(lambda module, given, out: 2 * out)
    return layer


class Doubled(nn.LayerNorm):
    def forward(self, x):
        return 2 * super().forward(x)


@pytest.mark.parametrize(
    ("number", "layer"),
    [
        (ROWS, hooked(nn.LayerNorm(12))),
        (ROWS, Doubled(12)),
        (ROWS, nn.Identity()),
        (ROWS, nn.LayerNorm((6, 5, 8, 12))),  # a row holds all channels
        (ROWS, nn.LayerNorm(13)),  # whose error is PyTorch's
        (ROWS, nn.LayerNorm(12, dtype=torch.float64)),
        (SOFTMAX, nn.Softmax(2)),
        (SOFTMAX, nn.LogSoftmax(1)),
        (SOFTMAX, nn.Softmax()),
        (AVERAGE, nn.AvgPool3d(2, stride=1)),
        (AVERAGE, nn.AvgPool3d(2, padding=1)),
        (AVERAGE, nn.AvgPool3d(2, ceil_mode=True)),
        (AVERAGE, nn.AvgPool3d(2, divisor_override=3)),
        (AVERAGE, nn.AvgPool3d(6)),
        (AVERAGE, nn.AvgPool2d(2)),  # of a volume
        (LARGEST, nn.MaxPool3d(2, stride=(2, 2, 1))),
        (LARGEST, nn.MaxPool3d(2, padding=(0, 0, 1))),
        (LARGEST, nn.MaxPool3d(2, dilation=2)),
        (LARGEST, nn.MaxPool3d(2, ceil_mode=True)),
        (LARGEST, nn.MaxPool3d(2, return_indices=True)),
        (LARGEST, hooked(nn.MaxPool3d(2))),
    ],
    ids=str,
)
def test_other_layers_are_pytorchs(library, pays, number, layer):
    x = volume()
    with torch.no_grad():
        assert large_tails._tail(number, x, layer, (), ()) == (False, x)
    assert not library.calls


@pytest.mark.parametrize("row", [256, 1020, 1024, 1028])
def test_rows_that_fit(library, pays, row):
    """1024 values in vectors of 16 bytes; 256 where a row is no whole ones or lies elsewhere."""
    layer = nn.LayerNorm(row, elementwise_affine=False)

    def asked(x):
        return large_tails._tail(ROWS, x, layer, (), ())[0]

    assert asked(volume(1, 2, 3, row)) == (row <= 1024)
    shifted = volume(6 * row + 1)[1:].view(1, 2, 3, row)
    assert asked(shifted) == (row == 256)
    assert asked(volume(1, 2, 3, row).half()) == (row in (256, 1024))


def test_softmax_over_many_channels_or_few_values(library, pays):
    for shape, served in (((1, 256, 4, 8), True), ((1, 257, 4, 8), False), ((8, 4, 31), False)):
        assert large_tails._tail(SOFTMAX, volume(*shape), None, (), ())[0] is served


class LeakyReLU(nn.Module):
    """Another one than its text says."""

    def forward(self, x):
        return x

    def extra_repr(self):
        return "negative_slope=0.1"


@pytest.mark.parametrize("change", ["hook", "slope", "class", "name", "forward", None])
def test_layers_of_steps_are_as_they_were_read(library, pays, change):
    step = nn.LeakyReLU(0.1)
    was = repr(step)
    if change == "hook":
        hooked(step)
    if change == "slope":
        step.negative_slope = 0.2
    if change == "class":
        step = nn.ReLU()
    if change == "name":
        step = LeakyReLU()
        assert repr(step) == was
    if change == "forward":
        step.forward = F.relu
    assert large_tails._tail(SOFTMAX, volume(), None, (), ((step, was),))[0] is (change is None)


def test_compilers_and_transforms_see_pytorchs(library, pays, monkeypatch):
    def call(x):
        return large_tails._tail(SOFTMAX, x, None, (), ())[1]

    x = volume()
    assert torch.equal(torch.func.vmap(call)(x[None])[0], x)
    monkeypatch.setattr(large_tails, "_as_operator", lambda: True)
    assert call(x) is x and not library.calls


class OnCuda(torch.Tensor):
    """A tensor on no device that says so."""

    is_cuda = True
    device = torch.device("meta")


def asked(shape=(16, 16, 16, 32, 32), dtype=torch.float32, vector=None, change=lambda x: x) -> bool:
    x = change(torch.empty(shape, dtype=dtype, device="meta")).as_subclass(OnCuda)
    return large_tails._tail_pays(x, () if vector is None else (vector,))


def test_what_pays(monkeypatch):
    monkeypatch.setattr(large_tails, "_is_hopper", lambda device: True)
    monkeypatch.setattr(torch, "is_autocast_enabled", lambda kind: False)
    vector = torch.empty(16, device="meta")
    assert asked() and asked(dtype=torch.float16) and asked(dtype=torch.bfloat16)
    assert asked(vector=vector) and asked((256, 16, 1024))
    assert not asked(vector=vector.half()) and not asked(vector=torch.empty(16))
    assert not asked((15, 16, 16, 32, 32))  # few values
    assert not asked((1 << 7, 1 << 8, 1 << 16)) and not asked((1 << 11, 1 << 11))
    assert not asked(dtype=torch.float64) and not asked(change=lambda x: x.mT)
    monkeypatch.setattr(torch, "is_autocast_enabled", lambda kind: True)
    assert asked() and not asked(dtype=torch.float16)
    monkeypatch.setattr(large_tails, "_is_hopper", lambda device: False)
    assert not asked()


def test_a_solution_asks_for_each():
    text = generated(NORMED)
    asked = re.findall(r"done, (\w+) = _tail\((\d), (\w+), ([\w.]+), (.*)\)$", text, re.MULTILINE)
    gelu = "((self.gelu, \"GELU(approximate='none')\"),)"
    assert [(number, core, rest) for _, number, _, core, rest in asked] == [
        ("0", "self.norm", f"(), {gelu}"),
        ("1", "None", "(self.shift.reshape(-1),), ()"),
        ("2", "None", "(self.factor.reshape(-1),), ()"),
        ("3", "self.average", "(self.factor.reshape(-1),), ()"),
        ("4", "self.largest", "(), ()"),
        ("5", "self.softmax", "(), ()"),
    ]
    # What is read again keeps its name; what is not gives it to the result.
    names = [(result, x) for result, _, x, *_ in asked]
    assert names[0][0] != names[0][1] and names[1][0] == names[1][1] == names[0][1]
    kinds = "kLayerNorm", "kSoftmax", "kPlaneSoftmax", "kAveragePool", "kMaxPool", "kSoftmax"
    assert f"_TAILS = {kinds[:-1] + (kinds[-1],)!r}".replace(")", ",)") in text
    found = static_rules.findings(text, "float32")
    assert found.errors == found.warnings == []
    said = [line.text for line in explained(program_of(NORMED))]
    assert any("runs AvgPool3d -> mul -> silu where the tensor" in line for line in said)


def test_pytorchs_gradients_come_without_them():
    text = generated(NORMED, own_gradients=False)
    assert "_tail(" not in text and "TAIL_CUDA_SOURCE" not in text
    assert "a kernel of ours runs" not in text


WRITTEN = """
import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = nn.ConvTranspose2d(3, 4, 3)
        self.norm = nn.LayerNorm(7)

    def forward(self, x):
        y = self.up(x)
        p = torch.softmax(y, 1)
        {write}
        return p * y + self.norm(y)


def get_inputs():
    return [torch.rand(2, 3, 5, 5)]


def get_init_inputs():
    return []
"""


@pytest.mark.parametrize(
    ("write", "kinds"),
    [
        ("y = y + 1", ["kSoftmax", "kLayerNorm"]),
        ("y.add_(1)", ["kLayerNorm"]),
        ("y.mul_(2)", ["kLayerNorm"]),
    ],
)
def test_softmax_of_what_is_written_later_is_pytorchs(tmp_path, write, kinds):
    """Its gradient needs the result alone, a tail's what that is of."""
    path = tmp_path / "written.py"
    path.write_text(WRITTEN.format(write=write))
    assert [tail.entry for tail in program_of(path).training.tails] == kinds


def test_steps_end_at_what_is_read_twice_and_at_tensors(tmp_path):
    """And what stands between a tail's operators comes first."""
    path = tmp_path / "between.py"
    path.write_text(
        "import torch\nimport torch.nn as nn\n\n\nclass Model(nn.Module):\n"
        "    def __init__(self):\n        super().__init__()\n"
        "        self.up = nn.ConvTranspose2d(3, 4, 3)\n"
        "        self.gain = nn.Parameter(torch.randn(4, 1, 1))\n\n"
        "    def forward(self, x, skip):\n        done = self.up(x)\n"
        "        y = torch.softmax(done, 1)\n        other = torch.cumsum(skip, 1)\n"
        "        y = torch.tanh(y) + other\n        return y * torch.softmax(y, 1)\n\n\n"
        "def get_inputs():\n    return [torch.rand(2, 3, 5, 5), torch.rand(2, 4, 7, 7)]\n\n\n"
        "def get_init_inputs():\n    return []\n"
    )
    program = program_of(path)
    assert [len(tail.steps) for tail in program.training.tails] == [1, 0]
    text = generated(path)
    body = text[text.index("def forward(self, x, skip)") :]
    lines = [line.strip() for line in body.splitlines()]
    first = next(i for i, line in enumerate(lines) if "_tail(0" in line)
    assert "cumsum" in lines[first - 1] and "tanh" in lines[first + 3]
