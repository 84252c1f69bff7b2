"""The convolution's gradients on a CUDA GPU: values and errors beside cuDNN's, the same bits twice,
no convolution of PyTorch's or cuDNN's, graphs of whole steps, streams, large tensors.
"""

import dataclasses

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from tests.gpu_tools import DTYPES, LAYOUTS, LOW, captured, forced, settings, tf32
from tests.gradient_tools import (
    CONV2D,
    DISTRIBUTIONS,
    bounds,
    call,
    check,
    check_conv2d,
    check_output,
    output_gradient,
    truth,
)
from tests.solution_tools import GRID, Case, assert_within, relative_error

pytestmark = pytest.mark.gpu


def to_tf32(values: torch.Tensor) -> torch.Tensor:
    """fp32 values rounded to TF32's 11 significant bits, to nearest, ties to even."""
    mantissas, exponents = torch.frexp(values.double())
    return torch.ldexp((mantissas * 2**11).round(), exponents - 11).float()


KERNELS = ["auto", "plain", "direct", "portable", "hopper"]
CASES = {
    "wide": Case(
        in_channels=64, out_channels=64, kernel=(3, 7), size=(40, 120), batch=2, bias=False
    ),
    "blocks": Case(in_channels=96, out_channels=136, kernel=(3, 3), size=(20, 28), padding=(1, 1)),
    "strided": Case(
        in_channels=64, out_channels=48, kernel=(4, 4), size=(24, 40), stride=(2, 2), padding=(1, 1)
    ),
    "odd": Case(
        in_channels=32,
        out_channels=40,
        kernel=(3, 5),
        size=(17, 33),
        stride=(2, 3),
        dilation=(2, 1),
        padding=(2, 1),
        output_padding=(1, 2),
        groups=2,
    ),
}


@pytest.fixture(scope="module")
def solution(shelf):
    return shelf["69"].solution


@pytest.fixture(scope="module")
def backward(solution):
    return solution["_backward_kernels"]()


def cudnn(case, grad, x, weight):
    """What PyTorch calls on CUDA."""
    stride, padding, output_padding, dilation, groups = case.parameters
    return torch.ops.aten.convolution_backward.default(
        grad,
        x,
        weight,
        [case.out_channels],
        stride,
        padding,
        dilation,
        True,
        output_padding,
        groups,
        [True] * 3,
    )


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("case", [c for c in GRID if c.batch], ids=str)
def test_grid(backward, case, dtype, kernel):
    x, weight, _ = case.tensors(dtype, "cuda")
    grad = output_gradient(case, dtype, "cuda")
    with forced(kernel):
        for allowed in settings(dtype):
            try:
                check(backward, case, grad, x, weight, allowed)
            except RuntimeError as error:
                assert kernel not in ("auto", "plain") and "forced by TCONV_KERNEL" in str(error)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("case", CONV2D)
def test_the_input_gradient_is_conv2d(backward, case, dtype, kernel):
    with forced(kernel):
        for allowed in settings(dtype):
            try:
                check_conv2d(backward, case, dtype, "cuda", allowed)
            except RuntimeError as error:
                assert kernel not in ("auto", "plain") and "forced by TCONV_KERNEL" in str(error)


@pytest.mark.parametrize("name", ["normal", *DISTRIBUTIONS])
@pytest.mark.parametrize("kernel", ["auto", "portable", "hopper"])
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_no_worse_than_cudnn(backward, case, kernel, name):
    """At most 1.5 times the error of cuDNN's TF32, and twice that of its strict fp32."""
    x, weight, _ = case.tensors(torch.float32, "cuda")
    grad = output_gradient(case, device="cuda")
    if name != "normal":
        grad = DISTRIBUTIONS[name](grad.cpu()).cuda()
    exact = truth(case, grad, x, weight)
    for allowed, factor in ((True, 1.5), (False, 2.0)):
        if kernel == "hopper" and not allowed:
            continue
        with tf32(allowed), forced(kernel):
            ours = check(backward, case, grad, x, weight, allowed)
            theirs = cudnn(case, grad, x, weight)
        rounded = truth(case, *(to_tf32(t) for t in (grad, x, weight)))
        for got, their, wanted, tf32s in zip(ours, theirs, exact, rounded, strict=True):
            if wanted.count_nonzero() == 0:
                assert got.count_nonzero() == 0
                continue
            # cuDNN computes some shapes in fp32 though TF32 is allowed: then what TF32 makes.
            cudnns = relative_error(their, wanted)
            least = 1.05 * relative_error(tf32s, wanted) if allowed and cudnns < 1e-5 else 2e-7
            assert relative_error(got, wanted) <= max(factor * cudnns, least)


