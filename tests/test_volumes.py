"""Transposed convolutions of three dimensions that the CPU's kernel reads and writes in place:
outputs and gradients are float64's, for random layers; what is declined.
"""

import pytest
import torch
import torch.nn.functional as F

from tests.builds_ahead import VOLUME_ONLY
from tests.random_dimensions import layer, volume
from tests.solution_tools import relative_error
from tests.sweeps import swept

LAYERS = 100
# With few channels, and with so many that they are packed in several blocks.
DRAWN = {"narrow": lambda seed: layer(3, seed), "wide": volume}
GRID = [(drawn, start) for start in range(0, 8 * LAYERS, LAYERS) for drawn in DRAWN]


@pytest.fixture(scope="module")
def solution(shelf):
    return shelf[VOLUME_ONLY].solution


def lifted(solution, *arguments):
    operator = solution["_operator"]
    return solution["_in_three_dimensions"](operator, "", ((), 0), *arguments)


def in_place(solution, x, weight, bias, *numbers):
    """The operator's result for x, None where it declines; parameters as tuples."""
    *axes, groups = numbers
    return solution["_whole_volumes"](None, "", ((), 0), x, weight, bias, axes, groups, ())


def assert_near(found, exact, case):
    """Within fp32's rounding of the largest."""
    near = {"rtol": 1e-5, "atol": 1e-6 * (float(exact.abs().max()) + 1)}
    torch.testing.assert_close(found.double(), exact, msg=str(case), **near)


@pytest.mark.parametrize(("drawn", "start"), swept(GRID, (0, 1), names=2))
def test_random_layers(solution, drawn, start):
    served = 0
    for seed in range(start, start + LAYERS):
        case = DRAWN[drawn](seed)
        exact = case.operands()
        given = [None if t is None else t.detach().float().requires_grad_() for t in exact]
        try:
            expected = case.reference(*exact)
        except RuntimeError:
            with pytest.raises(RuntimeError, match="conv_transpose"):
                lifted(solution, *given, *case.parameters)
            continue
        if expected.numel() == 0:
            continue
        out = lifted(solution, *given, *case.parameters)
        assert out.dtype is torch.float32 and out.shape == expected.shape, case
        assert_near(out.detach(), expected.detach(), case)
        count = torch.arange(out.numel(), dtype=torch.float64)
        weights = (1.5 + torch.cos(count)).reshape(out.shape)  # sums that do not cancel
        leaves = [[t for t in tensors if t is not None] for tensors in (given, exact)]
        found = torch.autograd.grad((out * weights.float()).sum(), leaves[0])
        wanted = torch.autograd.grad((expected * weights).sum(), leaves[1])
        for ours, theirs in zip(found, wanted, strict=True):
            assert_near(ours, theirs, case)
        batched = given[0] if given[0].dim() == 5 else given[0].unsqueeze(0)
        served += in_place(solution, batched, *given[1:], *case.parameters) is not None
    assert served > LAYERS / 6  # not those with residues that no tap reaches


NUMBERS = (2, 1, 1), (1, 0, 2), (0, 0, 0), (1, 2, 1)


def operands(dtype=torch.float32):
    generator = torch.Generator().manual_seed(1)
    shapes = (2, 6, 4, 5, 9), (6, 2, 3, 3, 4), (4,)
    return [torch.randn(shape, generator=generator).to(dtype) for shape in shapes]


@pytest.mark.parametrize("value", [float("inf"), float("nan")])
@pytest.mark.parametrize("of_weight", [True, False])
def test_non_finite_values_stay_where_their_products_are(solution, of_weight, value):
    x, weight, bias = operands()
    (weight if of_weight else x)[1, 0, 2, 1, 2] = value
    out = in_place(solution, x, weight, bias, *NUMBERS, 2)
    stride, padding, output_padding, dilation = NUMBERS
    expected = F.conv_transpose3d(
        *(t.double() for t in (x, weight, bias)), stride, padding, output_padding, 2, dilation
    )
    torch.testing.assert_close(out.double(), expected, rtol=1e-4, atol=1e-4, equal_nan=True)


@pytest.mark.parametrize("strange", ["channels_last", "expanded", "cut"])
def test_layouts(solution, strange):
    x, weight, bias = operands()
    if strange == "channels_last":
        x = x.contiguous(memory_format=torch.channels_last_3d)
    elif strange == "expanded":
        x = x[:1, :, :1].expand(2, 6, 4, 5, 9)
    else:
        x = torch.cat([x, x], 2)[:, :, 1:7:2, :, 1:]
    out = in_place(solution, x, weight, bias, *NUMBERS, 2)
    assert out.is_contiguous()
    assert torch.equal(out, in_place(solution, x.contiguous(), weight, bias, *NUMBERS, 2))


def test_what_is_declined_is_computed_by_slices(solution, monkeypatch):
    """Other dtypes, the plain kernel forced, slices that no tap reaches."""
    for dtype, bound in ((torch.float64, 1e-12), (torch.float16, 1e-3), (torch.bfloat16, 8e-3)):
        given = operands(dtype)
        assert in_place(solution, *given, *NUMBERS, 2) is None
        out = lifted(solution, *given, *NUMBERS, 2)
        stride, padding, output_padding, dilation = NUMBERS
        exact = F.conv_transpose3d(
            *(t.double() for t in given), stride, padding, output_padding, 2, dilation
        )
        assert out.dtype is dtype and relative_error(out, exact) < bound
    x, weight, bias = operands()
    apart = ((5, 1, 1), (0, 0, 0), (0, 0, 0), (1, 1, 1))  # three taps, five residues
    assert in_place(solution, x, weight, bias, *apart, 2) is None
    exact = F.conv_transpose3d(*(t.double() for t in (x, weight, bias)), apart[0], 0, 0, 2, 1)
    assert relative_error(lifted(solution, x, weight, bias, *apart, 2), exact) < 1e-6
    monkeypatch.setenv("TCONV_KERNEL", "plain")
    assert in_place(solution, x, weight, bias, *NUMBERS, 2) is None


def test_second_derivatives(solution):
    x, weight, bias = (t.requires_grad_() for t in operands())
    exact = [t.detach().double().requires_grad_() for t in (x, weight, bias)]
    stride, padding, output_padding, dilation = NUMBERS
    found = []
    for tensors, out in (
        ((x, weight), lifted(solution, x, weight, bias, *NUMBERS, 2)),
        (exact, F.conv_transpose3d(*exact, stride, padding, output_padding, 2, dilation)),
    ):
        (first,) = torch.autograd.grad(out.square().sum(), tensors[0], create_graph=True)
        found.append(torch.autograd.grad(first.square().sum(), tensors[1])[0])
    assert relative_error(found[0], found[1]) < 1e-5
