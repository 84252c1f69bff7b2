"""Transposed convolutions of one and three dimensions on a CUDA GPU: random layers in every
precision, with gradients, within bounds from float64.
"""

import pytest
import torch

from generator.runtime.dimensions import _in_one_dimension
from tests.gpu_tools import LOW, tf32
from tests.random_dimensions import alike_residues, few_channels, layer, volume

pytestmark = pytest.mark.gpu

# Of an operand or a result: 11 significant bits, 8, and fp32's after sums of some hundred products.
ROUNDINGS = {
    "tf32": (torch.float32, True, 2.0**-11),
    "fp32": (torch.float32, False, 2.0**-20),
    "fp16": (torch.float16, True, 2.0**-11),
    "bf16": (torch.bfloat16, True, 2.0**-8),
    "fp64": (torch.float64, True, 2.0**-44),
}


def magnitudes(case, operands) -> list:
    """Sums of the absolute values of all products, of the output and of every gradient."""
    leaves = [None if t is None else t.detach().abs().requires_grad_() for t in operands]
    out = case.reference(*leaves)
    return [out.detach(), *gradients(out, leaves)]


def gradients(out, operands) -> list:
    """For a gradient of ones."""
    return list(torch.autograd.grad(out.sum(), [t for t in operands if t is not None]))


def lifted(solution, count, *arguments):
    """The operator of a solution with layers of three dimensions, in `count` dimensions."""
    if count == 1:
        return _in_one_dimension(solution["_operator"], *arguments)
    chain = solution["_CHAIN"], solution["_CHAIN_NUMBER"]
    return solution["_in_three_dimensions"](solution["_operator"], "", chain, *arguments)