@pytest.mark.parametrize("kernel", ["auto", "portable", "hopper"])
def test_long_sums_of_one_sign(backward, kernel):
    """Two million products a value, in [0, 1): the tensor cores' own sums would drift."""
    case = Case(
        batch=8, in_channels=64, out_channels=64, kernel=(3, 3), size=(512, 512), bias=False
    )
    torch.manual_seed(0)
    _, weight, _ = dataclasses.replace(case, size=(1, 1)).tensors(torch.float32, "cuda")
    x = torch.rand((8, 64, 512, 512), device="cuda")
    grad = torch.rand((8, 64, 514, 514), device="cuda")
    needs = (False, True, True)
    with forced(kernel):
        _, got, bias = call(backward, case, grad, x, weight, True, needs)
    for tap in ((0, 0), (2, 1)):
        window = grad[:, :, tap[0] : tap[0] + 512, tap[1] : tap[1] + 512]
        exact = torch.zeros((64, 64), dtype=torch.float64, device="cuda")
        for n in range(8):
            exact += x[n].flatten(1).double() @ window[n].flatten(1).double().T
        assert relative_error(got[:, :, tap[0], tap[1]], exact) <= 3e-5
    assert relative_error(bias, grad.double().sum((0, 2, 3))) <= 1e-6


@pytest.mark.parametrize("dtype", [torch.float32, *LOW], ids=str)
@pytest.mark.parametrize("kernel", ["auto", "portable", "hopper"])
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_two_runs_give_the_same_bits(backward, case, kernel, dtype):
    x, weight, _ = case.tensors(dtype, "cuda")
    grad = output_gradient(case, dtype, "cuda")
    with forced(kernel):
        first = call(backward, case, grad, x, weight, True)
        again = call(backward, case, grad, x, weight, True)
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))


@pytest.mark.parametrize("layout", [*LAYOUTS, "ones"])
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_layouts(backward, case, layout):
    x, weight, _ = case.tensors(torch.float32, "cuda")
    grad = output_gradient(case, device="cuda")
    if layout == "ones":
        grad = torch.ones((), device="cuda").expand(grad.shape)
    else:
        x, grad = LAYOUTS[layout](x), LAYOUTS[layout](grad)
    check(backward, case, grad, x, weight, True)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_non_finite_where_products_have_them(backward, case, dtype, value):
    x, weight, _ = case.tensors(dtype, "cuda")
    grad = output_gradient(case, dtype, "cuda")
    grad[1, 5, 11, -1] = value
    found = call(backward, case, grad, x, weight, True)
    with forced("plain"):
        expected = call(backward, case, grad, x, weight, True)
    for got, wanted in zip(found, expected, strict=True):
        assert torch.equal(got.isnan(), wanted.isnan())
        assert torch.equal(got.isfinite(), wanted.isfinite())


def kernels_of(function) -> list[str]:
    """The names of the kernels that a call launches."""
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiled:
        function()
        torch.cuda.synchronize()
    cuda = torch.autograd.DeviceType.CUDA
    return [event.name for event in profiled.events() if event.device_type == cuda]


@pytest.mark.parametrize("dtype", [torch.float32, *LOW], ids=str)
@pytest.mark.parametrize("name", ["65", "69", "11", "19"])
def test_no_convolution_but_ours_in_backward(shelf, name, dtype):
    model, new = (m.cuda().to(dtype) for m in shelf[name].pair())
    x = torch.randn((2, 64, 32, 64), device="cuda", dtype=dtype, requires_grad=True)
    new(x).sum().backward()  # builds and loads
    y = new(x)
    grad = torch.randn_like(y)
    launched = kernels_of(lambda: y.backward(grad))
    assert any("weight_gradient" in kernel for kernel in launched)
    foreign = [k for k in launched if any(w in k for w in ("cudnn", "cutlass", "xmma", "wgrad"))]
    assert foreign == []


