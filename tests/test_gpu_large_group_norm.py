"""nn.GroupNorm by kernels of ours on a Hopper GPU."""

import copy
import types

import pytest
import torch
from torch import nn

from tests.group_norm_tools import CASES, GroupCase, random_case
from tests.sanitizer_cases import GROUPED

pytestmark = pytest.mark.gpu
LARGE = [
    GroupCase(4, 32, 4, (33, 34, 35)),
    GroupCase(2, 6, 1, (450, 449), affine=False, mean=50.0),
    GroupCase(4, 64, 32, (64, 128), torch.float16),
    GroupCase(4, 64, 32, (16, 64, 32), torch.bfloat16),
]


@pytest.fixture(scope="module")
def library(shelf):
    namespace = shelf[GROUPED].solution["_group_norm_library"]()
    return types.SimpleNamespace(
        normalise=namespace.normalise.default, backward=namespace.backward.default
    )


@pytest.mark.parametrize("case", [*CASES, *LARGE], ids=str)
def test_right(library, case):
    case.check(library, "cuda")


@pytest.mark.parametrize("first", range(0, 400, 100))
def test_random_cases(library, first):
    for seed in range(first, first + 100):
        random_case(seed).check(library, "cuda")


@pytest.mark.parametrize("case", LARGE, ids=str)
def test_two_runs_give_the_same_bits(library, case):
    pairs = zip(case.check(library, "cuda"), case.check(library, "cuda"), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)


@pytest.mark.parametrize("case", [CASES[0], CASES[3], CASES[-1]], ids=str)
def test_a_tensor_off_every_boundary(library, case):
    value, weight, bias, grad = case.tensors("cuda")
    shifted = torch.cat([value.new_zeros(1), value.flatten()])[1:].view(value.shape)
    numbers = case.groups, 1e-5
    found, plain = (library.normalise(v, weight, bias, *numbers) for v in (shifted, value))
    torch.testing.assert_close(found, plain, rtol=1e-6, atol=1e-6)
    grads = [library.backward(grad, v, weight, *numbers, True, True) for v in (shifted, value)]
    torch.testing.assert_close(*grads, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("affine", [True, False])
def test_modules_in_a_graph_and_out_of_it(shelf, affine):
    """A step, and the same captured, beside float64."""
    if torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("GroupNorm is ours on Hopper alone")
    solution = shelf[GROUPED].solution
    torch.manual_seed(0)
    x = torch.randn(4, 32, 9, 64, 64, device="cuda", requires_grad=True)
    norm = nn.GroupNorm(4, 32, affine=affine).cuda()
    assert solution["_group_norm_pays"](norm, x)
    leaves, grad = [x, *norm.parameters()], torch.randn_like(x)

    def step():
        y = solution["_large_group_norm"](norm, x)
        return [y, *torch.autograd.grad(y, leaves, grad)]

    exact_x, exact = x.detach().double().requires_grad_(), copy.deepcopy(norm).double()
    y = exact(exact_x)
    wanted = [y, *torch.autograd.grad(y, [exact_x, *exact.parameters()], grad.double())]
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
            assert float((a.detach().double() - b.detach()).norm() / b.detach().norm()) < 1e-6


def test_a_model_calls_them(shelf):
    """Where sizes are large; its output and gradients beside eager's in float64."""
    solution = shelf[GROUPED].solution
    torch.manual_seed(0)
    ours = solution["ModelNew"](8, 2).cuda()
    reference = shelf.reference(GROUPED)["Model"](8, 2).double().cuda()
    reference.load_state_dict(ours.state_dict())
    x = torch.rand(2, 16, 16, 62, 31, device="cuda", requires_grad=True)
    skip = torch.rand(2, 8, 32, 64, 63, device="cuda", requires_grad=True)
    assert skip.numel() > solution["_MANY_NORMED"]
    found = ours(x, skip)
    exact = [t.detach().double().requires_grad_() for t in (x, skip)]
    wanted = reference(*exact)
    grad = torch.randn_like(found)
    pairs = zip(
        (found, *torch.autograd.grad(found, [x, skip, *ours.parameters()], grad)),
        (wanted, *torch.autograd.grad(wanted, [*exact, *reference.parameters()], grad.double())),
        strict=True,
    )
    for a, b in pairs:
        assert float((a.detach().double() - b.detach()).norm() / b.detach().norm()) < 5e-3
