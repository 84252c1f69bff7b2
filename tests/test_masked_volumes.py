"""Chains whose gradient asks one condition of the convolution's output: which they are, what is
generated for them, and their gradients on a CPU, which keeps no mask.
"""

import inspect

import pytest
import torch

from generator import ops
from generator.kernels import sources
from generator.program import read_program
from generator.step_table import number
from tests.solution_tools import REFERENCES

_REFERENCE = (REFERENCES / "clamped_volumes.py").read_text()
_CHAIN = "torch.clamp(self.up(x), min=self.min_value) / self.divisor"
CHAINS = {
    _CHAIN: True,
    "self.up(x).clamp(-1, 1)": True,
    "torch.nn.functional.hardtanh(self.up(x)) - 1": True,
    "torch.nn.functional.leaky_relu(self.up(x), 0.2) * 2": True,
    "-torch.nn.functional.hardsigmoid(self.up(x))": True,
    "torch.nn.functional.threshold(self.up(x), 0.1, 20.0)": True,
    "torch.nn.functional.leaky_relu(self.up(x), 0.2).tanh()": False,  # keeps the result
    "torch.nn.functional.gelu(self.up(x).clamp(min=0))": False,
    "self.up(x) * 2": False,
    "self.up(x).clamp(min=0) + self.up.bias.view(-1, 1, 1, 1)": False,
    "(self.up(x) / 2).clamp(min=0)": False,
}


@pytest.fixture
def kernels_of(tmp_path):
    def made(chain: str, *changes: tuple[str, str]):
        text = _REFERENCE
        for old, new in ((_CHAIN, chain), *changes):
            assert old in text
            text = text.replace(old, new)
        (tmp_path / "reference.py").write_text(text)
        return sources(read_program(tmp_path / "reference.py"))

    return made


@pytest.mark.parametrize("chain", CHAINS)
def test_chains(kernels_of, chain):
    kernels = kernels_of(chain)
    assert kernels.masked == CHAINS[chain]
    reads = "reads_mask" in kernels.gradient_sources["GRADIENT_OPERATOR_SOURCE"]
    assert all(kernels.masked == ("mask" in kernels.sources[name]) == reads for name in SOURCES)
    if kernels.masked:
        assert kernels.constants["_RESULT_CHAINS"] == "{0: 1}"


SOURCES = "CUDA_SOURCE", "CPU_SOURCE", "OPERATOR_SOURCE"
OTHERS = {
    "columns side by side": ("stride=2", "stride=1"),
    "rows of an even number": ("padding=1)", "padding=1, output_padding=1)"),
    "two dimensions": ("ConvTranspose3d", "ConvTranspose2d"),
    "channels that are packed otherwise": ("out_channels=64", "out_channels=60"),
}


@pytest.mark.parametrize("name", OTHERS)
def test_layers_whose_kernels_leave_none(kernels_of, name):
    changes = [OTHERS[name]]
    if name == "two dimensions":
        changes.append(("randn(2, 16, 2, 3, 9)", "randn(2, 16, 3, 9)"))
    assert not kernels_of(_CHAIN, *changes).masked


def test_a_condition_is_what_the_gradient_begins_with():
    """And all that it asks: steps with their arguments' defaults, or with some of their kind."""
    asked = set()
    for record in ops.RECORDS:
        if not hasattr(record, "module"):
            continue
        parameters = inspect.signature(record.make).parameters.values()
        needed = [0.5 for p in parameters if p.default is inspect.Parameter.empty]
        step = record.make(*(needed or ([0.5] if record.name == "clamp" else [])))
        if step.condition:
            asked.add(record.name)
            assert step.gradient.startswith(f"grad = {step.condition} ? "), step
            assert "before" not in step.gradient.removeprefix(f"grad = {step.condition}")
            assert "after" not in step.gradient
    bounds = {"clamp", "clamp_min", "clamp_max", "hardtanh", "relu6"}
    assert asked == bounds | {"leaky_relu", "hardsigmoid", "threshold"}
    assert number(0.5) in ops_clamp().condition


def ops_clamp():
    (record,) = (record for record in ops.RECORDS if record.name == "clamp")
    return record.make(0.5, 1.0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_gradients_on_a_cpu(shelf, dtype):
    model, new = (m.to(dtype) for m in shelf["clamped_volumes"].pair(seed=3))
    new.load_state_dict(model.state_dict())
    (x,) = shelf["clamped_volumes"].reference["get_inputs"]()
    found = []
    for of in (model, new):
        leaf = x.to(dtype, copy=True).requires_grad_()
        loss = of(leaf).square().sum()
        found.append(torch.autograd.grad(loss, [leaf, *of.parameters()]))
    for got, wanted in zip(found[1], found[0], strict=True):
        torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-4 * float(wanted.abs().max()))


def test_through_autocast_and_a_compiler(shelf):
    """Ways that keep no mask."""
    model, new = shelf["clamped_volumes"].pair(seed=3)
    (x,) = shelf["clamped_volumes"].reference["get_inputs"]()
    wanted = torch.autograd.grad(model(x).square().sum(), list(model.parameters()))
    compiled = torch.compile(new, backend="aot_eager")
    found = torch.autograd.grad(compiled(x).square().sum(), list(new.parameters()))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = new(x).float().square().sum()
    low = torch.autograd.grad(loss, list(new.parameters()))
    for exact, got, near in zip(wanted, found, low, strict=True):
        torch.testing.assert_close(got, exact, rtol=1e-4, atol=1e-3)
        assert float((near - exact).norm()) <= 0.03 * float(exact.norm())
