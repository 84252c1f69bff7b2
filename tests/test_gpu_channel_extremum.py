"""Minima and maxima over channels in the Hopper kernel, on a GPU."""

import pytest
import torch

from tests.builds_ahead import EXTREMA
from tests.gpu_tools import DTYPES, LOW, captured, check_replays, forced, tf32
from tests.solution_tools import assert_within, conv_bound
from tests.test_cuda_emulated_channel_extremum import CASES, REDUCED, equal, fused, operands

pytestmark = pytest.mark.gpu
HOPPER = (9, 0)


def on_device(case, dtype, seed: int = 0) -> list:
    return [None if t is None else t.cuda() for t in operands(case, dtype, seed)]


@pytest.mark.parametrize("dtype", [torch.float32, *LOW], ids=str)
@pytest.mark.parametrize("name", CASES)
def test_as_pytorchs_of_the_stored_outputs(shelf, name, dtype):
    case, solution = CASES[name], shelf[EXTREMA]
    for seed, (kind, reduce) in enumerate(REDUCED.items()):
        given = on_device(case, dtype, seed)
        with forced("hopper"), tf32(True), torch.no_grad():
            found = fused(solution, kind, case, *given)
            y = solution.solution["_operator"](*given[:3], *case.parameters, *given[3:])
        assert found is not None and equal(found, reduce(y, 1, keepdim=True))


@pytest.mark.parametrize("name", CASES)
def test_what_fp16_containers_cannot_hold(shelf, name):
    case, solution = CASES[name], shelf[EXTREMA]
    x, weight, bias, signs = on_device(case, torch.float32)
    x = torch.where(x > 0, x, x * 1e6)
    with forced("hopper"), tf32(True):
        found = fused(solution, "most", case, x, weight, bias, signs)
    exact = (case.reference(x, weight, bias) * signs.view(-1, 1, 1)).amax(1, keepdim=True)
    bound = conv_bound(case, x, weight, bias, torch.float32)
    assert_within(found, exact, bound.amax(1, keepdim=True))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_the_model(shelf, dtype):
    """On every GPU, with a gradient and without."""
    model, new = shelf[EXTREMA].pair()
    exact = model.double().cuda()
    new = new.to(dtype).cuda()
    (x,) = shelf[EXTREMA].reference["get_inputs"]()
    x = torch.cat([x] * 40).to(dtype).cuda()
    bound = 1e-10 if dtype == torch.float64 else 5e-2 if dtype == torch.bfloat16 else 1e-2
    for grad in (False, True):
        with torch.set_grad_enabled(grad):
            outputs = new(x)
        for y, wanted in zip(outputs, exact(x.double()), strict=True):
            assert y.requires_grad is grad and y.dtype == dtype
            assert float((y.double() - wanted).norm() / wanted.norm()) < bound
    sum(y.sum() for y in outputs).backward()
    assert all(p.grad is not None and bool(p.grad.isfinite().all()) for p in new.parameters())


def test_it_is_ours_and_can_be_captured(shelf):
    if torch.cuda.get_device_capability() != HOPPER:
        pytest.skip("minima and maxima over channels are ours on Hopper alone")
    solution = shelf[EXTREMA].solution
    _, new = shelf[EXTREMA].pair(64, 128)
    new, x = new.cuda(), torch.randn(8, 64, 40, 40, device="cuda")
    with torch.no_grad(), tf32(True):
        arguments = [new.up.weight, new.up.bias, (2, 2), (1, 1), (0, 0), (1, 1), 1]
        conv, scale = arguments[2:], new.scale.reshape(-1)
        made = solution["_fused_extremum"]("", "least", x, *arguments[:2], conv, (scale,))
        assert made is not None and made.shape == (8, 1, 79, 79)

        def most(x):
            return new(x)[1]

        graph, y = captured(most, x)
        check_replays(graph, most, x, y, torch.randn_like)
