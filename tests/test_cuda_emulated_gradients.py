"""The convolution's gradients by the CUDA kernels, on the CPU, thread by thread: right for random
layers, magnitudes and layouts, the same bits whatever the order of warps, without races.
"""

import pytest
import torch
import torch.nn.functional as F

from tests.emulated_tools import forced, needs_cuda_headers
from tests.gpu_tools import LAYOUTS
from tests.gradient_tools import (
    ALL,
    CONV2D,
    DISTRIBUTIONS,
    call,
    check,
    check_conv2d,
    check_output,
    output_gradient,
    truth,
)
from tests.random_layers import random_layers
from tests.solution_tools import Case, relative_error
from tests.sweeps import swept

pytestmark = needs_cuda_headers

# How many of a seed's layers; the Hopper and the portable kernels refuse fp64, Hopper strict fp32.
COUNTS = {"plain": 6, "direct": 8, "portable": 10, "hopper": 14, "auto": 8}
TENSOR_CORES = ["portable", "hopper"]

CASES = {
    "wide": Case(in_channels=24, out_channels=20, size=(6, 20), kernel=(3, 5), padding=(1, 1)),
    "strided": Case(
        in_channels=12, out_channels=20, size=(5, 9), kernel=(3, 4), stride=(2, 3), padding=(1, 0)
    ),
}


@pytest.mark.parametrize("seed", swept([1, 2, 3]))
@pytest.mark.parametrize("kernel", COUNTS)
def test_random_layers(emulated_gradients, kernel, seed):
    wrong, computed = [], 0
    for layer in random_layers(seed, COUNTS[kernel], "small"):
        case = layer.case
        x, weight, _ = layer.tensors()
        grad = output_gradient(case, layer.dtype)
        races = kernel == "hopper"
        try:
            with emulated_gradients.on(seed=layer.index, detect_races=races), forced(kernel):
                check(emulated_gradients.backward, case, grad, x, weight, layer.allow_tf32)
                found = emulated_gradients.races()
        except (RuntimeError, AssertionError) as error:
            refused = "forced by TCONV_KERNEL" in str(error) and kernel not in ("plain", "auto")
            found = [] if refused else [str(error)]
            computed -= refused
        computed += 1
        wrong += [f"(seed {seed}, index {layer.index}) {layer}: {what}" for what in found[:1]]
    assert wrong == []
    assert computed >= COUNTS[kernel] // 4


SLIDING = Case(in_channels=12, out_channels=32, size=(7, 16), kernel=(3, 3))  # 18 columns


@pytest.mark.parametrize("dtype", swept([torch.float32, torch.float16]), ids=str)
@pytest.mark.parametrize("kernel", swept(COUNTS, (0, 3)))
def test_zeros_behind_each_row(emulated_gradients, kernel, dtype):
    """Up to whole vectors of columns, which the Hopper kernel then loads at once."""
    cases = [(SLIDING, SLIDING.tensors(dtype)[:2], True)]
    for layer in random_layers(5, COUNTS[kernel], "small"):
        cases.append((layer.case, layer.tensors()[:2], layer.allow_tf32))

    def with_zeros(grad, *rest):
        return emulated_gradients.backward(F.pad(grad, (0, -grad.shape[3] % 4)), *rest)

    computed = 0
    for case, (x, weight), allow_tf32 in cases:
        try:
            with emulated_gradients.on(), forced(kernel):
                check(with_zeros, case, output_gradient(case, x.dtype), x, weight, allow_tf32)
        except RuntimeError as error:
            assert "forced by TCONV_KERNEL" in str(error) and kernel not in ("plain", "auto")
            continue
        computed += 1
    assert computed >= COUNTS[kernel] // 4


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize("case", CONV2D)
def test_the_input_gradient_is_conv2d(emulated_gradients, case, dtype):
    with emulated_gradients.on():
        check_conv2d(emulated_gradients.backward, case, dtype, "cpu", True)


@pytest.mark.parametrize("kernel", COUNTS)
def test_the_output_once_more(emulated_gradients, kernel):
    computed = 0
    for layer in random_layers(4, COUNTS[kernel], "small"):
        x, weight, bias = layer.tensors()
        if bias is None:
            bias = torch.zeros(weight.shape[1] * layer.case.groups, dtype=weight.dtype)
        try:
            with emulated_gradients.on(seed=layer.index), forced(kernel):
                check_output(
                    emulated_gradients.convolve, layer.case, x, weight, bias, layer.allow_tf32
                )
            computed += 1
        except RuntimeError as error:
            assert "forced by TCONV_KERNEL" in str(error) and kernel not in ("plain", "auto")
    assert computed >= COUNTS[kernel] // 4


@pytest.mark.parametrize("size", [1e-9, 1e9])
@pytest.mark.parametrize("kernel", TENSOR_CORES)
def test_the_output_of_any_magnitude(emulated_gradients, kernel, size):
    case = CASES["wide"]
    x, weight, bias = case.tensors()
    with emulated_gradients.on(), forced(kernel):
        check_output(emulated_gradients.convolve, case, x * size, weight, bias * size, True)


