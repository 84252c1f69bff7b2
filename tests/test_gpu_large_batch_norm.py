"""nn.BatchNorm2d by kernels of ours on a Hopper GPU."""

import copy

import pytest
import torch
from torch import nn

from tests.batch_norm_tools import CASES, NormCase, random_case
from tests.builds_ahead import MANY_CHANNELS

pytestmark = pytest.mark.gpu
LARGE = [
    NormCase(8, 64, (64, 512)),
    NormCase(8, 16, (64, 512), softmax=True),
    NormCase(3, 7, (451, 449), mean=50.0, momentum=None),
]


@pytest.fixture(scope="module")
def normalise(shelf):
    return shelf[MANY_CHANNELS].solution["_batch_norm_kernels"]()


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
