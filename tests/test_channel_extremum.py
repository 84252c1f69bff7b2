"""Minima and maxima over channels behind a convolution: which the generator takes along, what a
solution asks for, and when PyTorch reduces.
"""

import pytest
import torch

from generator import static_rules
from generator.explain import explained
from generator.extrema import extrema
from generator.runtime import channel_extremum
from tests.solution_tools import REFERENCES, generated, program_of
from tests.sweeps import swept

EXTREMA = REFERENCES / "channel_extrema.py"
CALL = "_channel_extremum(\n"
WRITTEN = """
import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = nn.ConvTranspose2d(3, 40, 3)
        self.few = nn.ConvTranspose2d(3, 32, 3)
        self.norm = nn.GroupNorm(2, 40)
        self.volumes = nn.ConvTranspose3d(3, 40, 3)

    def forward(self, x):
        {lines}


def get_inputs():
    return [torch.rand(2, 3, 5, 6)]


def get_init_inputs():
    return []
"""


def written(tmp_path, *lines: str):
    path = tmp_path / "written.py"
    path.write_text(WRITTEN.format(lines="\n        ".join(lines)))
    return path


TAKEN = [
    ("torch.min(y, dim=1, keepdim=True)[0]", "least", 1, True),
    ("torch.min(y, 1).values", "least", 1, False),
    ("y.max(-3)[0]", "most", -3, False),
    ("torch.amax(y, 1, keepdim=True)", "most", [1], True),
    ("y.amin(dim=(-3,))", "least", [-3], False),
    ("torch.amin(y, keepdim=False, dim=[1])", "least", [1], False),
]
OTHERS = [
    ("y = self.up(x)", "return torch.min(y, dim=1)[1]"),
    ("y = self.up(x)", "least, where = torch.min(y, dim=1)", "return least + where"),
    ("y = self.up(x)", "return torch.min(y, dim=2)[0]"),
    ("y = self.up(x)", "return torch.min(y, y.neg())"),
    ("y = self.up(x)", "return torch.amax(y, (1, 2))"),
    ("y = self.up(x)", "return torch.amin(y)"),
    ("y = self.up(x)", "return y.amax(1) + y.mean(1)"),
    ("y = self.up(x)", "return y.amax(1), y"),
    ("y = self.up(x)", "return torch.minimum(y.amax(1), y.amin(1))"),
    ("y = self.norm(self.up(x))", "return y.amax(1)"),
    ("y = self.up(x) + torch.ones(2, 40, 7, 8)", "return y.amax(1)"),
    ("y = self.volumes(x[:, :, None])", "return y.amax(1)"),
    ("y = self.up(x)", "with torch.autocast('cpu', torch.bfloat16):", "    return y.amax(1)"),
]


@pytest.mark.parametrize(("reducing", "kind", "dim", "keepdim"), swept(TAKEN, (0, 4), names=4))
def test_taken_along(tmp_path, reducing, kind, dim, keepdim):
    path = written(tmp_path, "y = torch.relu(self.up(x))", f"return {reducing} * 2")
    (found,) = extrema(program_of(path).training).values()
    assert found.kind == kind and found.arguments["keepdim"] is keepdim
    assert found.arguments["dim"] == dim and [s.kind for s in found.fused.steps] == ["relu"]
    text = generated(path)  # which proves that it computes the same
    assert text.count(CALL) == 1 and "run_extremum" in text and "store_extrema" in text


@pytest.mark.parametrize("lines", swept(OTHERS, (0, 1, 2, 6, 7)), ids=" ".join)
def test_others_stay_as_they_are(tmp_path, lines):
    path = written(tmp_path, *lines)
    program = program_of(path)
    assert not program.reduces and extrema(program.training) == {}
    text = generated(path)
    assert "_channel_extremum" not in text and "extremum" not in text.lower()


OTHER_CALLS = [
    *("self.norm(self.up(x))", "self.few(x)", "self.volumes(x[:, :, None])"),
    *("self.up(x) + torch.ones(2, 40, 7, 8)", "(lambda v: v * torch.sigmoid(v))(self.up(x))"),
]