@pytest.mark.parametrize("name", swept(DISTRIBUTIONS, (0, 2)))
@pytest.mark.parametrize("kernel", TENSOR_CORES)
def test_magnitudes(emulated_gradients, kernel, name):
    """No larger error than rounding operands to TF32 makes."""
    case = CASES["wide"]
    x, weight, _ = case.tensors()
    grad = DISTRIBUTIONS[name](output_gradient(case))
    with emulated_gradients.on(), forced(kernel):
        check(emulated_gradients.backward, case, grad, x, weight, True)


@pytest.mark.parametrize("name", ["1e-9", "1e8"])
def test_small_and_large_gradients_are_no_matter_for_the_guard(emulated_gradients, name):
    """The strict kernels behind the Hopper ones, which err by a thousandth as much, stay idle."""
    case = CASES["wide"]
    x, weight, _ = case.tensors()
    grad = DISTRIBUTIONS[name](output_gradient(case))
    with emulated_gradients.on(), forced("hopper"):
        found = call(emulated_gradients.backward, case, grad, x, weight, True)
    exact = truth(case, grad, x, weight)
    assert all(relative_error(found[i], exact[i]) > 1e-5 for i in range(2))


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
@pytest.mark.parametrize("kernel", ["auto", "portable"])
def test_strict_answers_to_fp32(emulated_gradients, kernel, case):
    x, weight, _ = case.tensors()
    grad = output_gradient(case)
    with emulated_gradients.on(), forced(kernel):
        found = check(emulated_gradients.backward, case, grad, x, weight, False)
    for got, exact in zip(found, truth(case, grad, x, weight), strict=True):
        assert relative_error(got, exact) <= 4e-7


@pytest.mark.parametrize("kernel", ["plain", *TENSOR_CORES])
@pytest.mark.parametrize(
    "needs", [(True, False, False), (False, True, False), (False, False, True)]
)
def test_only_what_is_asked_for(emulated_gradients, needs, kernel):
    case = CASES["strided"]
    x, weight, _ = case.tensors()
    grad = output_gradient(case)
    with emulated_gradients.on(), forced(kernel):
        wanted = call(emulated_gradients.backward, case, grad, x, weight, True)
        all_launches = emulated_gradients.launches()
    with emulated_gradients.on(), forced(kernel):
        found = check(emulated_gradients.backward, case, grad, x, weight, True, needs)
        assert emulated_gradients.launches() < all_launches
    for got, expected, asked in zip(found, wanted, needs, strict=True):
        assert not asked or torch.equal(got, expected)


GRAD_LAYOUTS = {
    "ones": lambda grad: torch.ones((), dtype=grad.dtype).expand(grad.shape),  # of y.sum()
    **{name: LAYOUTS[name] for name in ("channels_last", "transposed", "offset_1", "strided")},
    "channels_expanded": LAYOUTS["channels_expanded"],
}


KERNELS = ["plain", *TENSOR_CORES]
KERNELS_AND_LAYOUTS = [(kernel, layout) for layout in GRAD_LAYOUTS for kernel in KERNELS]


# Every kernel and every layout, not every pair.
@pytest.mark.parametrize(
    ("kernel", "layout"),
    swept(KERNELS_AND_LAYOUTS, range(1, len(KERNELS_AND_LAYOUTS), 4), names=2),
)
def test_layouts_of_the_incoming_gradient(emulated_gradients, kernel, layout):
    for case in CASES.values():
        x, weight, _ = case.tensors()
        grad = GRAD_LAYOUTS[layout](output_gradient(case))
        with emulated_gradients.on(), forced(kernel):
            check(emulated_gradients.backward, case, grad, x, weight, True)


@pytest.mark.parametrize("of_weight", [False, True])
def test_the_gradient_of_channels_last_is_channels_last(emulated_gradients, of_weight):
    case = CASES["wide"]
    x, weight, _ = case.tensors()
    if of_weight:
        weight = weight.to(memory_format=torch.channels_last)
    else:
        x = x.to(memory_format=torch.channels_last)
    with emulated_gradients.on():
        found = check(emulated_gradients.backward, case, output_gradient(case), x, weight, True)
    assert found[0].is_contiguous(memory_format=torch.channels_last)
    assert found[1].is_contiguous()


@pytest.mark.parametrize("case", swept(CASES.values()), ids=CASES)
@pytest.mark.parametrize("kernel", KERNELS)
def test_same_bits_whatever_the_order_of_warps(emulated_gradients, kernel, case):
    x, weight, _ = case.tensors(torch.bfloat16)
    grad = output_gradient(case, torch.bfloat16)
    results = []
    for seed in (0, 1, 2):
        with emulated_gradients.on(seed=seed), forced(kernel):
            results.append(call(emulated_gradients.backward, case, grad, x, weight, True))
    for other in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(results[0], other, strict=True))


