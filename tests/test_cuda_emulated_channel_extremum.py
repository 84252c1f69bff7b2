"""Minima and maxima over channels in the Hopper kernel, on the CPU, thread by thread: to the last
bit what PyTorch's operator makes of the outputs that the same kernel stores.
"""

import random

import pytest
import torch

from tests.cuda_emulator import emulator
from tests.emulated_tools import forced, needs_cuda_headers
from tests.gpu_tools import LAYOUTS, LOW, tf32
from tests.solution_tools import Case, assert_within, conv_bound
from tests.sweeps import swept

pytestmark = needs_cuda_headers
DTYPES = (torch.float32, *LOW)
REDUCED = {"least": torch.amin, "most": torch.amax}
LAYERS = 3  # of a test
ALONE, JOINED = 1, 2  # launches behind the transform of the weights: one plane of channels, or many

CASES = {
    "two columns apart": Case(
        *(2, 64, 128, (7, 20), (3, 3), (2, 2), (1, 1)), output_padding=(1, 1)
    ),
    "rows of an odd number": Case(2, 24, 40, (9, 21), (3, 4), (2, 2), (1, 1)),
    "more phases than taps": Case(1, 64, 70, (6, 20), (1, 1), (2, 2)),
    "wide": Case(1, 64, 64, (12, 130), (3, 3), (1, 1), (1, 1)),
    "images behind each other": Case(9, 64, 96, (7, 7), (3, 3), (1, 1), (1, 1)),
    "single channels": Case(3, 17, 3, (7, 33), (3, 5)),
    "one plane": Case(2, 64, 16, (9, 30), (3, 3)),
    "sweeps": Case(1, 130, 200, (9, 20), (2, 3)),
    "groups": Case(2, 80, 72, (9, 30), groups=2, kernel=(3, 3)),
    "groups two columns apart": Case(2, 80, 40, (5, 30), groups=2, kernel=(3, 3), stride=(1, 2)),
}


def operands(case: Case, dtype, seed: int = 0) -> tuple:
    """x, weight, bias, and signs by which the chain multiplies channels."""
    generator = torch.Generator().manual_seed(seed)
    signs = 1.0 - 2 * torch.randint(0, 2, (case.out_channels,), generator=generator)
    return *case.tensors(dtype, seed=seed), signs.to(dtype)


def fused(emulated, kind: str, case: Case, x, weight, bias, scale):
    made = emulated.solution["_fused_extremum"]
    with torch.no_grad():
        return made("", kind, x, weight, bias, case.parameters, (scale,))


def equal(found, wanted) -> bool:
    """Zeros of either sign are one value, NaN is one value."""
    same = found.dtype == wanted.dtype and found.shape == wanted.shape
    return same and bool(((found == wanted) | (found.isnan() & wanted.isnan())).all())


def check(emulated, case: Case, dtype, seed: int = 0, device: int = emulator.HOPPER) -> int | None:
    """How many kernels ran for the maximum; None where it was declined."""
    given, launches = operands(case, dtype, seed), None
    for kind, reduce in REDUCED.items():
        with emulated.on(device, seed, detect_races=True), forced("hopper"), tf32(True):
            found = fused(emulated, kind, case, *given)
            launches, races = emulated.launches(), emulated.races()
            if found is None:
                return None
            y = emulated.operator(*given[:3], *case.parameters, *given[3:])
        assert races == [] and equal(found, reduce(y, 1, keepdim=True)), (case, kind)
    x, weight, bias, signs = given
    exact = (case.reference(x, weight, bias) * signs.view(-1, 1, 1)).amax(1, keepdim=True)
    bound = conv_bound(case, x, weight, bias, dtype, tf32=dtype == torch.float32)
    assert_within(found, exact, bound.amax(1, keepdim=True))
    return launches


