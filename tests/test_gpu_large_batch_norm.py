"""BatchNorm by kernels of ours on a Hopper GPU."""

import copy

import pytest
import torch
from torch import nn

from tests.batch_norm_tools import (
    CASES,
    GRADIENT_CASES,
    NormCase,
    random_case,
    random_gradient_case,
)
from tests.builds_ahead import MANY_CHANNELS

pytestmark = pytest.mark.gpu
LARGE = [
    NormCase(8, 64, (64, 512)),
    NormCase(8, 16, (64, 512), softmax=True),
    NormCase(3, 7, (451, 449), mean=50.0, momentum=None),
]
# Behind layers of one dimension and of three, too; planes that begin anywhere.
LARGE_GRADIENTS = [
    *(case for case in LARGE if not case.softmax),
    NormCase(5, 6, (31, 63, 63), mean=3.0),
    NormCase(9, 4, (70001,), affine=False),
    NormCase(3000, 8, (5, 9)),  # many small planes
]


@pytest.fixture(scope="module")
def normalise(shelf):
    return shelf[MANY_CHANNELS].solution["_batch_norm_library"]().normalise.default


@pytest.fixture(scope="module")
def backward(shelf):
    return shelf[MANY_CHANNELS].solution["_batch_norm_library"]().backward.default


@pytest.mark.parametrize("case", [*CASES, *LARGE], ids=str)
def test_right(normalise, case):
    case.check(normalise, "cuda")


@pytest.mark.parametrize("first", range(0, 400, 100))
def test_random_cases(normalise, first):
    for seed in range(first, first + 100):
        random_case(seed).check(normalise, "cuda")


@pytest.mark.parametrize("case", LARGE, ids=str)
def test_two_runs_give_the_same_bits(normalise, case):
    assert torch.equal(case.check(normalise, "cuda"), case.check(normalise, "cuda"))


@pytest.mark.parametrize("case", [*GRADIENT_CASES, *LARGE_GRADIENTS], ids=str)
def test_gradients(backward, case):
    case.check_gradients(backward, "cuda")


@pytest.mark.parametrize("first", range(0, 400, 100))
def test_gradients_of_random_cases(backward, first):
    for seed in range(first, first + 100):
        random_gradient_case(seed).check_gradients(backward, "cuda")


@pytest.mark.parametrize("case", LARGE_GRADIENTS, ids=str)
def test_two_runs_give_the_same_gradients(backward, case):
    found = [case.check_gradients(backward, "cuda") for _ in range(2)]
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


@pytest.mark.parametrize("case", [GRADIENT_CASES[0], LARGE_GRADIENTS[2]], ids=str)
def test_gradients_of_tensors_off_every_boundary(backward, case):
    value, weight = (case.tensors("cuda")[name] for name in ("value", "weight"))
    grad, numbers = case.grad("cuda"), (1e-5, True, True)
    plain = backward(grad, value, weight, *numbers)

    def shifted(t):
        return torch.cat([t.new_zeros(1), t.flatten()])[1:].view(t.shape)

    for g, v in ((grad, shifted(value)), (shifted(grad), value)):
        torch.testing.assert_close(backward(g, v, weight, *numbers), plain, rtol=1e-5, atol=1e-5)
    one = torch.tensor(0.25, device="cuda").expand(value.shape)
    found = [backward(g, value, weight, *numbers) for g in (one, one.contiguous())]
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


