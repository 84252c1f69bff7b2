"""Chains whose gradients are formed from their results, as PyTorch forms them: forward keeps the
result, and backward computes no convolution again.
"""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from generator import ops
from generator.kernels import sources
from generator.program import read_program
from generator.step_table import Step
from tests.solution_tools import REFERENCES

KEEPING = {"relu", "tanh", "sigmoid", "exp", "sqrt", "rsqrt", "reciprocal"}
_CALLS = {name: getattr(torch, name) for name in KEEPING}


def test_what_pytorch_keeps_the_result_of_is_kept():
    """Of an operator that keeps its input the result may be written over before backward; of these
    PyTorch refuses that, too.
    """
    made = {record.name: record.make() for record in ops.RECORDS if record.name in KEEPING}
    assert {name for name, step in made.items() if step.keeps_result} == KEEPING
    for name, call in _CALLS.items():
        x = torch.full((3,), 0.5, requires_grad=True)
        y = call(x)
        y.mul_(2)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            y.sum().backward()
        assert not reads(made[name], "before") and reads(made[name], "after"), name


def reads(step: Step, name: str) -> bool:
    return name in step.gradient


CHAINS = {
    "x.tanh()": True,
    "(x * 2 - self.scale).tanh()": True,
    "(x * self.scale).tanh()": False,  # the scale's gradient reads what is scaled
    "x.tanh() * 2": False,
    "x.relu().exp()": False,
    "torch.nn.functional.leaky_relu(x)": False,
    "x.clamp(min=0)": False,
    "x + self.scale": False,
}
_REFERENCE = """import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.ConvTranspose2d(4, 6, 3)
        self.scale = nn.Parameter(torch.randn(6, 1, 1))

    def forward(self, x):
        x = self.conv(x)
        return {chain}


def get_inputs():
    return [torch.randn(2, 4, 5, 6)]


def get_init_inputs():
    return []
"""


@pytest.mark.parametrize("chain", CHAINS)
def test_chains(tmp_path, chain):
    path = tmp_path / "chain.py"
    path.write_text(_REFERENCE.format(chain=chain))
    kernels = sources(read_program(path))
    (kernel,) = kernels.all
    assert kernel.keeps_result == CHAINS[chain]
    assert kernels.constants["_KEEPS_RESULT"] == str(CHAINS[chain])
    forward = kernels.gradient_sources["GRADIENT_CUDA_SOURCE"].split("static TCONV_HD Acc value")[1]
    made_of_value = "v = " in forward.split("const Acc v0 = v;")[0]
    assert made_of_value != CHAINS[chain]


@pytest.fixture(params=["shared_weights", "two_heads"])
def pair(request, shelf):
    """Models with one kernel that keeps its result, and with others that do not."""
    kernels = sources(read_program(REFERENCES / f"{request.param}.py"))
    assert any(kernel.keeps_result for kernel in kernels.all) and kernels.chained
    solution = shelf[request.param]
    models = [model.double() for model in solution.pair()]
    inputs = [x.double() for x in solution.reference["get_inputs"]()]
    return models, inputs


def _step(model, inputs) -> list:
    """Gradients of a step."""
    leaves = [x.clone().requires_grad_() for x in inputs]
    model.zero_grad()
    outputs = torch.utils._pytree.tree_leaves(model(*leaves))
    sum(out.square().mean() + out.sum() for out in outputs).backward()
    return [leaf.grad.clone() for leaf in (*leaves, *model.parameters())]


def _close(found, exact) -> None:
    for got, wanted in zip(found, exact, strict=True):
        torch.testing.assert_close(got, wanted, rtol=1e-9, atol=1e-10)


def test_gradients(pair):
    (model, new), inputs = pair
    exact = _step(model, inputs)
    _close(_step(new, inputs), exact)
    _close(_step(torch.compile(new, backend="aot_eager"), inputs), exact)
    strided = [x.to(memory_format=torch.channels_last) for x in inputs]
    _close(_step(new, strided), exact)


def test_gradients_of_gradients(pair):
    (model, new), inputs = pair
    found = []
    for of in (model, new):
        leaves = [x.clone().requires_grad_() for x in inputs]
        outputs = torch.utils._pytree.tree_leaves(of(*leaves))
        loss = sum(out.sin().sum() for out in outputs)
        first = torch.autograd.grad(loss, [*leaves, *of.parameters()], create_graph=True)
        total = sum(grad.square().sum() for grad in first)
        found.append(torch.autograd.grad(total, [*leaves, *of.parameters()], allow_unused=True))
    _close(found[1], found[0])


def test_gradients_by_a_transform(pair):
    (model, new), inputs = pair

    def loss(of):
        def run(parameters, *given):
            outputs = torch.func.functional_call(of, parameters, given)
            return sum(out.sin().sum() for out in torch.utils._pytree.tree_leaves(outputs))

        return torch.func.grad(run)(dict(of.named_parameters()), *inputs)

    exact, found = loss(model), loss(new)
    _close(found.values(), exact.values())


def test_no_convolution_is_computed_again(shelf):
    """By its FLOPs a step of a convolution and tanh is PyTorch's."""
    solution = shelf["dcgan_generator"].solution
    names = [name for name in solution if name.startswith("_KEEPS_RESULT") and solution[name]]
    suffix = names[0].removeprefix("_KEEPS_RESULT")
    (step,) = solution[f"_CHAIN{suffix}"]
    assert type(step).__name__ == "_Tanh"
    x, weight = torch.randn(2, 4, 5, 6), torch.randn(4, 3, 4, 4)
    flops = []
    for run in (
        lambda *given: solution[f"_operator{suffix}"](*given, None, 2, 1, 0, 1, 1),
        lambda *given: torch.nn.functional.conv_transpose2d(*given, None, 2, 1).tanh(),
    ):
        leaves = [t.clone().requires_grad_() for t in (x, weight)]
        with FlopCounterMode(display=False) as counter:
            run(*leaves).sum().backward()
        flops.append(counter.get_total_flops())
    assert flops[0] == flops[1] > 0


def test_a_result_written_over_is_told(shelf):
    """As by PyTorch; no wrong gradient."""
    for of in shelf["vae_decoder"].pair():
        x = of_inputs(shelf["vae_decoder"])
        y = of(x)
        y.mul_(2)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            y.sum().backward()


def of_inputs(entry) -> torch.Tensor:
    (x,) = entry.reference["get_inputs"]()
    return x.requires_grad_()
