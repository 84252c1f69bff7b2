"""The gradients through BatchNorm, activation, max-pool and GroupNorm by the CUDA kernels, on the
CPU, thread by thread.
"""

import dataclasses
from types import SimpleNamespace

import pytest
import torch

from tests.emulated_tools import needs_cuda_headers
from tests.gpu_tools import tf32
from tests.pool_gradient_tools import ALLOWED, CASES, random_case
from tests.sweeps import swept

pytestmark = needs_cuda_headers


@pytest.mark.parametrize("dtype", ALLOWED, ids=str)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_right(emulated_pool_gradients, case, dtype):
    with emulated_pool_gradients.on(detect_races=True):
        case.check(emulated_pool_gradients.backward, dtype)
        assert emulated_pool_gradients.races() == []
        assert emulated_pool_gradients.launches() > 0


@pytest.mark.parametrize("first", swept(range(0, 200, 20), [0]))
def test_random_cases(emulated_pool_gradients, first):
    with emulated_pool_gradients.on():
        for seed in range(first, first + 20):
            random_case(seed).check(emulated_pool_gradients.backward, torch.float64)


@pytest.mark.parametrize("index", range(5))
def test_only_what_is_asked_for(emulated_pool_gradients, index):
    case = CASES[0]
    needs = [number == index for number in range(5)]
    given = case.tensors()
    with emulated_pool_gradients.on():
        some = case.kernels(emulated_pool_gradients.backward, given, needs)
        every = case.kernels(emulated_pool_gradients.backward, given)
    assert torch.equal(some[0], every[0])
    for got, wanted, asked in zip(some[1:], every[1:], needs, strict=True):
        assert torch.equal(got, wanted) if asked else got.shape == (0,)


@pytest.mark.parametrize("case", [CASES[0], CASES[3], CASES[6]], ids=str)
def test_the_same_bits_in_any_order_of_warps(emulated_pool_gradients, case):
    found = []
    for seed in (1, 2):
        with emulated_pool_gradients.on(seed=seed):
            found.append(case.kernels(emulated_pool_gradients.backward, case.tensors()))
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


@pytest.mark.parametrize("training", [True, False])
def test_the_first_of_equal_values_gets_the_gradient(emulated_pool_gradients, training):
    """As PyTorch's max-pool has it; NaN is above all, the last one above the others."""
    case = dataclasses.replace(CASES[0], training=training)
    given = case.tensors(torch.float64)
    given["value"] = given["value"].round()  # many are equal
    with emulated_pool_gradients.on():
        found = case.kernels(emulated_pool_gradients.backward, given)
    exact = case.truth(given)
    assert torch.allclose(found[0], exact[0], rtol=1e-9, atol=1e-12)


def test_not_a_number_where_pytorch_has_it(emulated_pool_gradients):
    """In eval mode one value's is its sample's group's."""
    case = CASES[3]
    given = case.tensors(torch.float64)
    given["value"][0, 1, 4, 3] = float("nan")
    with emulated_pool_gradients.on():
        found = case.kernels(emulated_pool_gradients.backward, given)
    exact = case.truth(given)
    assert bool(found[0].isnan().any()) and torch.equal(found[0].isnan(), exact[0].isnan())


def test_what_is_refused_is_named(emulated_pool_gradients):
    case = CASES[0]
    given = case.tensors()
    backward = emulated_pool_gradients.backward
    for changed, said in (
        ({"grad": given["grad"].repeat(1, 1, 2, 1)}, r"is not that of windows of"),
        ({"grad": given["grad"].double()}, r"grad must have the input's dtype"),
        ({"value": given["value"][0]}, r"value must have 4 dimensions"),
        ({"weight": given["weight"][1:]}, r"weight must"),
    ):
        with pytest.raises(RuntimeError, match=said):
            case.kernels(backward, given | changed)


@pytest.mark.parametrize("kept", swept([True, False]))
@pytest.mark.parametrize("training", [True, False])
def test_a_step_asks_the_operators(
    shelf, emulated_gradients, emulated_pool_gradients, monkeypatch, training, kept
):
    """The whole backward of 2/11, on the CPU: output kept or once more, what follows it,
    convolution.
    """
    solution = shelf["11"].solution
    monkeypatch.setitem(solution, "_LEAST_KEPT", 1 if kept else 1 << 20)
    convolution = SimpleNamespace(
        backward=SimpleNamespace(default=emulated_gradients.backward),
        convolve=SimpleNamespace(default=emulated_gradients.convolve),
    )
    pool = emulated_pool_gradients.backward  # its first activation is tanh, too
    monkeypatch.setitem(solution, "_GRADIENT_DEVICES", ("cpu",))
    monkeypatch.setitem(solution, "_gradient_library", lambda: convolution)
    monkeypatch.setitem(solution, "_pool_backward_kernels", lambda: pool)
    model, new = (m.train(training) for m in shelf["11"].pair())
    generator = torch.Generator().manual_seed(2)
    x = torch.randn(2, 64, 6, 8, generator=generator).requires_grad_()
    exact_x = x.detach().double().requires_grad_()
    y = model.double()(exact_x)
    grad = torch.randn(y.shape, generator=generator)
    y.backward(grad.double())
    # Operands of 11 bits would decide near-ties of the pool otherwise.
    with emulated_gradients.on(), emulated_pool_gradients.on(), tf32(False):
        new(x).backward(grad)
        assert emulated_gradients.launches() > 0 and emulated_pool_gradients.launches() > 0
    largest = max(float(p.grad.norm()) for p in model.parameters())
    for ours, theirs in zip((x, *new.parameters()), (exact_x, *model.parameters()), strict=True):
        error = float((ours.grad.double() - theirs.grad).norm())
        assert error <= 2e-5 * float(theirs.grad.norm()) + 1e-6 * largest


@pytest.mark.parametrize("dtype", swept(ALLOWED), ids=str)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_zeros_behind_each_row(emulated_pool_gradients, case, dtype):
    """As of GroupNorm's gradients."""
    given = case.tensors(dtype)
    with emulated_pool_gradients.on(detect_races=True):
        flat, *sums = case.kernels(emulated_pool_gradients.backward, given)
        garbage = torch.full((2 * flat.numel(),), float("nan"), dtype=dtype)
        del garbage
        padded, *others = case.kernels(emulated_pool_gradients.backward, given, pad_rows=True)
        assert emulated_pool_gradients.races() == []
    width = flat.shape[3]
    assert padded.shape == (*flat.shape[:3], (width + 3) // 4 * 4)
    assert torch.equal(padded[..., :width], flat) and not bool(padded[..., width:].any())
    assert all(torch.equal(a, b) for a, b in zip(sums, others, strict=True))
