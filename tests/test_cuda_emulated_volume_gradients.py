"""The weight's gradient of three dimensions, from x and grad where they are, on the CPU, thread by
thread: right for random layers, layouts and magnitudes, without races; what is declined.
"""

import itertools

import pytest
import torch

from tests.cuda_emulator import emulator
from tests.emulated_tools import forced, needs_cuda_headers
from tests.gpu_tools import inside
from tests.gradient_tools import DISTRIBUTIONS
from tests.random_dimensions import Layer, volume
from tests.solution_tools import assert_within, bound_factor
from tests.sweeps import swept

pytestmark = needs_cuda_headers
LAYERS = 24
DTYPES = (torch.float32, torch.float16, torch.bfloat16)
KERNELS = ("hopper", "portable")
GRID = list(itertools.product(KERNELS, DTYPES, range(0, 4 * LAYERS, LAYERS)))
LAYOUTS = {
    "channels_last": lambda grad: grad.to(memory_format=torch.channels_last_3d),
    "window": lambda grad: inside(grad, (0, 1, 1, 0, 2), (0, 0, 1, 1, 0), (1, 1, 2, 1, 1)),
    "columns_apart": lambda grad: inside(grad, (0,) * 5, (0,) * 5, (1, 1, 1, 1, 2)),
    "sum": lambda grad: grad[:1, :1, :1, :1, :1].expand(grad.shape),
    "contiguous": lambda grad: grad,
}


def operands(case: Layer, dtype) -> tuple:
    """(x, weight, grad), x batched; None where the layer has no output."""
    x, weight, _ = (None if t is None else t.detach() for t in case.operands(dtype))
    try:
        shape = case.reference(x.double(), weight.double(), None).shape
    except RuntimeError:
        return None
    generator = torch.Generator().manual_seed(case.seed)
    grad = torch.randn(shape, generator=generator).to(dtype)
    return (x, weight, grad) if x.dim() == 5 else (x.unsqueeze(0), weight, grad.unsqueeze(0))


def found_in(library, case: Layer, x, weight, grad, tf32=True):
    """The operator's result, or None where it declines."""
    numbers = [number for axis in case.parameters[:-1] for number in axis]
    run = library.namespace.depth_weight_gradient.default
    out = run(grad, x, weight, None, *numbers, case.groups, tf32)
    return out.view(weight.shape) if out.numel() else None


def exact(case: Layer, x, weight, grad) -> torch.Tensor:
    """In float64, every tap from exactly its own products."""
    x, grad = x.double().unflatten(1, (case.groups, -1)), grad.double()
    grad = grad.unflatten(1, (case.groups, -1))
    found = torch.zeros(weight.shape, dtype=torch.float64)
    axes = list(zip(case.stride, case.padding, case.dilation, strict=True))
    for tap in itertools.product(*map(range, case.kernel)):
        reads, of = [], []
        for axis, (stride, padding, dilation) in enumerate(axes):
            places = torch.arange(x.shape[3 + axis])
            outputs = places * stride - padding + tap[axis] * dilation
            there = (outputs >= 0) & (outputs < grad.shape[3 + axis])
            reads.append(places[there])
            of.append(outputs[there])
        from_x, from_grad = x, grad
        for axis, (read, output) in enumerate(zip(reads, of, strict=True)):
            from_x = from_x.index_select(3 + axis, read)
            from_grad = from_grad.index_select(3 + axis, output)
        pairs = torch.einsum("ngidhw,ngodhw->gio", from_x, from_grad)
        found[:, :, *tap] = pairs.flatten(0, 1)
    return found


def check(library, case: Layer, x, weight, grad) -> bool:
    """Is it served? Then within its bound."""
    found = found_in(library, case, x, weight, grad)
    if found is None:
        return False
    products = x.shape[0] * x[0, 0].numel()
    bound = bound_factor(products, x.dtype, x.dtype, tf32=x.dtype == torch.float32)
    most = exact(case, x.abs(), weight, grad.abs())
    assert found.dtype == x.dtype
    try:
        wanted = exact(case, x, weight, grad)
        assert_within(found, wanted, bound * most + torch.finfo(x.dtype).tiny)
    except AssertionError as error:
        raise AssertionError(f"{case}: {error}") from error
    return True


def of_kind(**changes) -> Layer:
    """A small layer whose taps of depth go beyond x."""
    given = {
        "seed": 1,
        "batch": 2,
        "channels": 16,
        "out_channels": 12,
        "size": (3, 4, 9),
        "kernel": (3, 2, 3),
        "stride": (2, 1, 2),
        "padding": (1, 0, 1),
        "output_padding": (1, 0, 0),
        "dilation": (1, 1, 1),
        "groups": 1,
        "bias": False,
        "layout": "contiguous",
    }
    return Layer(**(given | changes))


