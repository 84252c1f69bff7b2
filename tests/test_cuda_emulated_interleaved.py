"""The interleaved kernel on the CPU, thread by thread: random layers of strides over two columns,
and volumes in groups of few channels, right and without races; which calls take it.
"""

import dataclasses

import pytest
import torch

from tests.emulated_tools import forced, needs_cuda_headers
from tests.gpu_tools import LOW, tf32
from tests.layer_errors import errors_of
from tests.random_dimensions import volume
from tests.random_layers import random_layers
from tests.solution_tools import Case, assert_within, conv_bound
from tests.sweeps import swept
from tests.test_cuda_emulated_volumes import in_place

pytestmark = needs_cuda_headers
WIDE = Case(in_channels=6, out_channels=12, kernel=(3, 4), stride=(2, 3), size=(7, 25), groups=2)


def is_interleaved(case: Case) -> bool:
    return 2 < case.stride[1] <= 8 >= case.stride[0] and case.out_channels // case.groups > 4


@pytest.mark.parametrize("seed", swept([1, 2, 3, 4]))
def test_random_layers(emulated_volumes, seed):
    """Of every dtype and layout, TF32 allowed and forbidden, against float64."""
    wrong, computed = [], 0
    for layer in random_layers(seed, 150, "small"):
        if not is_interleaved(layer.case) or layer.dtype == torch.float64:
            continue
        layer = dataclasses.replace(layer, gradients=False)
        with emulated_volumes.on(seed=layer.index, detect_races=True), forced("direct"):
            errors = errors_of(emulated_volumes.operator, layer, rounds=True, compare=False)
            found = errors.failures() + emulated_volumes.races()
        computed += 1
        wrong += [f"(seed {seed}, index {layer.index}) {layer}: {what}" for what in found[:1]]
    assert wrong == []
    assert computed >= 8


# (a layer, whether PyTorch answers it in TF32): few products an output, few channels a group.
CHOSEN = [
    (Case(in_channels=32, out_channels=20, kernel=(3, 3), stride=(5, 5), dilation=(2, 2)), True),
    (Case(in_channels=16, out_channels=24, kernel=(3, 5), stride=(2, 3), groups=2), False),
]


@pytest.mark.parametrize(("case", "rounds"), CHOSEN, ids=str)
def test_chosen_by_the_rule(emulated_volumes, case, rounds):
    """With TF32 allowed operands are rounded to it where PyTorch's are, and fp32 elsewhere."""
    case = dataclasses.replace(case, size=(9, 70), padding=(1, 2))  # 2^20 products and more
    for dtype in (torch.float32, *LOW):
        operands = case.tensors(dtype)
        for allowed in (True, False):
            with emulated_volumes.on(), tf32(allowed):
                y = emulated_volumes.operator(*operands, *case.parameters)
                assert emulated_volumes.launches() == 1
                with forced("direct"):
                    strict = emulated_volumes.operator(*operands, *case.parameters)
            rounded = allowed and rounds and dtype == torch.float32
            bound = conv_bound(case, *operands, dtype, tf32=rounded)
            assert_within(y, case.reference(*operands), bound)
            assert torch.equal(y, strict) is not rounded


def test_absent_inputs_are_not_multiplied(emulated_volumes):
    """By an infinite weight, which made NaN of them."""
    case = Case(in_channels=8, out_channels=8, kernel=(3, 3), stride=(3, 3), dilation=(2, 2))
    x, weight, bias = case.tensors()
    weight[:, 3, 0, 2] = float("inf")
    with emulated_volumes.on(), forced("direct"):
        y = emulated_volumes.operator(x.abs(), weight, bias, *case.parameters)
    exact = case.reference(x.abs(), weight, bias)
    assert torch.equal(y.isinf(), exact.isinf()) and not bool(y.isnan().any())


@pytest.mark.parametrize("start", swept(range(0, 400, 100), (0,)))
def test_random_volumes(emulated_volumes, start):
    """Groups of at most eight channels, fp32: each residue in depth is one launch."""
    emulated_volumes.solution["_VOLUME_DEVICES"] = ("cpu",)
    computed = 0
    for seed in range(start, start + 100):
        case = volume(seed)
        if case.groups == 1:
            continue
        case = dataclasses.replace(case, channels=8 * case.groups)
        operands = case.operands(torch.float32)
        exact = [None if t is None else t.detach().double() for t in operands]
        try:
            wanted = case.reference(*exact)
        except RuntimeError:
            continue
        with emulated_volumes.on(seed=seed, detect_races=True):
            out = in_place(emulated_volumes, operands, case)
            launches, races = emulated_volumes.launches(), emulated_volumes.races()
        if out is None:
            continue
        most = case.reference(*[None if t is None else t.abs() for t in exact])
        assert bool(((out.double() - wanted).abs() <= 2.0**-20 * most + 1e-30).all()), case
        assert races == [] and launches <= case.stride[0], case
        computed += 1
    assert computed >= 4
