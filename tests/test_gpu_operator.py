"""The convolution's operator on a CUDA GPU: every kernel, dtype and layout against float64."""

import pytest
import torch

from tests.gpu_tools import (
    DTYPES,
    KERNELS,
    LAYOUTS,
    LOW,
    can_force,
    check,
    forced,
    moved,
    settings,
    tf32,
)
from tests.solution_tools import GRID, Case, assert_within, conv_bound, relative_error

pytestmark = pytest.mark.gpu

CHANNELS = [1, 3, 17, 64, 96, 128, 256]


@pytest.fixture(scope="module")
def operator(shelf):
    return shelf["69"].solution["_operator"]


@pytest.mark.parametrize("case", GRID, ids=str)
def test_truth_is_the_cpus(case):
    """What all else here is compared with."""
    operands = case.tensors(torch.float64, "cuda")
    exact = case.reference(*[None if t is None else t.cpu() for t in operands])
    bound = conv_bound(case, *operands, torch.float64)
    assert_within(case.reference(*operands), exact.cuda(), bound)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("case", GRID, ids=str)
def test_grid(operator, case, dtype, kernel):
    operands = case.tensors(dtype, "cuda")
    exact = case.reference(*operands)
    with forced(kernel):
        for allowed in settings(dtype):
            with tf32(allowed):
                if can_force(kernel, case, dtype, allowed) or exact.numel() == 0:
                    y = operator(*operands, *case.parameters)
                else:
                    with pytest.raises(RuntimeError, match="forced by TCONV_KERNEL"):
                        operator(*operands, *case.parameters)
                    continue
            assert y.is_contiguous() and y.dtype == dtype and y.device == operands[0].device
            rounded = allowed and dtype == torch.float32
            assert_within(y, exact, conv_bound(case, *operands, dtype, tf32=rounded))


@pytest.mark.parametrize("dtype", [torch.float32, *LOW], ids=str)
@pytest.mark.parametrize("out_channels", CHANNELS)
@pytest.mark.parametrize("in_channels", CHANNELS)
def test_hopper_with_any_channels(operator, in_channels, out_channels, dtype):
    """Forced also where the rule would take another kernel, with rows that end anywhere."""
    cases = [
        Case(in_channels=in_channels, out_channels=out_channels, size=(9, 21), kernel=(3, 5)),
        Case(
            in_channels=in_channels,
            out_channels=out_channels,
            size=(6, 20),
            kernel=(4, 4),
            stride=(2, 2),
            padding=(1, 1),
            bias=False,
        ),
    ]
    with forced("hopper"), tf32(True):
        for case in cases:
            operands = case.tensors(dtype, "cuda")
            y = operator(*operands, *case.parameters)
            bound = conv_bound(case, *operands, dtype, tf32=dtype == torch.float32)
            assert_within(y, case.reference(*operands), bound)


@pytest.mark.parametrize("kernel", ["hopper", "portable", "auto"])
@pytest.mark.parametrize("groups", [2, 3, 4])
def test_groups_of_odd_widths(operator, groups, kernel):
    case = Case(
        in_channels=groups * 33,
        out_channels=groups * 70,
        groups=groups,
        size=(7, 30),
        dilation=(2, 1),
    )
    with forced(kernel), tf32(True):
        for dtype in (torch.float32, torch.bfloat16):
            operands = case.tensors(dtype, "cuda")
            y = operator(*operands, *case.parameters)
            bound = conv_bound(case, *operands, dtype, tf32=dtype == torch.float32)
            assert_within(y, case.reference(*operands), bound)


def test_tf32_switch_changes_the_answer_at_call_time(operator):
    case = Case(in_channels=64, out_channels=64, kernel=(3, 5), size=(16, 32))
    x, weight, bias = case.tensors(torch.float32, "cuda")
    exact = case.reference(x, weight, bias)
    errors = []
    for allowed in (True, False, True):
        with tf32(allowed):
            errors.append(relative_error(operator(x, weight, bias, *case.parameters), exact))
    assert errors[1] < 3e-6 and errors[1] < errors[0] < 1e-3 and errors[0] == errors[2]


# Layouts ----------------------------------------------------------------------------------------

SMALL = Case(batch=2, in_channels=16, size=(8, 24), kernel=(3, 3), stride=(1, 2))
# Whole groups of channels and vectors of pixels: an aligned input is loaded in the fastest way.
WHOLE = Case(batch=2, in_channels=64, out_channels=64, size=(8, 32), kernel=(3, 3), padding=(1, 1))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts(operator, layout, dtype):
    for case in (SMALL, WHOLE):
        check(operator, case, dtype, x=LAYOUTS[layout](case.tensors(dtype, "cuda")[0]))


@pytest.mark.parametrize("dtype", [torch.float32, *LOW], ids=str)
@pytest.mark.parametrize("kernel", ["plain", "direct", "portable", "hopper"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts_by_kernel(operator, layout, kernel, dtype):
    x, weight, bias = WHOLE.tensors(dtype, "cuda")
    x = LAYOUTS[layout](x)
    with forced(kernel), tf32(True):
        y = operator(x, weight, bias, *WHOLE.parameters)
    bound = conv_bound(WHOLE, x, weight, bias, dtype, tf32=dtype == torch.float32)
    assert_within(y, WHOLE.reference(x, weight, bias), bound)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("dtype", [torch.float32, *LOW], ids=str)
def test_weights_at_any_address(operator, dtype, kernel):
    x, weight, bias = WHOLE.tensors(dtype, "cuda")
    weight, bias = moved(weight, 1), moved(bias, 3)
    with forced(kernel), tf32(True):
        y = operator(x, weight, bias, *WHOLE.parameters)
    bound = conv_bound(WHOLE, x, weight, bias, dtype, tf32=dtype == torch.float32)
    assert_within(y, WHOLE.reference(x, weight, bias), bound)


def test_operands_on_two_devices_are_an_error(operator):
    case = Case()
    x, weight, bias = case.tensors(torch.float32, "cuda")
    with pytest.raises(RuntimeError, match="weight must be on the input's device"):
        operator(x, weight.cpu(), bias, *case.parameters)