def test_the_reference_is_pytorchs():
    case = of_kind(groups=2, dilation=(2, 1, 3))
    x, weight, grad = operands(case, torch.float64)
    leaf = weight.clone().requires_grad_()
    (wanted,) = torch.autograd.grad(case.reference(x, leaf, None), leaf, grad)
    torch.testing.assert_close(exact(case, x, weight, grad), wanted, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ("kernel", "dtype", "start"), swept(GRID, lambda given: given[2] == 0, names=3)
)
def test_random_layers(emulated_volume_gradients, kernel, dtype, start):
    served = 0
    for seed in range(start, start + LAYERS):
        case = volume(seed)
        made = operands(case, dtype)
        if made is None or made[2].numel() == 0:
            continue
        x, weight, grad = made
        grad = list(LAYOUTS.values())[seed % len(LAYOUTS)](grad)
        races = kernel == "hopper"
        with emulated_volume_gradients.on(seed=seed, detect_races=races), forced(kernel):
            served += check(emulated_volume_gradients, case, x, weight, grad)
            assert emulated_volume_gradients.races() == [], case
    assert served > LAYERS / 2


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("kernel", KERNELS)
def test_layouts_of_the_incoming_gradient(emulated_volume_gradients, kernel, layout):
    for dtype, width in ((torch.float32, 9), (torch.float16, 8)):
        case = of_kind(size=(3, 4, width))
        x, weight, grad = operands(case, dtype)
        with emulated_volume_gradients.on(), forced(kernel):
            assert check(emulated_volume_gradients, case, x, weight, LAYOUTS[layout](grad))


@pytest.mark.parametrize("name", swept(DISTRIBUTIONS, (0, 5, 6)))
@pytest.mark.parametrize("kernel", KERNELS)
def test_magnitudes(emulated_volume_gradients, kernel, name):
    """No larger error than rounding operands to TF32 makes, where containers hold them or not."""
    case = of_kind(groups=2)
    x, weight, grad = operands(case, torch.float32)
    grad = DISTRIBUTIONS[name](grad)
    with emulated_volume_gradients.on(), forced(kernel):
        assert check(emulated_volume_gradients, case, x, weight, grad)


def test_larger_values_of_x_beyond_the_first_slice(emulated_volume_gradients):
    """Scales follow from all slices: the strict kernel, which errs less, stays idle."""
    case = of_kind()
    x, weight, grad = operands(case, torch.float32)
    x[:, :, 1:] *= 1e3
    with emulated_volume_gradients.on(), forced("hopper"):
        assert check(emulated_volume_gradients, case, x, weight, grad)
        found = found_in(emulated_volume_gradients, case, x, weight, grad)
    wanted = exact(case, x, weight, grad)
    assert float((found - wanted).norm() / wanted.norm()) > 1e-5


@pytest.mark.parametrize("value", [float("inf"), float("nan")])
@pytest.mark.parametrize(
    ("kernel", "dtype"),
    swept([(k, d) for k in KERNELS for d in DTYPES], (0, 4), names=2),
)
def test_non_finite_values_stay_where_their_products_are(
    emulated_volume_gradients, kernel, dtype, value
):
    """Neither zeros beyond x in depth nor those that pad tiles meet them."""
    for case in (of_kind(), of_kind(stride=(1, 1, 1), output_padding=(0, 0, 0), groups=2)):
        for of_x in (True, False):
            x, weight, grad = operands(case, dtype)
            (x if of_x else grad)[0, 2, 0, 1, -1] = value
            with emulated_volume_gradients.on(), forced(kernel):
                found = found_in(emulated_volume_gradients, case, x, weight, grad)
            wanted = exact(case, x, weight, grad)
            assert not bool(wanted.isfinite().all()) and bool(wanted.isfinite().any())
            assert torch.equal(found.isnan(), wanted.isnan())
            assert torch.equal(found.isfinite(), wanted.isfinite())


@pytest.mark.parametrize("kernel", KERNELS)
def test_taps_that_read_no_slice_have_zeros(emulated_volume_gradients, kernel):
    case = of_kind(size=(1, 4, 8), stride=(1, 1, 1), output_padding=(0, 0, 0))
    x, weight, grad = operands(case, torch.float32)
    with emulated_volume_gradients.on(), forced(kernel):
        found = found_in(emulated_volume_gradients, case, x, weight, grad)
    assert found[:, :, 1].count_nonzero() > 0
    assert found[:, :, ::2].count_nonzero() == 0


@pytest.mark.parametrize(
    "change",
    [
        {"dtype": torch.float64},
        {"tf32": False},
        {"channels": 12},
        {"grad_shape": (2, 12, 5, 5, 17)},
        {"grad_dtype": torch.float16},
        {"kernel": "plain"},
    ],
    ids=str,
)
def test_declined(emulated_volume_gradients, change):
    """The way by slices serves it, or says what is wrong."""
    case = of_kind(channels=change.get("channels", 16))
    x, weight, grad = operands(case, change.get("dtype", torch.float32))
    grad = grad.to(change.get("grad_dtype", grad.dtype))
    if "grad_shape" in change:
        grad = grad.new_zeros(change["grad_shape"])
    with (
        emulated_volume_gradients.on(emulator.HOPPER),
        forced(change.get("kernel", "auto")),
    ):
        tf32 = change.get("tf32", True)
        assert found_in(emulated_volume_gradients, case, x, weight, grad, tf32) is None
        assert emulated_volume_gradients.launches() == 0
