"""GroupNorm alone by the CUDA kernels, on the CPU, thread by thread."""

import pytest
import torch

from tests.emulated_tools import needs_cuda_headers
from tests.group_norm_tools import CASES, random_case
from tests.sweeps import swept

pytestmark = needs_cuda_headers


@pytest.mark.parametrize("case", CASES, ids=str)
def test_right(emulated_group_norm, case):
    with emulated_group_norm.on(detect_races=True):
        case.check(emulated_group_norm)
        assert emulated_group_norm.races() == []
        assert emulated_group_norm.launches() > 1


@pytest.mark.parametrize("first", swept(range(0, 100, 10), [0]))
def test_random_cases(emulated_group_norm, first):
    with emulated_group_norm.on():
        for seed in range(first, first + 10):
            random_case(seed).check(emulated_group_norm)


@pytest.mark.parametrize("case", [CASES[0], CASES[4]], ids=str)
def test_the_same_bits_in_any_order_of_warps(emulated_group_norm, case):
    found = []
    for seed in (1, 2):
        with emulated_group_norm.on(seed=seed):
            found.append(case.check(emulated_group_norm))
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


@pytest.mark.parametrize("case", [CASES[0], CASES[3]], ids=str)
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_what_is_not_finite_stays_in_its_group(emulated_group_norm, case, bad):
    value, weight, bias, _ = case.tensors()
    value[1, 2, 1, 2, 3] = bad
    with emulated_group_norm.on():
        found = emulated_group_norm.normalise(value, weight, bias, case.groups, 1e-5)
    assert bool(found[1, 2:].isnan().all())
    assert bool(found[0].isfinite().all()) and bool(found[1, :2].isfinite().all())


@pytest.mark.parametrize("case", [CASES[0], CASES[3], CASES[-1]], ids=str)
def test_a_tensor_off_every_boundary(emulated_group_norm, case):
    value, weight, bias, grad = case.tensors()
    shifted = torch.cat([torch.zeros(1), value.flatten()])[1:].view(value.shape)
    numbers = case.groups, 1e-5
    with emulated_group_norm.on():
        for v in (shifted, value.transpose(3, 4).contiguous().transpose(3, 4)):
            found = emulated_group_norm.normalise(v, weight, bias, *numbers)
            plain = emulated_group_norm.normalise(value, weight, bias, *numbers)
            torch.testing.assert_close(found, plain, rtol=1e-6, atol=1e-6)
            found = emulated_group_norm.backward(grad, v, weight, *numbers, True, True)
            plain = emulated_group_norm.backward(grad, value, weight, *numbers, True, True)
            torch.testing.assert_close(found, plain, rtol=1e-5, atol=1e-5)


def test_what_is_refused_is_named(emulated_group_norm):
    value, weight, bias, grad = CASES[0].tensors()
    for given, said in (
        ((value[0, 0, 0, 0], weight, bias, 2), "value must have 2 dimensions or more"),
        ((value, weight, bias, 3), "num_groups must divide 4 channels, got 3"),
        ((value, weight, bias, 0), "num_groups must divide 4 channels, got 0"),
        ((value, weight[1:], bias, 2), "weight must have shape"),
        ((value, weight, bias.double(), 2), "bias must have the input's dtype"),
    ):
        with emulated_group_norm.on(), pytest.raises(RuntimeError, match=said):
            emulated_group_norm.normalise(*given, 1e-5)
    for given, said in (
        ((grad[:1], value), "grad must have the shape of value"),
        ((grad.double(), value), "grad must have the input's dtype"),
        ((grad[:0], value[:0]), "value must not be empty"),
    ):
        with emulated_group_norm.on(), pytest.raises(RuntimeError, match=said):
            emulated_group_norm.backward(*given, weight, 2, 1e-5, True, True)
    with emulated_group_norm.on():
        empty = emulated_group_norm.normalise(value[:0], weight, bias, 2, 1e-5)
    assert empty.shape == (0, *value.shape[1:])
