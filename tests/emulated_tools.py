"""What the tests of the emulated CUDA kernels share."""

import copy

import pytest
import torch

from tests.cuda_emulator import emulator
from tests.solution_tools import environment, relative_error

needs_cuda_headers = pytest.mark.skipif(
    emulator.cuda_headers() is None, reason="no CUDA toolkit: its headers are needed"
)


def forced(kernel: str):
    return environment(TCONV_KERNEL=kernel)


def forced_volume_launches(
    emulated,
    case,
    compute,
    seed: int,
    dtype=torch.float32,
    size: float = 1.0,
    kernel: str = "hopper",
    steps: float = 2.1,
    least: float = 1e-30,
    device: int = emulator.HOPPER,
) -> int | None:
    """Of a kernel, forced, over a random layer of three dimensions, whose output is compared and
    whose races are none; None without an output. `compute` makes the output, or none; `size`: of
    the input's values; `steps`: most roundings of an operand that an output may lie away, `least`:
    what it always may.
    """
    step = 2.0**-8 if dtype == torch.bfloat16 else 2.0**-11  # significant bits of an operand
    emulated.solution["_VOLUME_DEVICES"] = ("cpu",)
    x, *rest = case.operands(dtype)
    operands = [x * size, *rest]
    exact = [None if t is None else t.detach().double() for t in operands]
    try:
        wanted = case.reference(*exact)
    except RuntimeError:  # no output
        return None
    with emulated.on(device, seed, detect_races=True), forced(kernel):
        out = compute(emulated, operands, case)
        launches, races = emulated.launches(), emulated.races()
    if out is None:
        return None
    most = case.reference(*[None if t is None else t.abs() for t in exact])
    assert bool(((out.double() - wanted).abs() <= steps * step * most + least).all()), case
    assert races == [], case
    return launches


def model_input(dtype=torch.float32, size=(13, 21)):
    generator = torch.Generator().manual_seed(1)
    return torch.randn(2, 64, *size, generator=generator).to(dtype)


def models(reference: dict, emulated):
    """(Model, ModelNew) with parameters of either sign, and a BatchNorm weight of zero."""
    pair = []
    for factory in (reference["Model"], emulated.solution["ModelNew"]):
        torch.manual_seed(0)
        pair.append(factory(*reference["get_init_inputs"]()))
    model, new = pair
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.normal_()
        if hasattr(model, "batch_norm"):
            model.batch_norm.weight[3] = 0.0
    new.load_state_dict(model.state_dict())
    return model, new


def check_model(emulated, model, new, x, bound: float) -> None:
    """Output and buffers of copies in the dtype of x, against the reference in float64."""
    exact_model = copy.deepcopy(model).to(x.dtype).double()
    candidate = copy.deepcopy(new).to(x.dtype)
    with torch.no_grad():
        error = relative_error(candidate(x), exact_model(x.double()))
    assert error <= bound
    for key, value in candidate.state_dict().items():
        wanted = exact_model.state_dict()[key].double()
        torch.testing.assert_close(value.double(), wanted, rtol=0.04, atol=5e-3)
