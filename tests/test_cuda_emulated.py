"""The CUDA kernels' convolutions on the CPU, thread by thread (tests/cuda_emulator)."""

import dataclasses
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from tests.cuda_emulator import emulator
from tests.emulated_tools import forced, needs_cuda_headers
from tests.gpu_tools import DTYPES, KERNELS, LAYOUTS, LOW, can_force, settings, tf32
from tests.solution_tools import GRID, Case, assert_within, conv_bound
from tests.sweeps import swept

pytestmark = needs_cuda_headers


def check(conv, case: Case, operands: tuple, allowed: bool) -> None:
    x, weight, bias = operands
    y = conv.operator(x, weight, bias, *case.parameters)
    rounded = allowed and x.dtype == torch.float32
    bound = conv_bound(case, *operands, x.dtype, tf32=rounded)
    assert_within(y, case.reference(*operands), bound)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("case", swept(GRID, (0, 2, 3, 4, 7, 9, 11, 12, 16, 18)), ids=str)
def test_grid(emulated_conv, case, kernel):
    for dtype in DTYPES:
        operands = case.tensors(dtype)
        for allowed in settings(dtype):
            with emulated_conv.on(), forced(kernel), tf32(allowed):
                if can_force(kernel, case, dtype, allowed) or case.batch == 0:
                    check(emulated_conv, case, operands, allowed)
                else:
                    with pytest.raises(RuntimeError, match="forced by TCONV_KERNEL"):
                        emulated_conv.operator(*operands, *case.parameters)


@pytest.mark.parametrize("kernel", ["plain", "direct", "portable", "hopper"])
@pytest.mark.parametrize(
    "layout", swept(LAYOUTS, {"channels_last", "offset_1", "column_window"}.__contains__)
)
def test_layouts(emulated_conv, layout, kernel):
    case = Case(in_channels=64, out_channels=64, size=(8, 32), kernel=(3, 3), padding=(1, 1))
    for dtype in (torch.float32, *LOW):
        x, weight, bias = case.tensors(dtype)
        with emulated_conv.on(seed=1), forced(kernel), tf32(True):
            check(emulated_conv, case, (LAYOUTS[layout](x), weight, bias), True)


@pytest.mark.parametrize("in_channels", [1, 3, 17, 96, 130])
def test_hopper_with_any_channels(emulated_conv, in_channels):
    for out_channels in (1, 3, 17, 96, 130):
        case = Case(
            batch=1, in_channels=in_channels, out_channels=out_channels, size=(6, 21), kernel=(3, 5)
        )
        with emulated_conv.on(), forced("hopper"), tf32(True):
            check(emulated_conv, case, case.tensors(), True)


def test_a_thread_that_asks_for_less_shared_memory(emulated_conv):
    """What a kernel may ask for is the process's: another thread's smaller layer leaves it."""
    small = Case(in_channels=64, out_channels=64, size=(6, 20), kernel=(3, 3))
    large = Case(in_channels=64, out_channels=64, size=(40, 60), kernel=(7, 7))

    def run(case: Case) -> None:
        check(emulated_conv, case, case.tensors(), True)

    with emulated_conv.on(), forced("hopper"), tf32(True), ThreadPoolExecutor(1) as other:
        run(large)
        other.submit(run, small).result()
        run(large)


MANY_CHANNELS = [
    Case(batch=2, in_channels=256, out_channels=96, kernel=(3, 5), size=(9, 21)),  # a small ring
    Case(batch=3, in_channels=128, out_channels=128, kernel=(3, 3), size=(14, 14), padding=(1, 1)),
    Case(batch=2, in_channels=100, out_channels=64, kernel=(1, 1), size=(32, 32)),
    Case(batch=2, in_channels=96, out_channels=200, kernel=(3, 3), size=(9, 20)),
    Case(batch=2, in_channels=192, out_channels=64, kernel=(2, 2), stride=(2, 2), size=(8, 16)),
    Case(batch=5, in_channels=256, out_channels=130, kernel=(3, 3), size=(7, 7), padding=(1, 1)),
]


@pytest.mark.parametrize("case", swept(MANY_CHANNELS, (2, 4)), ids=str)
def test_blocks_of_inputs_side_by_side(emulated_conv, case):
    for dtype in (torch.float32, *LOW):
        with emulated_conv.on(seed=3, detect_races=True), forced("hopper"), tf32(True):
            check(emulated_conv, case, case.tensors(dtype), True)
            assert emulated_conv.races() == []


SMALL_IMAGES = [
    Case(batch=9, in_channels=64, out_channels=64, kernel=(3, 3), size=(7, 7), padding=(1, 1)),
    Case(batch=5, in_channels=130, out_channels=96, kernel=(3, 3), size=(5, 6), padding=(1, 1)),
    Case(batch=7, in_channels=33, out_channels=70, kernel=(2, 5), size=(4, 8), padding=(1, 0)),
    Case(batch=4, in_channels=20, out_channels=20, kernel=(3, 3), size=(3, 12), dilation=(3, 1)),
    Case(
        batch=6,
        in_channels=64,
        out_channels=40,
        kernel=(4, 4),
        stride=(2, 2),
        size=(8, 8),
        padding=(1, 1),
    ),
    Case(
        batch=3,
        in_channels=16,
        out_channels=24,
        kernel=(5, 3),
        stride=(3, 1),
        size=(4, 9),
        padding=(2, 1),
        output_padding=(2, 0),
        groups=1,
    ),
    Case(batch=3, in_channels=64, out_channels=64, kernel=(3, 3), size=(9, 8), padding=(4, 4)),
]