@pytest.mark.parametrize("other", swept(OTHER_CALLS, (1, 4)))
def test_where_another_call_of_ours_is_of_another_kind(tmp_path, other):
    """The kernels of pattern 1 alone have the epilogue, where there is no other beside it."""
    path = written(tmp_path, f"y = {other}", "return self.up(x).amax(1), y")
    assert not program_of(path).reduces and "_channel_extremum" not in generated(path)


def test_what_a_solution_says():
    text = generated(EXTREMA)
    assert text.count(CALL) == 2
    assert "'least',\n            (torch.ops.aten.min.dim, 1, True)" in text
    assert "'most',\n            (torch.ops.aten.amax.default, [-3], False)" in text
    assert "it forms a minimum or maximum over channels" in text
    found = static_rules.findings(text, "float32")
    assert found.errors == found.warnings == []
    said = [line for line in explained(program_of(EXTREMA)) if "forms it" in line.text]
    assert len(said) == 2 and all(line.is_left for line in said)
    assert "the kernel of ConvTranspose2d -> mul forms it, and backward" in said[0].text


class Kernels:
    """In the place of the solution's operators: what they were called with."""

    def __init__(self, monkeypatch, served: bool = True):
        self.calls, self.served = [], served
        monkeypatch.setattr(channel_extremum, "_EXTREMUM_DEVICES", ("cpu",))
        monkeypatch.setattr(channel_extremum, "_declining_operator", self._named)

    def _named(self, namespace, name, count_flops):
        self.count = count_flops
        return lambda *arguments: self._run(name, *arguments)

    def _run(self, name, x, weight, bias, *numbers):
        self.calls.append((name, x.dtype, numbers))
        with torch.autocast("cpu", enabled=False):
            y = torch.conv_transpose2d(x, weight, bias)
        least = numbers[10] == 1
        reduced = (torch.amin if least else torch.amax)(y, 1, keepdim=True)
        return reduced if self.served else x.new_empty((0,))


def operator(x, weight, bias, *numbers):
    return torch.conv_transpose2d(x, weight, bias)


CONV = (1, 1), (0, 0), (0, 0), (1, 1), 1
MIN, MAX = (torch.ops.aten.min.dim, 1), (torch.ops.aten.amax.default, [-3])


def tensors(**options):
    generator = torch.Generator().manual_seed(0)
    sizes = (2, 3, 5, 6), (3, 40, 3, 3), (40,)
    return [torch.randn(size, generator=generator, **options) for size in sizes]


def asked(kind, reduction, keepdim, *arguments, broadcasts=False):
    call = channel_extremum._channel_extremum
    return call(operator, "_1", kind, (*reduction, keepdim), broadcasts, *arguments)


@pytest.mark.parametrize("keepdim", [False, True])
@pytest.mark.parametrize(("kind", "reduction"), [("least", MIN), ("most", MAX)])
@pytest.mark.parametrize("served", [True, False])
def test_as_the_reference(monkeypatch, served, kind, reduction, keepdim):
    kernels = Kernels(monkeypatch, served)
    x, weight, bias = tensors()
    found = asked(kind, reduction, keepdim, x, weight, bias, *CONV, bias)
    wanted = reduction[0](operator(x, weight, bias), *reduction[1:], keepdim)
    assert torch.equal(found, wanted if kind == "most" else wanted[0])
    ((name, _, numbers),) = kernels.calls
    assert name == "extremum_1" and numbers[8] == 1 and numbers[11] is bias
    assert numbers[10] == {"least": 1, "most": 2}[kind] and len(numbers) == 12


