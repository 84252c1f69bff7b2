"""Operands of the output's shape on a GPU: random layers of one to three dimensions by every
kernel, gradients, models of them.
"""

import pytest
import torch

from tests.gpu_tools import KERNELS, LOW, forced, tf32
from tests.tensor_operand_tools import (
    MADE,
    WHOLE_VOLUMES,
    Given,
    called,
    given,
    image,
    truth,
    wrong,
)

pytestmark = pytest.mark.gpu

LAYERS = 60
MAKERS = {
    "rows": MADE[1],
    "images": lambda seed: image(seed, (2, 8, 40, 64), wide=70),
    "volumes": MADE[3],
    "whole volumes": WHOLE_VOLUMES,
}


@pytest.fixture(scope="module")
def solution(shelf) -> dict:
    return shelf["residual_blocks"].solution


def results(solution: dict, of: Given) -> list:
    y = called(solution, of)
    return [y, *torch.autograd.grad(y, of.leaves, of.grad)]


@pytest.mark.parametrize("name", MAKERS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, *LOW], ids=str)
def test_random_layers(solution, dtype, name):
    told, computed = [], 0
    for seed in range(LAYERS):
        of = given(MAKERS[name](seed), dtype, "cuda")
        if of is None:
            continue
        with tf32(True):
            found = results(solution, of)
        told += [f"{of.layer}: {what}" for what in wrong(of, found)]
        computed += 1
    assert told == [] and computed > LAYERS / 2


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("dtype", [torch.float32, *LOW], ids=str)
def test_kernels(solution, dtype, kernel):
    """Each forced, forward; in fp32 also where containers cannot hold the input."""
    told, computed = [], 0
    for seed in range(LAYERS):
        of = given(MAKERS["images"](seed), dtype, "cuda")
        if of is None:
            continue
        if dtype == torch.float32 and seed % 4 == 0:
            of.operands[0] = (of.operands[0].detach() * 1e6).requires_grad_()
        try:
            with forced(kernel), tf32(True), torch.no_grad():
                y = called(solution, of)
        except RuntimeError as error:
            assert "forced by TCONV_KERNEL" in str(error) and kernel not in ("plain", "auto")
            continue
        told += [f"{of.layer}: {what}" for what in wrong(of, [y, *[None] * len(of.leaves)])]
        computed += 1
    assert told == [] and computed >= LAYERS / 4


def test_strict_fp32(solution):
    """TF32 forbidden: an fp32 answer."""
    for seed in range(LAYERS):
        of = given(MAKERS["images"](seed), torch.float32, "cuda")
        if of is not None:
            with tf32(False), torch.no_grad():
                y = called(solution, of)
            exact = truth(of)[0].detach()
            error = (y.double() - exact).abs().max() / exact.abs().max()
            assert float(error) < 1e-5, of.layer


def test_the_same_bits_again(solution):
    of = given(WHOLE_VOLUMES(6), torch.float32, "cuda")
    first, second = (results(solution, of) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def test_where_no_gradient_is_wanted(solution):
    """Operands' gradients are written where they are wanted alone."""
    of = given(MAKERS["images"](12), torch.float32, "cuda")
    of.operands[3].requires_grad_(False)
    y = called(solution, of)
    leaves = [t for t in of.leaves if t.requires_grad]
    found = list(torch.autograd.grad(y, leaves, of.grad))
    found.insert(of.names.index("gate"), None)
    of.operands[3].requires_grad_(True)
    assert wrong(of, [y, *found]) == []


@pytest.mark.parametrize("name", ["residual_blocks", "residual_sums", "residual_operands"])
def test_models(shelf, name):
    """What the reference computes on the GPU, with its gradients; in fp64 to 1e-10 of it."""
    reference = shelf.reference(name)
    torch.manual_seed(0)
    model = reference["Model"]().double().cuda()
    new = shelf[name].solution["ModelNew"]().double().cuda()
    new.load_state_dict(model.state_dict())
    found = []
    for module in (model, new):
        torch.manual_seed(1)
        inputs = [x.double().cuda().requires_grad_() for x in reference["get_inputs"]()]
        out = module(*inputs)
        out = out if isinstance(out, tuple) else (out,)
        leaves = [*inputs, *module.parameters()]
        grads = torch.autograd.grad(sum(y.square().sum() for y in out), leaves)
        found.append([*out, *grads])
    torch.testing.assert_close(*found, rtol=1e-9, atol=1e-10)