@pytest.mark.parametrize("case", swept(SMALL_IMAGES, (0, 3, 5)), ids=str)
def test_small_images_share_tiles(emulated_conv, case):
    for dtype in (torch.float32, *LOW):
        with emulated_conv.on(seed=2, detect_races=True), forced("hopper"), tf32(True):
            check(emulated_conv, case, case.tensors(dtype), True)
            assert emulated_conv.races() == []


TWO_APART = [
    Case(batch=2, in_channels=64, out_channels=64, kernel=(1, 1), stride=(2, 2), size=(9, 20)),
    Case(batch=2, in_channels=70, out_channels=20, kernel=(3, 3), stride=(1, 2), size=(8, 33)),
    Case(batch=3, in_channels=128, out_channels=130, kernel=(4, 4), stride=(2, 2), size=(16, 16)),
    Case(batch=1, in_channels=64, out_channels=70, kernel=(5, 2), stride=(3, 2), size=(7, 70)),
    Case(batch=2, in_channels=16, out_channels=64, kernel=(2, 7), stride=(2, 2), size=(5, 300)),
    Case(batch=2, in_channels=64, out_channels=3, kernel=(4, 4), stride=(2, 2), size=(8, 32)),
    Case(batch=1, in_channels=64, out_channels=64, kernel=(3, 1), stride=(1, 2), size=(6, 1)),
]


@pytest.mark.parametrize("case", swept(TWO_APART, (0, 1, 6)), ids=str)
def test_columns_two_apart(emulated_conv, case):
    """Also where a column, a row or all but one phase has no tap."""
    for padding in ((0, 0), (min(1, case.kernel[0] // 2), case.kernel[1] // 2)):
        padded = dataclasses.replace(case, padding=padding, output_padding=(0, 1))
        for dtype in (torch.float32, *LOW):
            with emulated_conv.on(seed=4, detect_races=True), forced("hopper"), tf32(True):
                check(emulated_conv, padded, padded.tensors(dtype), True)
                assert emulated_conv.races() == []


def test_all_processors_at_once(emulated_conv):
    """As many blocks as an H200 has processors: most of them with nothing to do."""
    case = Case(in_channels=64, out_channels=128, kernel=(3, 5), size=(16, 40))
    with emulated_conv.on(emulator.FULL_HOPPER), forced("hopper"), tf32(True):
        check(emulated_conv, case, case.tensors(), True)


def test_another_gpu_takes_the_portable_kernel(emulated_conv):
    case = Case(in_channels=64, out_channels=128, kernel=(3, 5), size=(16, 40))
    operands = case.tensors()
    with emulated_conv.on(emulator.AMPERE), tf32(True):
        with forced("auto"):
            check(emulated_conv, case, operands, True)
        with forced("hopper"), pytest.raises(RuntimeError, match="forced by TCONV_KERNEL"):
            emulated_conv.operator(*operands, *case.parameters)


DEPTHWISE = Case(in_channels=24, out_channels=24, groups=24, kernel=(4, 4), stride=(2, 2))
FEW_CHANNELS = [
    DEPTHWISE,
    Case(in_channels=64, out_channels=1, kernel=(4, 4), stride=(2, 2), padding=(1, 1)),
    dataclasses.replace(DEPTHWISE, kernel=(5, 3), stride=(1, 1), size=(20, 70)),
]


@pytest.mark.parametrize("case", swept(FEW_CHANNELS, (0, 1)), ids=str)
def test_few_channels_take_the_direct_kernel(emulated_conv, case):
    for dtype in (torch.float32, *LOW):
        x, weight, bias = case.tensors(dtype)
        with emulated_conv.on(), tf32(True):
            with forced("auto"):
                check(emulated_conv, case, (x, weight, bias), True)
                chosen = emulated_conv.operator(x, weight, bias, *case.parameters)
            with forced("direct"):
                assert torch.equal(
                    chosen, emulated_conv.operator(x, weight, bias, *case.parameters)
                )


@pytest.mark.parametrize("kernel", ["portable", "hopper"])
@pytest.mark.parametrize(
    ("factor", "special"),
    swept(
        [(1e30, None), (1e-12, None), (1.0, 1e6), (1.0, float("nan")), (1.0, float("inf"))],
        kept=(0, 3),
        names=2,
    ),
)
def test_what_fp16_containers_cannot_hold(emulated_conv, kernel, factor, special):
    case = Case(in_channels=64, out_channels=64, kernel=(3, 3), size=(9, 24), bias=False)
    x, weight, _ = case.tensors()
    x = x * factor
    if special is not None:
        x[1, 3, 4, 5] = special
    with emulated_conv.on(), forced(kernel), tf32(True):
        y = emulated_conv.operator(x, weight, None, *case.parameters)
    exact = case.reference(x, weight, None)
    finite = exact.isfinite()
    assert torch.equal(y.isfinite(), finite) and torch.equal(y.isnan(), exact.isnan())
    bound = conv_bound(case, x, weight, None, torch.float32, tf32=True)
    assert_within(y[finite], exact[finite], bound[finite])