def test_a_graph_of_a_whole_step(shelf):
    """Forward, backward and optimiser, captured once: replays train as eager steps do."""
    models = [shelf["69"].pair()[1].cuda() for _ in range(2)]
    x = torch.randn((2, 64, 32, 64), device="cuda")
    optimisers = [torch.optim.SGD(m.parameters(), lr=1e-3) for m in models]

    def step(model, optimiser):
        optimiser.zero_grad(set_to_none=False)
        model(x).square().mean().backward()
        optimiser.step()

    for model in models:
        for parameter in model.parameters():
            parameter.grad = torch.zeros_like(parameter)
    start = [p.detach().clone() for p in models[0].parameters()]
    graph, _ = captured(lambda _: step(models[0], optimisers[0]), x)
    with torch.no_grad():
        for parameter, value in zip(models[0].parameters(), start, strict=True):
            parameter.copy_(value)
    for _ in range(3):
        x.normal_()
        graph.replay()
        torch.cuda.synchronize()
        step(models[1], optimisers[1])
    for ours, eager in zip(models[0].parameters(), models[1].parameters(), strict=True):
        assert torch.equal(ours, eager)


def test_on_another_stream(backward):
    case = CASES["wide"]
    x, weight, _ = case.tensors(torch.float32, "cuda")
    grad = output_gradient(case, device="cuda")
    expected = call(backward, case, grad, x, weight, True)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        torch.cuda._sleep(10**7)
        found = call(backward, case, grad, x, weight, True)
    torch.cuda.current_stream().wait_stream(stream)
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


def test_gradcheck_in_fp64(solution):
    case = Case(in_channels=4, out_channels=6, size=(4, 5), kernel=(3, 2), stride=(2, 1), groups=2)
    operands = [t.requires_grad_() for t in case.tensors(torch.float64, "cuda")]
    assert torch.autograd.gradcheck(
        lambda *o: solution["_operator"](*o, *case.parameters), operands, nondet_tol=0.0
    )


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_the_output_once_more(solution, case, dtype, kernel):
    x, weight, bias = case.tensors(dtype, "cuda")
    if bias is None:
        bias = torch.zeros(case.out_channels, dtype=dtype, device="cuda")
    convolve = solution["_gradient_library"]().convolve.default
    with forced(kernel):
        for allowed in settings(dtype):
            try:
                check_output(convolve, case, x, weight, bias, allowed)
            except RuntimeError as error:
                assert kernel not in ("auto", "plain") and "forced by TCONV_KERNEL" in str(error)


@pytest.mark.parametrize("kernel", ["auto", "portable"])  # the plain one takes minutes
def test_more_than_2_31_elements(backward, kernel):
    """The weight's and the bias's gradient of a batch whose last samples count, the input's where
    they lie.
    """
    case = Case(batch=33, in_channels=16, out_channels=64, size=(1024, 1024), kernel=(1, 1))
    if torch.cuda.mem_get_info()[0] < 30e9:
        pytest.skip("needs 30 GB of free GPU memory")
    weight = dataclasses.replace(case, size=(1, 1)).tensors(torch.float16, "cuda")[1]
    x = torch.zeros((33, 16, 1024, 1024), dtype=torch.float16, device="cuda")
    grad = torch.zeros((33, 64, 1024, 1024), dtype=torch.float16, device="cuda")
    last = dataclasses.replace(case, batch=1)
    x[32].normal_(), grad[32].normal_()
    with forced(kernel):
        found = call(backward, case, grad, x, weight, True)
    exact = truth(last, grad[32:], x[32:], weight)
    allowed = bounds(last, grad[32:], x[32:], weight, tf32=False)
    assert_within(found[0][32:], exact[0], allowed[0])
    assert found[0][:32].count_nonzero() == 0
    for got, wanted, bound in zip(found[1:], exact[1:], allowed[1:], strict=True):
        assert_within(got, wanted, bound)
