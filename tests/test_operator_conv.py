"""Pattern 1 on the CPU: every parameter of ConvTranspose2d, every layout, every refusal."""

import dataclasses
import subprocess
import sys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.solution_tools import (
    CPU_KERNELS,
    GRID,
    ROOT,
    Case,
    assert_within,
    conv_bound,
    environment,
)


@pytest.fixture(scope="module")
def operator(shelf):
    return shelf["69"].solution["_operator"]


def check(operator, case: Case, dtype=torch.float32, seed=0):
    x, weight, bias = case.tensors(dtype, seed=seed)
    y = operator(x, weight, bias, *case.parameters)
    assert y.dtype == dtype and y.is_contiguous()
    bound = conv_bound(case, x, weight, bias, dtype)
    assert_within(y, case.reference(x, weight, bias), bound)


@pytest.mark.parametrize("kernel", CPU_KERNELS)
@pytest.mark.parametrize("case", GRID, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_grid(operator, case, dtype, kernel):
    with environment(TCONV_KERNEL=kernel):
        check(operator, case, dtype)


@pytest.mark.parametrize("kernel", CPU_KERNELS)
@pytest.mark.parametrize("in_channels", [3, 100])  # 100: more than are multiplied at once
@pytest.mark.parametrize("out_channels", range(1, 20))
def test_tiles_of_every_width(operator, in_channels, out_channels, kernel):
    case = Case(1, in_channels, out_channels, size=(4, 37), kernel=(3, 3), padding=(1, 0))
    with environment(TCONV_KERNEL=kernel):
        check(operator, case)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_low_precision_is_rounded_once(operator, dtype):
    case = Case(in_channels=8, kernel=(3, 5), stride=(2, 1))
    x, weight, bias = case.tensors(dtype)
    y = operator(x, weight, bias, *case.parameters)
    wide = operator(x.float(), weight.float(), bias.float(), *case.parameters)
    assert torch.equal(y, wide.to(dtype))


@st.composite
def cases(draw):
    groups = draw(st.integers(1, 3))
    kernel, stride, dilation = (
        draw(st.tuples(st.integers(1, high), st.integers(1, high))) for high in (5, 4, 4)
    )
    size = draw(st.tuples(st.integers(1, 9), st.integers(1, 20)))
    output_padding, padding = [], []
    for axis in range(2):
        output_padding.append(draw(st.integers(0, max(stride[axis], dilation[axis]) - 1)))
        full = (size[axis] - 1) * stride[axis] + dilation[axis] * (kernel[axis] - 1)
        padding.append(draw(st.integers(0, min(6, (full + output_padding[axis]) // 2))))
    return Case(
        batch=draw(st.sampled_from([None, 1, 2, 3])),
        in_channels=groups * draw(st.integers(1, 9)),
        out_channels=groups * draw(st.integers(1, 9)),
        size=size,
        kernel=kernel,
        stride=stride,
        padding=tuple(padding),
        output_padding=tuple(output_padding),
        dilation=dilation,
        groups=groups,
        bias=draw(st.booleans()),
    )


@settings(max_examples=150, deadline=None, derandomize=True)
@given(case=cases(), dtype=st.sampled_from([torch.float32, torch.float64]))
def test_any_parameters(operator, case, dtype):
    check(operator, case, dtype)


def _layouts(x):
    batch, channels, height, width = x.shape
    wide = torch.empty(batch, channels, 2 * height, 3 * width, dtype=x.dtype)
    wide[..., ::2, ::3] = x
    flat = torch.empty(x.numel() + 1, dtype=x.dtype)
    flat[1:] = x.reshape(-1)
    return {
        "channels_last": x.to(memory_format=torch.channels_last),
        "transposed": x.transpose(2, 3).contiguous().transpose(2, 3),
        "strided": wide[..., ::2, ::3],
        "offset": flat[1:].view(x.shape),
        "sliced_channels": torch.cat([x, x], 1)[:, :channels],
    }


@pytest.mark.parametrize("layout", _layouts(torch.empty(1, 1, 1, 1)))
def test_input_layouts(operator, layout):
    case = Case(in_channels=5, kernel=(3, 4), stride=(1, 2))
    x, weight, bias = case.tensors()
    other = _layouts(x)[layout]
    assert torch.equal(other, x)
    expected = operator(x, weight, bias, *case.parameters)
    y = operator(other, weight, bias, *case.parameters)
    assert_within(y, expected.double(), conv_bound(case, x, weight, bias, torch.float32))


def test_expanded_input_and_strided_parameters(operator):
    case = Case(batch=3)
    x, weight, bias = case.tensors()
    x = x[:1, :, :1].expand(3, -1, 7, -1)
    weight = weight.to(memory_format=torch.channels_last)
    bias = torch.stack([bias, bias], 1)[:, 0]
    y = operator(x, weight, bias, *case.parameters)
    assert_within(y, case.reference(x, weight, bias), conv_bound(case, x, weight, bias, y.dtype))


def test_inputs_are_left_alone_and_non_finite_values_stay(operator):
    case = Case()
    x, weight, bias = case.tensors()
    x[0, 1, 2, 3] = float("nan")
    x[1, 0, 0, 0] = float("inf")
    before = [t.clone() for t in (x, weight, bias)]
    y = operator(x, weight, bias, *case.parameters)
    for tensor, copy in zip((x, weight, bias), before, strict=True):
        assert torch.equal(tensor.nan_to_num(), copy.nan_to_num())
    exact = case.reference(x, weight, bias)
    assert torch.equal(y.isnan(), exact.isnan())
    assert torch.equal(y.isinf(), exact.isinf())


def test_results_do_not_depend_on_the_number_of_threads(operator):
    case = Case(in_channels=16, out_channels=24, size=(20, 30))
    tensors = case.tensors()
    results = []
    threads = torch.get_num_threads()
    for count in (1, 2):
        torch.set_num_threads(count)
        results.append(operator(*tensors, *case.parameters))
    torch.set_num_threads(threads)
    assert torch.equal(*results)


ILLEGAL = {
    "channels": (Case(), {"x": (2, 5, 7, 9)}, "4 channels"),
    "two dimensions": (Case(), {"x": (7, 9)}, "3 dimensions"),
    "five dimensions": (Case(), {"x": (1, 2, 4, 7, 9)}, "3 dimensions"),
    "empty height": (Case(), {"x": (2, 4, 0, 9)}, "only the batch may be empty"),
    "weight dimensions": (Case(), {"weight": (4, 6, 3)}, "weight must have 4 dimensions"),
    "bias length": (Case(), {"bias": (5,)}, "bias must have shape (6,)"),
    "groups": (Case(groups=3), {"weight": (4, 2, 3, 3)}, "divisible by groups"),
    "no groups": (dataclasses.replace(Case(), groups=0), {"weight": (4, 6, 3, 3)}, "groups"),
    "stride": (Case(stride=(0, 1)), {}, "stride must be positive"),
    "dilation": (Case(dilation=(1, 0)), {}, "dilation must be positive"),
    "padding": (Case(padding=(-1, 0)), {}, "padding must be non-negative"),
    "output padding": (Case(output_padding=(1, 0)), {}, "output_padding must be smaller"),
    "negative output padding": (
        Case(output_padding=(-1, 0), stride=(2, 2)),
        {},
        "output_padding must be non-negative",
    ),
    "three strides": (Case(stride=(1, 1, 1)), {}, "stride must be an int or a pair"),
    "no output": (Case(padding=(5, 0)), {}, "positive size"),
}


@pytest.mark.parametrize("name", ILLEGAL)
def test_illegal_arguments_raise_what_pytorch_raises(operator, name):
    case, shapes, message = ILLEGAL[name]
    defaults = {"x": (2, 4, 7, 9), "weight": (4, 6, 3, 3), "bias": (6,)}
    tensors = [torch.randn(shape) for shape in (defaults | shapes).values()]
    with pytest.raises(RuntimeError):
        torch.conv_transpose2d(
            *tensors, case.stride, case.padding, case.output_padding, case.groups, case.dilation
        )
    with pytest.raises(RuntimeError) as caught:
        operator(*tensors, *case.parameters)
    assert message in str(caught.value)


@pytest.mark.parametrize("which", ["weight", "bias"])
def test_mixed_dtypes_and_devices_raise(operator, which):
    case = Case()
    for change in (torch.Tensor.double, lambda t: t.to("meta")):
        tensors = dict(zip(("x", "weight", "bias"), case.tensors(), strict=True))
        tensors[which] = change(tensors[which])
        with pytest.raises(RuntimeError, match=which):
            operator(*tensors.values(), *case.parameters)


def test_integer_tensors_raise(operator):
    case = Case()
    tensors = [tensor.long() for tensor in case.tensors()]
    with pytest.raises(RuntimeError, match="input must be float32"):
        operator(*tensors, *case.parameters)


def test_forced_kernels(operator):
    case = Case()
    tensors = case.tensors()
    with environment(TCONV_KERNEL="hopper"), pytest.raises(RuntimeError, match="TCONV_KERNEL"):
        operator(*tensors, *case.parameters)
    with environment(TCONV_KERNEL="fastest"), pytest.raises(ValueError, match="'fastest'"):
        operator(*tensors, *case.parameters)


# Each line: a statement, then whether PyTorch's convolutions use TF32 after it. In a process of its
# own, because a
# mixture of old and new switches cannot be undone.
TF32_STATES = """
b = torch.backends                              | True
b.cudnn.allow_tf32 = False                      | False
b.cudnn.allow_tf32 = True                       | True
b.cudnn.conv.fp32_precision = "ieee"            | False
b.cudnn.allow_tf32 = True                       | True
b.cudnn.conv.fp32_precision = "none"            | False
b.cudnn.fp32_precision = "tf32"                 | True
b.cudnn.conv.fp32_precision = "ieee"            | False
b.cudnn.conv.fp32_precision = "tf32"            | True
b.cudnn.fp32_precision = "ieee"                 | True
b.cudnn.conv.fp32_precision = "none"            | False
b.cudnn.fp32_precision = "none"                 | False
b.fp32_precision = "tf32"                       | True
b.fp32_precision = "ieee"                       | False
b.cudnn.conv.fp32_precision = "tf32"            | True
b.cuda.matmul.fp32_precision = "ieee"           | True
b.cuda.matmul.allow_tf32 = True                 | True
b.cudnn.allow_tf32 = False                      | False
"""


def test_tf32_switches_old_and_new():
    lines = [line.split("|") for line in TF32_STATES.strip().splitlines()]
    script = ["import torch", "from generator.runtime.precision import _tf32_allowed"]
    for statement, allowed in lines:
        script += [statement.strip(), f"print(_tf32_allowed(), {allowed.strip()})"]
    run = subprocess.run(
        [sys.executable, "-c", "\n".join(script)], capture_output=True, text=True, cwd=ROOT
    )
    assert run.returncode == 0, run.stderr
    results = [line.split() for line in run.stdout.splitlines()]
    assert len(results) == len(lines)
    for (statement, _), (got, expected) in zip(lines, results, strict=True):
        assert got == expected, f"after `{statement.strip()}`: TF32 {got}, expected {expected}"
