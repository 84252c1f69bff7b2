"""Gradients of what is added behind a volume: summed by the kernels, which are precise."""

import types

import pytest
import torch

from generator.runtime import volume_gradients
from generator.runtime.step_gradients import _Add, _Channel, _Multiply, _Whole
from tests.emulated_tools import needs_cuda_headers
from tests.norm_gradient_tools import CASES, CHAINS, check_norm, norm_case


@pytest.fixture
def asked(monkeypatch):
    """What the kernels of chains are called with, which here give zeros and ones."""
    given = []

    def before_chain(grad, value, vectors, needs, steps, chain):
        given.append((grad, value, needs, chain))
        return torch.zeros_like(grad), grad.new_ones(3), [grad.new_ones(3) for _ in vectors]

    monkeypatch.setattr(volume_gradients, "_GRADIENT_DEVICES", ("cpu",))
    monkeypatch.setattr(volume_gradients, "_before_chain", before_chain)
    monkeypatch.setattr(volume_gradients, "_channel_sums", lambda grad: grad.sum((0, 2, 3, 4)))
    monkeypatch.setattr(volume_gradients, "_in_place", lambda grad, x, weight, *rest: [grad, grad])
    return given


def found(steps, wanted, has_bias=True):
    x, weight = torch.ones(2, 8, 3, 4, 5), torch.ones(8, 3, 1, 1, 1)
    bias = torch.ones(3) if has_bias else None
    vectors, grad = [torch.ones(3)] * len(wanted), torch.ones(2, 3, 3, 4, 5)
    axes = (1, 1, 1), (0, 0, 0), (0, 0, 0), (1, 1, 1)
    ctx = types.SimpleNamespace(
        call=(None, (steps, 7, None), axes, 1),
        needs_input_grad=(*[False] * 5, True, True, has_bias, *wanted),
        saved_tensors=(x, weight, bias, *vectors, None),
    )
    with torch.no_grad():
        return volume_gradients._gradients_of_volumes(ctx, grad)


def test_operands_that_are_added(asked):
    grads = found((_Add(_Channel(0), 1, 1), _Multiply(2.0)), (True,))
    ((grad, value, needs, chain),) = asked
    assert grad.shape == value.shape == (2, 3, 12, 5) and needs == (True, True) and chain == 7
    assert not grads[0].any() and torch.equal(grads[2], torch.ones(3))
    assert torch.equal(grads[3], torch.ones(3))


def test_nobody_asks_for_their_gradients(asked):
    grads = found((_Add(_Channel(0), 1, 1), _Multiply(2.0)), (False,))
    assert asked == [] and torch.equal(grads[2], torch.full((3,), 2.0 * 2 * 60))


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("wanted", [True, False])
def test_what_is_added_alone_takes_no_kernel_of_chains(asked, sign, wanted):
    """The gradient is what it was; an operand's has memory of its own."""
    steps = _Add(3.0, 1, 1), _Add(_Channel(0), 1, sign), _Add(_Channel(1), 1, 1)
    *_, of_bias, first, second = found(steps, (wanted, True))
    total = torch.full((3,), 120.0)
    assert asked == [] and torch.equal(of_bias, total) and torch.equal(second, total)
    assert torch.equal(first, sign * total) if wanted else first is None
    assert len({t.data_ptr() for t in (of_bias, first, second) if t is not None}) == 2 + wanted


def test_without_a_bias_there_is_no_gradient_of_it(asked):
    """Autograd refuses one."""
    *_, of_bias, of_operand = found((_Add(_Channel(0), 1, 1),), (True,), has_bias=False)
    assert asked == [] and of_bias is None and torch.equal(of_operand, torch.full((3,), 120.0))


@pytest.mark.parametrize("step", [_Add(_Channel(0), -1, 1), _Add(_Whole(0), 1, 1)])
def test_other_sums_do(step):
    assert volume_gradients._added_operands((_Add(1.0, 1, 1), step)) is None


@needs_cuda_headers
def test_sums_that_cancel(emulated_volume_norm_gradients):
    """A part of a plane has one rounding, however many values it has."""
    part, generator = 16384, torch.Generator().manual_seed(5)
    first = torch.randn(2, 2 * part, generator=generator)
    second = -first[:, torch.randperm(2 * part, generator=generator)]
    grad = torch.stack([first, second]).view(2, 2, 2, part)
    needs = False, False, True
    with emulated_volume_norm_gradients.on(detect_races=True):
        passed, _, _, sums, _ = emulated_volume_norm_gradients.backward(
            *(grad, torch.ones_like(grad), None, 0, 1e-5, *[None] * 4, *needs, False, 0)
        )
        assert emulated_volume_norm_gradients.races() == []
    assert torch.equal(passed, grad)
    parts = grad.double().sum(3)
    bound = 2.0**-24 * parts.abs().sum((0, 2)) + 1e-9
    assert bool(((sums.double() - parts.sum((0, 2))).abs() <= bound).all()), (sums, bound)


@needs_cuda_headers
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16], ids=str)
@pytest.mark.parametrize("chain", range(len(CHAINS)))
def test_gradients_through_group_norm(emulated_volume_norm_gradients, chain, dtype):
    """By the same kernels, which sum a chain's operands' gradients, too."""
    allowed = {torch.float32: 4e-6, torch.float64: 2e-13, torch.float16: 2e-3}[dtype]
    grad, value, weight = norm_case(CASES[3], dtype)
    with emulated_volume_norm_gradients.on(detect_races=True):
        check_norm(
            *(emulated_volume_norm_gradients.backward, CASES[3], grad, value, weight, allowed),
            chain=chain,
        )
        assert emulated_volume_norm_gradients.races() == []