QUICK = {"rows of an odd number", "more phases than taps", "single channels", "groups"}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", swept(CASES, QUICK.__contains__))
def test_as_pytorchs_of_the_stored_outputs(emulated_extrema, name, dtype):
    case = CASES[name]
    planes = case.groups * -(-case.out_channels // case.groups // 64)
    behind = (JOINED if planes > 1 else ALONE) + (dtype == torch.float32)
    assert check(emulated_extrema, case, dtype, seed=3) == 1 + behind


def random_layer(seed: int) -> Case:
    rng = random.Random(f"extremum {seed}")
    stride = rng.choice(((1, 1), (2, 2), (2, 2), (1, 2), (2, 1), (3, 1)))
    groups = rng.choice((1, 1, 1, 2))
    return Case(
        batch=rng.choice((1, 2, 3)),
        in_channels=groups * rng.choice((16, 24, 64, 72)),
        out_channels=groups * rng.choice((3, 16, 17, 40, 64, 100, 150 // groups)),
        size=(rng.randint(1, 6), rng.choice((rng.randint(2, 30), rng.randint(31, 80)))),
        kernel=(rng.randint(1, 4), rng.randint(1, 5)),
        stride=stride,
        padding=(rng.randint(0, 1), rng.randint(0, 2)),
        output_padding=(rng.randrange(stride[0]), rng.randrange(stride[1])),
        dilation=(rng.choice((1, 1, 2)), rng.choice((1, 1, 2))),
        groups=groups,
        bias=rng.random() < 0.8,
    )


@pytest.mark.parametrize("first", swept(range(0, 40 * LAYERS, LAYERS), (0,).__contains__))
def test_random_layers(emulated_extrema, first):
    served = asked = 0
    for seed in range(first, first + LAYERS):
        case = random_layer(seed)
        if min(case.output_size) < 1:
            continue
        asked += 1
        device = emulator.FULL_HOPPER if seed % 2 else emulator.HOPPER
        served += check(emulated_extrema, case, DTYPES[seed % 3], seed, device) is not None
    assert served >= asked / 2


@pytest.mark.parametrize("size", [1e-9, 1e6])
@pytest.mark.parametrize("name", swept(CASES, QUICK.__contains__))
def test_what_fp16_containers_cannot_hold(emulated_extrema, name, size):
    """Inputs from there to ordinary ones: then only exact products are within the bound."""
    case = CASES[name]
    x, weight, bias, signs = operands(case, torch.float32)
    x = torch.where(x > 0, x, x * size)
    if case.bias:
        bias = bias * size
    for kind, reduce in REDUCED.items():
        with emulated_extrema.on(), forced("hopper"), tf32(True):
            found = fused(emulated_extrema, kind, case, x, weight, bias, signs)
        exact = reduce(case.reference(x, weight, bias) * signs.view(-1, 1, 1), 1, keepdim=True)
        bound = conv_bound(case, x, weight, bias, torch.float32, tf32=size < 1)
        assert_within(found, exact, bound.amax(1, keepdim=True))


SPECIAL = [(of, float(v)) for of in ("x", "weight", "bias") for v in ("nan", "inf", "-inf")]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("of", "special"), swept(SPECIAL, (0, 1, 4, 6, 8), names=2))
def test_non_finite_values(emulated_extrema, of, special, dtype):
    """As PyTorch's of the outputs, NaN of one channel is the result; channels that there are not,
    whose zeros an infinite input makes NaN, have no part in it.
    """
    case = Case(2, 24, 70, (5, 21), (3, 3), (2, 2), (1, 1))
    x, weight, bias, signs = operands(case, dtype)
    if of == "x":
        x[1, 3, 2, 5] = x[0, 23, 4, 20] = special
    elif of == "weight":
        weight[5, 69, 1, 1] = special
    else:
        bias[36] = special
    for kind, reduce in REDUCED.items():
        with emulated_extrema.on(seed=1), forced("hopper"), tf32(True):
            found = fused(emulated_extrema, kind, case, x, weight, bias, signs)
            y = emulated_extrema.operator(x, weight, bias, *case.parameters, signs)
        wanted = reduce(y, 1, keepdim=True)
        assert torch.equal(found.isnan(), wanted.isnan())
        assert torch.equal(found.isinf(), wanted.isinf())
        assert dtype == torch.float32 or equal(found, wanted)
        assert of != "x" or bool(found.isfinite().any()) and not bool(found.isfinite().all())


def test_what_is_declined(emulated_extrema):
    case = CASES["rows of an odd number"]
    x, *rest = operands(case, torch.float32)

    def asked(x, *rest, kernel="hopper", allowed=True, device=emulator.HOPPER) -> bool:
        with emulated_extrema.on(device), forced(kernel), tf32(allowed):
            return fused(emulated_extrema, "least", case, x, *rest) is not None

    assert asked(x, *rest) and asked(x, rest[0], None, rest[2])
    assert not asked(x, *rest, kernel="portable") and not asked(x, *rest, allowed=False)
    assert not asked(x, *rest, device=emulator.AMPERE)
    assert not asked(x.to(memory_format=torch.channels_last), *rest)
    assert not asked(x[0], *rest) and not asked(x[:0], *rest)
    assert not asked(*(t.double() for t in (x, *rest)))
    assert asked(LAYOUTS["offset_1"](x), *rest) and asked(LAYOUTS["column_window"](x), *rest)
    with torch.enable_grad(), emulated_extrema.on(), forced("hopper"), tf32(True):
        made = emulated_extrema.solution["_fused_extremum"]
        leaf = x.clone().requires_grad_()
        for one in (x, leaf):
            found = made("", "least", one, *rest[:2], case.parameters, rest[2:])
            assert found is not None and not found.requires_grad


def test_the_model(emulated_extrema, shelf, monkeypatch):
    """Both calls are fused, whether a gradient is wanted or not."""
    reference, solution = shelf.reference("channel_extrema"), emulated_extrema.solution
    models = []
    for factory in (reference["Model"], solution["ModelNew"]):
        torch.manual_seed(0)
        models.append(factory(*reference["get_init_inputs"]()))
    model, new = models
    made, found = solution["_fused_extremum"], []

    def counted(*arguments):
        found.append(made(*arguments))
        return found[-1]

    monkeypatch.setitem(solution, "_fused_extremum", counted)
    (x,) = reference["get_inputs"]()
    for grad in (False, True):
        with torch.set_grad_enabled(grad), emulated_extrema.on(), forced("hopper"), tf32(True):
            outputs = new(x)
        assert [one is not None for one in found] == [True] * 2
        found.clear()
        for y, wanted in zip(outputs, model.double()(x.double()), strict=True):
            assert y.requires_grad is grad and y.shape == wanted.shape
            torch.testing.assert_close(y.double(), wanted, rtol=1e-2, atol=1e-2)
        model.float()
