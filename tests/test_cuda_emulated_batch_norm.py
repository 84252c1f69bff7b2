"""BatchNorm alone by the CUDA kernels, on the CPU, thread by thread."""

import pytest
import torch

from tests.batch_norm_tools import CASES, random_case
from tests.emulated_tools import needs_cuda_headers
from tests.sweeps import swept

pytestmark = needs_cuda_headers


@pytest.mark.parametrize("case", CASES, ids=str)
def test_right(emulated_batch_norm, case):
    with emulated_batch_norm.on(detect_races=True):
        case.check(emulated_batch_norm.normalise)
        assert emulated_batch_norm.races() == []
        assert emulated_batch_norm.launches() == 3


@pytest.mark.parametrize("first", swept(range(0, 100, 10), [0]))
def test_random_cases(emulated_batch_norm, first):
    with emulated_batch_norm.on():
        for seed in range(first, first + 10):
            random_case(seed).check(emulated_batch_norm.normalise)


@pytest.mark.parametrize("case", CASES[:2], ids=str)
def test_the_same_bits_in_any_order_of_warps(emulated_batch_norm, case):
    found = []
    for seed in (1, 2):
        with emulated_batch_norm.on(seed=seed):
            found.append(case.check(emulated_batch_norm.normalise))
    assert torch.equal(*found)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_what_is_not_finite_stays_in_its_channel(emulated_batch_norm, value):
    given = CASES[0].tensors()
    given["value"][1, 1, 2, 3] = value
    with emulated_batch_norm.on():
        found = emulated_batch_norm.normalise(*given.values(), 0.1, 1e-5, False)
    assert bool(found[:, 1].isnan().all()) and bool(found[:, [0, 2]].isfinite().all())


def test_an_image_off_every_boundary(emulated_batch_norm):
    given = CASES[0].tensors()
    shifted = torch.cat([torch.zeros(1), given["value"].flatten()])[1:]
    with emulated_batch_norm.on():
        plain = emulated_batch_norm.normalise(*given.values(), 0.1, 1e-5, False)
        given = CASES[0].tensors() | {"value": shifted.view(given["value"].shape)}
        assert torch.equal(emulated_batch_norm.normalise(*given.values(), 0.1, 1e-5, False), plain)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_softmax_of_what_is_not_finite(emulated_batch_norm, value):
    given = next(case for case in CASES if case.softmax).tensors()
    given["value"][0, 2, 1, 3] = value
    with emulated_batch_norm.on():
        found = emulated_batch_norm.normalise(*given.values(), 0.1, 1e-5, True)
    assert bool(found[:, 2].isnan().all()) and bool(found[:, :2].isfinite().all())


def test_what_is_refused_is_named(emulated_batch_norm):
    given = CASES[0].tensors()
    for changed, error, said in (
        ({"value": given["value"][0, 0]}, RuntimeError, "value must have 3 dimensions or more"),
        ({"value": given["value"][:1, :, :1, :1]}, ValueError, "expected more than 1 value"),
        ({"value": given["value"].double()}, RuntimeError, "weight must have the input's dtype"),
        ({"weight": given["weight"][1:]}, RuntimeError, "weight must have shape"),
        ({"running_var": given["bias"][:2]}, RuntimeError, "running_var must have shape"),
        ({"running_mean": torch.zeros(6)[::2]}, RuntimeError, "running_mean must be contiguous"),
    ):
        with emulated_batch_norm.on(), pytest.raises(error, match=said):
            emulated_batch_norm.normalise(*(given | changed).values(), 0.1, 1e-5, False)
    with emulated_batch_norm.on(), pytest.raises(RuntimeError, match="rows of 64, 128, 256 or 512"):
        emulated_batch_norm.normalise(*given.values(), 0.1, 1e-5, True)
    volume = given | {"value": torch.zeros(2, 3, 2, 3, 64)}
    with emulated_batch_norm.on(), pytest.raises(RuntimeError, match="rows of 64, 128, 256 or 512"):
        emulated_batch_norm.normalise(*volume.values(), 0.1, 1e-5, True)


@pytest.mark.parametrize("shape", [(2, 3, 48), (2, 3, 2, 4, 6)], ids=str)
def test_any_number_of_dimensions(emulated_batch_norm, shape):
    images, others = CASES[0].tensors(), CASES[0].tensors()
    others["value"] = others["value"].view(shape)
    with emulated_batch_norm.on():
        found = [
            emulated_batch_norm.normalise(*given.values(), 0.1, 1e-5, False)
            for given in (images, others)
        ]
    assert found[1].shape == shape and torch.equal(found[0].view(shape), found[1])
    assert torch.equal(images["running_var"], others["running_var"])
