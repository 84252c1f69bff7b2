"""The gradients of BatchNorm alone by the CUDA kernels, on the CPU, thread by thread."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from generator.runtime import large_batch_norm
from tests.batch_norm_tools import GRADIENT_CASES, NormCase, random_gradient_case
from tests.emulated_tools import needs_cuda_headers
from tests.sweeps import swept

pytestmark = needs_cuda_headers
# A warp for each plane, and a block, of several parts.
FORMS = [NormCase(2, 3, (6, 7)), NormCase(2, 3, (129, 131))]


@pytest.mark.parametrize("case", GRADIENT_CASES, ids=str)
def test_right(emulated_batch_norm, case):
    with emulated_batch_norm.on(detect_races=True):
        case.check_gradients(emulated_batch_norm.backward)
        assert emulated_batch_norm.races() == []
        assert emulated_batch_norm.launches() == 3


@pytest.mark.parametrize("first", swept(range(0, 100, 10), [0]))
def test_random_cases(emulated_batch_norm, first):
    with emulated_batch_norm.on():
        for seed in range(first, first + 10):
            random_gradient_case(seed).check_gradients(emulated_batch_norm.backward)


@pytest.mark.parametrize("case", FORMS, ids=str)
def test_the_same_bits_in_any_order_of_warps(emulated_batch_norm, case):
    found = []
    for seed in (1, 2):
        with emulated_batch_norm.on(seed=seed):
            found.append(case.check_gradients(emulated_batch_norm.backward))
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


@pytest.mark.parametrize("case", FORMS, ids=str)
@pytest.mark.parametrize("of", ["value", "grad"])
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_what_is_not_finite_is_where_pytorchs_is(emulated_batch_norm, case, of, bad):
    given = case.tensors()
    tensors = {"value": given["value"], "grad": case.grad()}
    tensors[of][1, 1, 3, 2] = bad
    value, weight, grad = tensors["value"], given["weight"], tensors["grad"]
    with emulated_batch_norm.on():
        found = emulated_batch_norm.backward(grad, value, weight, 1e-5, True, True)
    leaves = [t.clone().requires_grad_() for t in (value, weight, given["bias"])]
    y = F.batch_norm(leaves[0], None, None, *leaves[1:], True)
    for got, wanted in zip(found, torch.autograd.grad(y, leaves, grad), strict=True):
        assert torch.equal(got.isfinite(), wanted.isfinite())
    assert bool(found[2].isfinite().all()) == (of == "value")


@pytest.mark.parametrize("case", FORMS, ids=str)
def test_tensors_as_they_come(emulated_batch_norm, case):
    """Off every boundary, in another order of memory, one number for all."""
    value, weight, grad = case.tensors()["value"], case.tensors()["weight"], case.grad()

    def shifted(t):
        return torch.cat([torch.zeros(1), t.flatten()])[1:].view(t.shape)

    def turned(t):
        return t.mT.contiguous().mT

    numbers = 1e-5, True, True
    with emulated_batch_norm.on():
        plain = emulated_batch_norm.backward(grad, value, weight, *numbers)
        for v, g in ((shifted(value), grad), (value, shifted(grad)), (turned(value), turned(grad))):
            found = emulated_batch_norm.backward(g, v, weight, *numbers)
            torch.testing.assert_close(found, plain, rtol=1e-5, atol=1e-5)
        one = torch.tensor(0.25).expand(value.shape)
        found = emulated_batch_norm.backward(one, value, weight, *numbers)
        plain = emulated_batch_norm.backward(one.contiguous(), value, weight, *numbers)
    assert all(torch.equal(a, b) for a, b in zip(found, plain, strict=True))
    assert torch.equal(found[2], torch.full_like(weight, 0.25 * value[:, 0].numel()))


@pytest.mark.parametrize("needs", [(True, False), (False, True), (False, False)], ids=str)
def test_what_nobody_wants_is_empty(emulated_batch_norm, needs):
    case = FORMS[0]
    value, weight, grad = case.tensors()["value"], case.tensors()["weight"], case.grad()
    with emulated_batch_norm.on():
        every = emulated_batch_norm.backward(grad, value, weight, 1e-5, True, True)
        found = emulated_batch_norm.backward(grad, value, weight, 1e-5, *needs)
    for got, wanted, asked in zip(found, every, (True, *needs), strict=True):
        assert torch.equal(got, wanted if asked else wanted[:0])


def test_what_is_refused_is_named(emulated_batch_norm):
    case = FORMS[0]
    value, weight, grad = case.tensors()["value"], case.tensors()["weight"], case.grad()
    for given, error, said in (
        ((grad[0, 0], value[0, 0], weight), RuntimeError, "value must have 3 dimensions or more"),
        ((grad[:1], value, weight), RuntimeError, "grad must have the shape of value"),
        ((grad.double(), value, weight), RuntimeError, "grad must have the input's dtype"),
        ((grad, value, weight[1:]), RuntimeError, "weight must have shape"),
        ((grad, value, weight.double()), RuntimeError, "weight must have the input's dtype"),
        ((grad[:0], value[:0], weight), ValueError, "expected more than 1 value"),
        ((grad[:1, :, :1, :1], value[:1, :, :1, :1], weight), ValueError, "more than 1 value"),
        ((grad.double(), value.double(), None), RuntimeError, "does not support this dtype"),
    ):
        with emulated_batch_norm.on(), pytest.raises(error, match=said):
            emulated_batch_norm.backward(*given, 1e-5, True, True)


@pytest.mark.parametrize("arguments", [{}, {"momentum": None}, {"affine": False}], ids=str)
@pytest.mark.parametrize(
    ("kind", "shape"),
    [
        (nn.BatchNorm1d, (3, 4, 35)),
        (nn.BatchNorm2d, (2, 3, 48, 45)),
        (nn.BatchNorm3d, (2, 3, 5, 7, 9)),
    ],
    ids=("1d", "2d", "3d"),
)
def test_training_steps(emulated_batch_norm, monkeypatch, kind, shape, arguments):
    """Through autograd: result, gradients and what is kept between steps, beside float64."""
    monkeypatch.setattr(large_batch_norm, "_norm_pays", lambda module, x: True)
    library = emulated_batch_norm.namespace
    monkeypatch.setattr(large_batch_norm, "_batch_norm_library", lambda: library)
    torch.manual_seed(0)
    ours = kind(shape[1], **arguments)
    for parameter in ours.parameters():
        nn.init.uniform_(parameter, 0.5, 1.5)
    exact = copy.deepcopy(ours).double()
    with emulated_batch_norm.on():
        for _ in range(2):
            x, grad = (torch.randn(shape) + 3).requires_grad_(), torch.randn(shape)
            exact_x = x.detach().double().requires_grad_()
            y, wanted = large_batch_norm._large_batch_norm(ours, x), exact(exact_x)
            found = y, *torch.autograd.grad(y, [x, *ours.parameters()], grad)
            leaves = exact_x, *exact.parameters()
            wanted = wanted, *torch.autograd.grad(wanted, leaves, grad.double())
            for a, b in zip(found, wanted, strict=True):
                assert float((a.double() - b).detach().norm() / b.detach().norm()) < 1e-6
        assert emulated_batch_norm.launches() == 12
    for a, b in zip(ours.buffers(), exact.buffers(), strict=True):
        torch.testing.assert_close(a.double(), b.double(), rtol=1e-5, atol=1e-6)