def test_who_is_not_asked(monkeypatch):
    kernels = Kernels(monkeypatch)
    x, weight, bias = tensors()
    one = asked("most", MAX, True, x[0], weight, bias, *CONV)
    assert one.shape == (1, 7, 8)  # an image without a batch
    assert asked("most", MAX, True, x[0], weight, bias, *CONV, broadcasts=True).dim() == 4
    mapped = torch.func.vmap(lambda x: asked("most", MAX, True, x[None], weight, bias, *CONV))(x)
    assert mapped.shape == (2, 1, 1, 7, 8)
    monkeypatch.setattr(channel_extremum, "_as_operator", lambda: True)
    asked("most", MAX, True, x, weight, bias, *CONV)
    monkeypatch.setattr(channel_extremum, "_as_operator", lambda: False)
    monkeypatch.setattr(channel_extremum, "_EXTREMUM_DEVICES", ("cuda",))
    asked("most", MAX, True, x, weight, bias, *CONV)
    assert kernels.calls == []


@pytest.mark.parametrize("again", [False, True], ids=["gradients", "of gradients"])
@pytest.mark.parametrize("keepdim", [False, True])
@pytest.mark.parametrize(("kind", "reduction"), [("least", MIN), ("most", MAX)])
def test_gradients(monkeypatch, kind, reduction, keepdim, again):
    """The convolution's and PyTorch's operator's, of whichever operands want one; x is a function
    of the bias, which comes twice.
    """
    kernels = Kernels(monkeypatch)
    given = [tensor.double() for tensor in tensors()]

    def found(call, wanted):
        x, weight, bias = (t.clone().requires_grad_(i in wanted) for i, t in enumerate(given))
        leaves = [t for t in (x, weight, bias) if t.requires_grad]
        y = call(x * bias.square().mean(), weight, bias)
        grads = torch.autograd.grad(y.square().sum(), leaves, create_graph=again)
        if again:
            squares = sum(grad.square().sum() for grad in grads)
            grads = torch.autograd.grad(squares, leaves)
        return y, *grads

    def ours(x, weight, bias):
        return asked(kind, reduction, keepdim, x, weight, bias, *CONV)

    def theirs(x, weight, bias):
        reduced = reduction[0](operator(x, weight, bias), *reduction[1:], keepdim)
        return reduced if kind == "most" else reduced[0]

    for count, wanted in enumerate([(0,), (1,), (2,), (0, 1, 2)], 1):
        for got, exact in zip(found(ours, wanted), found(theirs, wanted), strict=True):
            torch.testing.assert_close(got, exact, rtol=1e-12, atol=1e-12)
        assert len(kernels.calls) == count
    with torch.no_grad():
        assert not ours(*given).requires_grad


def test_autocast_asks_in_the_low_precision(monkeypatch):
    kernels = Kernels(monkeypatch)
    x, weight, bias = tensors()
    with torch.autocast("cpu", torch.bfloat16):
        low = asked("least", MIN, True, x, weight, bias, *CONV)
        wide = asked("least", MIN, True, x, weight, bias, *CONV, bias)  # an operand in fp32
    assert [dtype for _, dtype, _ in kernels.calls] == [torch.bfloat16, torch.float32]
    assert low.dtype == torch.bfloat16 and wide.dtype == torch.float32
    weight.requires_grad_()
    with torch.autocast("cpu", torch.bfloat16):
        assert asked("least", MIN, True, x, weight, bias, *CONV).requires_grad
    assert len(kernels.calls) == 2  # what backward computes again would be in fp32


def test_flops_are_the_convolutions(monkeypatch):
    count = channel_extremum._count_extremum_flops
    shapes = (2, 3, 5, 6), (3, 40, 3, 3)
    assert count(*shapes, out_shape=(2, 1, 7, 8)) == 2 * 2 * 30 * 3 * 40 * 9
    assert count(*shapes, out_shape=(0,)) == 0


def test_fake_tensors_are_declined(monkeypatch):
    """Their device is none of ours: PyTorch's operators make the shape."""
    with torch._subclasses.FakeTensorMode() as mode:
        x, weight, bias = (mode.from_tensor(t) for t in tensors())
        assert asked("least", MIN, False, x, weight, bias, *CONV).shape == (2, 7, 8)