def test_volumes(shelf):
    if torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("BatchNorm is ours on Hopper alone")
    solution = shelf[MANY_CHANNELS].solution
    torch.manual_seed(0)
    x = torch.randn(4, 16, 31, 63, 63, device="cuda") + 3
    ours = nn.BatchNorm3d(16).cuda()
    theirs = copy.deepcopy(ours).double()
    assert solution["_norm_pays"](ours, x)
    with torch.no_grad():
        found, wanted = solution["_large_batch_norm"](ours, x), theirs(x.double())
    torch.testing.assert_close(found.double(), wanted, rtol=1e-5, atol=1e-5)
    for a, b in zip(ours.buffers(), theirs.buffers(), strict=True):
        torch.testing.assert_close(a.double(), b.double(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("softmax", [None, nn.Softmax(-1)], ids=str)
@pytest.mark.parametrize("arguments", [{}, {"momentum": None}, {"affine": False}], ids=str)
def test_modules_in_a_graph_and_out_of_it(shelf, arguments, softmax):
    if torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("BatchNorm is ours on Hopper alone")
    call = shelf[MANY_CHANNELS].solution["_large_batch_norm"]
    torch.manual_seed(0)
    x = torch.randn(8, 64, 128, 128, device="cuda")
    ours = nn.BatchNorm2d(64, **arguments).cuda()
    assert shelf[MANY_CHANNELS].solution["_norm_pays"](ours, x)
    theirs = copy.deepcopy(ours).double()
    with torch.no_grad():
        wanted = [(softmax or nn.Identity())(theirs(x.double())) for _ in range(3)]
        call(ours, x, softmax)
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            call(ours, x, softmax)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            found = call(ours, x, softmax)
        graph.replay()
    torch.testing.assert_close(found.double(), wanted[2], rtol=1e-5, atol=1e-5)
    for a, b in zip(ours.buffers(), theirs.buffers(), strict=True):
        torch.testing.assert_close(a.double(), b.double(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("arguments", [{}, {"momentum": None}, {"affine": False}], ids=str)
@pytest.mark.parametrize(
    ("kind", "shape"),
    [
        (nn.BatchNorm1d, (8, 16, 20001)),
        (nn.BatchNorm2d, (8, 64, 128, 128)),
        (nn.BatchNorm3d, (4, 16, 31, 63, 63)),
    ],
    ids=("1d", "2d", "3d"),
)
def test_training_steps_in_a_graph_and_out_of_it(shelf, kind, shape, arguments):
    """Result, gradients and what is kept between steps, beside float64."""
    if torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("BatchNorm is ours on Hopper alone")
    solution = shelf[MANY_CHANNELS].solution
    torch.manual_seed(0)
    x = (torch.randn(shape, device="cuda") + 3).requires_grad_()
    norm = kind(shape[1], **arguments).cuda()
    for parameter in norm.parameters():
        nn.init.uniform_(parameter, 0.5, 1.5)
    exact_x, exact = x.detach().double().requires_grad_(), copy.deepcopy(norm).double()
    assert solution["_kernels_serve"](norm, x)
    grad = torch.randn_like(x)

    def step():
        y = solution["_large_batch_norm"](norm, x)
        assert "_BatchNorm" in type(y.grad_fn).__name__
        return [y.detach(), *torch.autograd.grad(y, [x, *norm.parameters()], grad)]

    for _ in range(4):
        y = exact(exact_x)
        wanted = torch.autograd.grad(y, [exact_x, *exact.parameters()], grad.double())
    wanted = [y.detach(), *wanted]
    step()
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = step()
    graph.replay()
    for found in (captured, step()):
        for a, b in zip(found, wanted, strict=True):
            assert float((a.double() - b).norm() / b.norm()) < 1e-6
    for a, b in zip(norm.buffers(), exact.buffers(), strict=True):
        torch.testing.assert_close(a.double(), b.double(), rtol=1e-5, atol=1e-6)


def test_gradients_of_gradients(shelf):
    """PyTorch's, through the function of ours."""
    if torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("BatchNorm is ours on Hopper alone")
    call = shelf[MANY_CHANNELS].solution["_large_batch_norm"]
    torch.manual_seed(0)
    x = torch.randn(8, 64, 128, 128, device="cuda", requires_grad=True)
    norm = nn.BatchNorm2d(64).cuda()
    found = []
    for form in (call, lambda module, x: module(x)):
        y = form(norm, x)
        (first,) = torch.autograd.grad(y.square().sum() / 2 + y.sin().sum(), x, create_graph=True)
        found.append([first, *torch.autograd.grad(first.square().sum(), [x, norm.weight])])
    for a, b in zip(*found, strict=True):
        assert float((a - b).detach().norm()) <= 1e-4 * float(b.detach().norm())