@pytest.mark.parametrize("value", [float("inf"), float("nan")])
@pytest.mark.parametrize(
    ("kernel", "dtype"),
    swept(
        [(kernel, dtype) for kernel in TENSOR_CORES for dtype in (torch.float32, torch.float16)],
        (),
        names=2,
    ),
)
def test_non_finite_values_stay_where_their_products_are(emulated_gradients, kernel, dtype, value):
    """Tensor cores also multiply zeros that pad tiles; the plain kernel has the products alone."""
    for case in CASES.values():
        for of_x in (True, False):
            x, weight, _ = case.tensors(dtype)
            grad = output_gradient(case, dtype)
            (x if of_x else grad)[0, 2, 2, -1] = value
            found = []
            for forced_kernel in (kernel, "plain"):
                with emulated_gradients.on(), forced(forced_kernel):
                    found.append(call(emulated_gradients.backward, case, grad, x, weight, True))
            for got, expected in zip(*found, strict=True):
                assert torch.equal(got.isnan(), expected.isnan())
                assert torch.equal(got.isfinite(), expected.isfinite())


def test_long_walks(emulated_gradients):
    """More rows than are summed before sums are promoted, in several runs of a block."""
    case = Case(batch=2, in_channels=3, out_channels=5, size=(300, 3), kernel=(2, 1), bias=False)
    x, weight, _ = case.tensors(torch.float16)
    x, grad = x.abs(), output_gradient(case, torch.float16).abs()
    for kernel in TENSOR_CORES:
        with emulated_gradients.on(), forced(kernel):
            check(emulated_gradients.backward, case, grad, x, weight, True, (False, True, True))


def test_an_empty_batch_has_zeros(emulated_gradients):
    case = Case(batch=0)
    x, weight, _ = case.tensors()
    with emulated_gradients.on():
        found = call(emulated_gradients.backward, case, output_gradient(case), x, weight, True)
    assert [tuple(t.shape) for t in found] == [tuple(x.shape), tuple(weight.shape), (6,)]
    assert all(t.count_nonzero() == 0 for t in found)


def test_what_is_refused_is_named(emulated_gradients):
    case = CASES["wide"]
    x, weight, _ = case.tensors()
    grad = output_gradient(case)
    for wrong, said in (
        (
            grad[..., :-1],
            r"grad must have the output's shape \(2, 20, 6, 22\), got \(2, 20, 6, 21\)",
        ),
        (grad[0], r"grad must have the output's shape"),
        (grad.double(), r"grad must have the input's dtype, got grad torch.float64"),
    ):
        with pytest.raises(RuntimeError, match=said):
            call(emulated_gradients.backward, case, wrong, x, weight, True, ALL)


@pytest.fixture
def solution(shelf, emulated_gradients, monkeypatch):
    """Of 69, whose gradients come from the emulated kernels though its tensors are on the CPU."""
    solution = shelf["69"].solution
    monkeypatch.setitem(solution, "_GRADIENT_DEVICES", ("cpu",))
    monkeypatch.setitem(solution, "_backward_kernels", lambda: emulated_gradients.backward)
    return solution


@pytest.mark.parametrize("batched", [True, False])
@pytest.mark.parametrize("frozen", [None, "x", "weight", "bias"])
def test_autograd_asks_the_operator(solution, emulated_gradients, frozen, batched):
    case = CASES["strided"]
    operands = dict(zip(("x", "weight", "bias"), case.tensors(), strict=True))
    grad = output_gradient(case)
    if not batched:
        operands["x"], grad = operands["x"][0], grad[0]
    samples, sample_grads = (t.view(-1, *t.shape[-3:]) for t in (operands["x"], grad))
    expected = truth(case, sample_grads, samples, operands["weight"])
    for name, operand in operands.items():
        operand.requires_grad_(name != frozen)
    with emulated_gradients.on():
        solution["_operator"](*operands.values(), *case.parameters).backward(grad)
        assert emulated_gradients.launches() > 0
    for (name, operand), exact in zip(operands.items(), expected, strict=True):
        if name == frozen:
            assert operand.grad is None
        else:
            assert operand.grad.shape == operand.shape
            assert relative_error(operand.grad, exact.view(operand.shape)) <= 1e-3


def test_second_derivatives_are_pytorchs(solution, emulated_gradients):
    case = CASES["strided"]
    x, weight, bias = (t.double().requires_grad_() for t in case.tensors())
    with emulated_gradients.on():
        y = solution["_operator"](x, weight, bias, *case.parameters)
        (first,) = torch.autograd.grad(y.pow(2).sum(), x, create_graph=True)
        assert emulated_gradients.launches() == 0  # ATen's, which can be differentiated again
        (second,) = torch.autograd.grad(first.pow(2).sum(), weight)
    stride, padding, output_padding, dilation, groups = case.parameters
    y = torch.conv_transpose2d(x, weight, bias, stride, padding, output_padding, groups, dilation)
    (first,) = torch.autograd.grad(y.pow(2).sum(), x, create_graph=True)
    torch.testing.assert_close(second, torch.autograd.grad(first.pow(2).sum(), weight)[0])