KINDS = {
    "1d": (1, layer),
    "3d": (3, layer),
    "volumes": (3, lambda count, seed: volume(seed)),
    "residues": (3, lambda count, seed: alike_residues(seed)),
    "groups": (3, lambda count, seed: few_channels(seed)),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rounding", ROUNDINGS)
@pytest.mark.parametrize("gradients_too", [True, False])
def test_random_layers(shelf, kind, rounding, gradients_too):
    solution = shelf["volume_only"].solution
    dtype, allowed, step = ROUNDINGS[rounding]
    count, make = KINDS[kind]
    computed = 0
    for seed in range(1000, 1060):
        case = make(count, seed)
        operands = case.operands(dtype, "cuda")
        exact = [None if t is None else t.detach().double().cpu() for t in operands]
        exact = [None if t is None else t.requires_grad_() for t in exact]
        try:
            wanted = case.reference(*exact)
        except RuntimeError:
            continue
        if wanted.numel() == 0:
            continue
        with tf32(allowed), torch.set_grad_enabled(gradients_too):
            out = lifted(solution, count, *operands, *case.parameters)
            found = [out.detach(), *(gradients(out, operands) if gradients_too else ())]
        truth = [wanted.detach(), *gradients(wanted, exact)]
        for ours, theirs, most in zip(found, truth, magnitudes(case, exact), strict=False):
            error = (ours.double().cpu() - theirs).abs()
            assert bool((error <= 4 * step * most + 1e-30).all()), (case, float(error.max()))
        computed += 1
    assert computed > 25


@pytest.mark.parametrize("shape", [(2, 32, 9, 40, 64), (1, 48, 7, 33, 34), (2, 128, 5, 20, 28)])
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("size", [1.0, 1e-6, 1e5])
def test_the_kernel_in_place_is_right(shelf, shape, stride, size):
    """No layout is copied: larger layers, and values that fp16 containers do not hold."""
    solution = shelf["volume_only"].solution
    made = torch.Generator().manual_seed(stride)
    x = torch.randn(shape, generator=made) * size
    weight, bias = torch.randn(shape[1], 40, 3, 3, 5, generator=made), torch.zeros(40)
    axes = [(stride,) * 3, (1, 0, 1), (stride - 1,) * 3, (1, 1, 1)]
    with tf32(True), torch.no_grad():
        out = solution["_whole_volumes"](
            None, "", (), x.cuda(), weight.cuda(), bias.cuda(), axes, 1, ()
        )
    conv = torch.nn.functional.conv_transpose3d
    exact = x.double(), weight.double(), bias.double()
    numbers = axes[0], axes[1], axes[2], 1, axes[3]
    wanted, most = conv(*exact, *numbers), conv(*[t.abs() for t in exact], *numbers)
    assert bool(((out.double().cpu() - wanted).abs() <= 4 * 2.0**-11 * most).all())


@pytest.mark.parametrize(
    ("channels", "groups", "stride", "kernel"),
    [(64, 1, 2, 3), (48, 1, 1, 3), (32, 4, 2, 3), (32, 1, 2, 2), (40, 1, 1, 2), (24, 1, 1, 2)],
)
@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("outlier", [False, True])
def test_both_gradients_from_one_packing(
    shelf, channels, groups, stride, kernel, batch, dtype, outlier
):
    """Larger layers, served by the one operator where no tap is absent, or containers have a guard;
    with a value that containers do not hold.
    """
    made = torch.Generator().manual_seed(channels + batch)
    x = torch.randn((batch, 32, 7, 30, 34), generator=made, dtype=dtype)
    weight = torch.randn((32, channels // groups, *[kernel] * 3), generator=made, dtype=dtype)
    axes = [(stride,) * 3, (1,) * 3, (stride - 1,) * 3, (1,) * 3]
    exact = [t.double().requires_grad_() for t in (x, weight)]

    def conv(x, weight):
        return torch.nn.functional.conv_transpose3d(
            x, weight, None, axes[0], axes[1], axes[2], groups, axes[3]
        )

    out = conv(*exact)
    grad = torch.randn(out.shape, generator=made, dtype=dtype)
    if outlier:
        grad *= 1e-3
        grad[0, 1, 2, 3, 4] = 1e4
    operator = shelf["volume_only"].solution["_gradient_library"]().depth_gradients.default
    numbers = [number for axis in axes for number in axis]
    found = operator(grad.cuda(), x.cuda(), weight.cuda(), None, *numbers, groups, True)
    # Absent taps: nothing says where infinity is. 24 channels: a tap's would more than double.
    if (dtype == torch.float16 and kernel % stride != 0) or channels == 24:
        assert [t.numel() for t in found] == [0, 0]
        return
    wanted = torch.autograd.grad(out, exact, grad.double())
    sizes = [t.detach().abs().requires_grad_() for t in exact]
    most = torch.autograd.grad(conv(*sizes), sizes, grad.double().abs())
    step = 2.0**-11
    for ours, theirs, size in zip(found, wanted, most, strict=True):
        error = (ours.view(theirs.shape).double().cpu() - theirs).abs()
        assert bool((error <= 4 * step * size + 1e-7).all()), float((error / size).max())


@pytest.mark.parametrize("kernel", [(3, 3, 3), (2, 2, 3), (3, 5, 4), (2, 3, 3)], ids=str)
@pytest.mark.parametrize("channels", [8, 24, 32, 48])
@pytest.mark.parametrize("dtype", [torch.float32, *LOW], ids=str)
@pytest.mark.parametrize("outlier", [False, True])
def test_the_weights_gradient_alone(shelf, kernel, channels, dtype, outlier):
    """Of whole volumes; planes of at most 32 channels have narrow pixels."""
    made = torch.Generator().manual_seed(channels)
    x = torch.randn((2, 40, 6, 37, 98), generator=made).to(dtype)
    weight = torch.zeros((40, channels, *kernel), dtype=dtype)
    axes = [(1, 1, 1), (1, 1, 0), (0, 0, 0), (1, 1, 1)]
    exact = weight.double().requires_grad_()

    def conv(x, weight):
        return torch.nn.functional.conv_transpose3d(x, weight, None, axes[0], axes[1])

    out = conv(x.double(), exact)
    grad = torch.randn(out.shape, generator=made).to(dtype)
    if outlier:
        grad *= 1e-3
        grad[0, 1, 2, 3, 4] = 1e4
    operator = shelf["volume_only"].solution["_gradient_library"]().depth_weight_gradient.default
    numbers = [number for axis in axes for number in axis]
    found = operator(grad.cuda(), x.cuda(), weight.cuda(), None, *numbers, 1, True)
    (wanted,) = torch.autograd.grad(out, exact, grad.double())
    magnitude = conv(x.double().abs(), exact)
    (most,) = torch.autograd.grad(magnitude, exact, grad.double().abs())
    step = 2.0**-8 if dtype == torch.bfloat16 else 2.0**-11
    error = (found.view(wanted.shape).double().cpu() - wanted).abs()
    assert bool((error <= 4 * step * most + 1e-7).all()), float((error / most).max())
