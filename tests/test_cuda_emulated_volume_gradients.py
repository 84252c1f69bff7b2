"""Gradients of three dimensions from volumes where they are, on the CPU, thread by thread: right
for random layers, layouts and magnitudes, without races; what is declined.
"""

import dataclasses
import itertools
import math

import pytest
import torch

from tests.cuda_emulator import emulator
from tests.emulated_tools import forced, needs_cuda_headers
from tests.gpu_tools import inside
from tests.gradient_tools import DISTRIBUTIONS, output_gradient
from tests.gradient_tools import check as check_images
from tests.random_dimensions import Layer, volume
from tests.random_layers import random_layers
from tests.solution_tools import assert_within, bound_factor
from tests.sweeps import swept

pytestmark = needs_cuda_headers
LAYERS = 24
WIDE_LAYERS = 10
DTYPES = (torch.float32, torch.float16, torch.bfloat16)
# The gradient of x is the forward's kernel, which portable ones do not stand in for here; "both":
# of x and weight, from one packing of grad.
KERNELS = [("weight", "hopper"), ("weight", "portable"), ("input", "hopper"), ("both", "hopper")]
GRID = list(itertools.product(KERNELS, DTYPES, range(0, 4 * LAYERS, LAYERS)))
of_each = pytest.mark.parametrize("kind", KERNELS, ids="-".join)
LAYOUTS = {
    "channels_last": lambda grad: grad.to(memory_format=torch.channels_last_3d),
    "window": lambda grad: inside(grad, (0, 1, 1, 0, 2), (0, 0, 1, 1, 0), (1, 1, 2, 1, 1)),
    "columns_apart": lambda grad: inside(grad, (0,) * 5, (0,) * 5, (1, 1, 1, 1, 2)),
    "sum": lambda grad: grad[:1, :1, :1, :1, :1].expand(grad.shape),
    "mean_over_depth": lambda grad: grad[:, :, :1].expand(grad.shape),
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


def found_in(library, of: str, case: Layer, x, weight, grad, tf32=True) -> dict | None:
    """The gradients of "weight", "input" or both, or None where the operator declines."""
    numbers = [number for axis in case.parameters[:-1] for number in axis]
    name = "depth_gradients" if of == "both" else f"depth_{of}_gradient"
    out = getattr(library.namespace, name).default(
        grad, x, weight, None, *numbers, case.groups, tf32
    )
    made = dict(zip(parts(of), out if of == "both" else [out], strict=True))
    if any(tensor.numel() == 0 for tensor in made.values()):
        assert all(tensor.numel() == 0 for tensor in made.values())
        return None
    return {part: t.view((weight if part == "weight" else x).shape) for part, t in made.items()}


def parts(of: str) -> tuple[str, ...]:
    return ("input", "weight") if of == "both" else (of,)


def exact(of: str, case: Layer, x, weight, grad) -> torch.Tensor:
    """In float64, every value from exactly its own products."""
    x, grad = (t.double().unflatten(1, (case.groups, -1)) for t in (x, grad))
    weight = weight.double().unflatten(0, (case.groups, -1))
    found = torch.zeros_like(weight if of == "weight" else x)
    axes = list(zip(case.stride, case.padding, case.dilation, strict=True))
    for tap in itertools.product(*map(range, case.kernel)):
        reads, of_grad, tap_grad = [], [], grad
        for axis, (stride, padding, dilation) in enumerate(axes):
            places = torch.arange(x.shape[3 + axis])
            outputs = places * stride - padding + tap[axis] * dilation
            there = (outputs >= 0) & (outputs < grad.shape[3 + axis])
            reads.append(places[there])
            of_grad.append(outputs[there])
        for axis, outputs in enumerate(of_grad):
            tap_grad = tap_grad.index_select(3 + axis, outputs)
        window = (slice(None), slice(None), slice(None), *torch.meshgrid(*reads, indexing="ij"))
        if of == "weight":
            pairs = torch.einsum("ngidhw,ngodhw->gio", x[window], tap_grad)
            found[(..., *tap)] = pairs
        else:
            found[window] += torch.einsum("ngodhw,gio->ngidhw", tap_grad, weight[(..., *tap)])
    return found.flatten(0, 1) if of == "weight" else found.flatten(1, 2)


def check(library, of: str, case: Layer, x, weight, grad) -> bool:
    """Is it served? Then within its bound."""
    made = found_in(library, of, case, x, weight, grad)
    if made is None:
        return False
    for part, found in made.items():
        products = x.shape[0] * x[0, 0].numel() if part == "weight" else weight[0].numel()
        bound = bound_factor(products, x.dtype, x.dtype, tf32=x.dtype == torch.float32)
        most = exact(part, case, x.abs(), weight.abs(), grad.abs())
        assert found.dtype == x.dtype
        try:
            wanted = exact(part, case, x, weight, grad)
            assert_within(found, wanted, bound * most + torch.finfo(x.dtype).tiny)
        except AssertionError as error:
            raise AssertionError(f"{part} of {case}: {error}") from error
    return True


def for_both(case: Layer, dtype) -> Layer:
    """With so many output channels that both gradients read the same planes: at least 32 in a
    depth tap, which are filled up to blocks of 64; in 16 bits with as many taps in each class.
    Some with input channels for whole blocks of each tap.
    """
    kernel, classes = list(case.kernel), 1
    for axis, (stride, dilation) in enumerate(zip(case.stride, case.dilation, strict=True)):
        of_axis = stride // math.gcd(stride, dilation)
        if dtype != torch.float32:
            kernel[axis] = max(1, kernel[axis] // of_axis) * of_axis
        classes *= min(kernel[axis], of_axis)
    out_channels = case.groups * 8 * (math.ceil(4 / classes) + case.seed % 3)
    channels = case.channels if case.seed % 3 else case.groups * (48 + case.seed % 2 * 16)
    return dataclasses.replace(
        case, kernel=tuple(kernel), channels=channels, out_channels=out_channels
    )


def for_weight_alone(case: Layer) -> Layer:
    """Of one residue in depth, so that volumes are packed at once: planes of up to 32 channels,
    whose pixels are narrow, or some more; rows of one segment or several.
    """
    stride = (1, *(1 + (case.seed >> axis) % 2 for axis in (0, 1)))
    axes = list(zip(stride, case.dilation, case.output_padding, strict=True))
    made = dataclasses.replace(
        case,
        stride=stride,
        output_padding=tuple(min(o, max(s, d) - 1) for s, d, o in axes),
        channels=case.groups * 8 * (1 + case.seed % 9),
        out_channels=case.groups * 8 * (1 + case.seed % 4),
        kernel=(case.kernel[0], 3, 3) if case.seed % 2 else case.kernel,
    )
    return dataclasses.replace(made, size=(*made.size[:2], made.size[2] + case.seed % 5 * 16))


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
    leaves = [t.clone().requires_grad_() for t in (x, weight)]
    expected = torch.autograd.grad(case.reference(*leaves, None), leaves, grad)
    for of, wanted in zip(("input", "weight"), expected, strict=True):
        found = exact(of, case, x, weight, grad)
        torch.testing.assert_close(found, wanted, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ("kind", "dtype", "start"),
    swept(GRID, lambda given: given[0][1] == "hopper" and given[1:] == (DTYPES[0], 0), names=3),
)
def test_random_layers(emulated_volume_gradients, kind, dtype, start):
    of, kernel = kind
    served = 0
    for seed in range(start, start + LAYERS):
        case = volume(seed)
        if of == "input" and seed % 3:  # whole eights, which others have with some strides alone
            case = dataclasses.replace(case, out_channels=case.groups * 8 * (1 + seed % 5))
        if of == "both" and seed % 4:
            case = for_both(case, dtype)
        made = operands(case, dtype)
        if made is None or made[2].numel() == 0:
            continue
        x, weight, grad = made
        grad = list(LAYOUTS.values())[seed % len(LAYOUTS)](grad)
        races = kernel == "hopper"
        with emulated_volume_gradients.on(seed=seed, detect_races=races), forced(kernel):
            served += check(emulated_volume_gradients, of, case, x, weight, grad)
            assert emulated_volume_gradients.races() == [], case
    assert served > LAYERS / 4


@pytest.mark.parametrize(
    ("dtype", "start"),
    swept(itertools.product(DTYPES, range(0, 4 * WIDE_LAYERS, WIDE_LAYERS)), names=2),
)
def test_random_layers_of_the_weight_alone(emulated_volume_gradients, dtype, start):
    served = 0
    for seed in range(start, start + WIDE_LAYERS):
        case = for_weight_alone(volume(seed))
        made = operands(case, dtype)
        if made is None or made[2].numel() == 0:
            continue
        x, weight, grad = made
        grad = list(LAYOUTS.values())[seed % len(LAYOUTS)](grad)
        with emulated_volume_gradients.on(seed=seed, detect_races=True), forced("hopper"):
            served += check(emulated_volume_gradients, "weight", case, x, weight, grad)
            assert emulated_volume_gradients.races() == [], case
    assert served > WIDE_LAYERS / 3


@pytest.mark.parametrize("layout", LAYOUTS)
@of_each
def test_layouts_of_the_incoming_gradient(emulated_volume_gradients, kind, layout):
    of, kernel = kind
    for dtype, width in ((torch.float32, 9), (torch.float16, 8)):
        case = for_both(of_kind(out_channels=16, size=(3, 4, width)), dtype)
        x, weight, grad = operands(case, dtype)
        with emulated_volume_gradients.on(), forced(kernel):
            assert check(emulated_volume_gradients, of, case, x, weight, LAYOUTS[layout](grad))


@pytest.mark.parametrize("name", swept(DISTRIBUTIONS, (0, 5, 6)))
@of_each
def test_magnitudes(emulated_volume_gradients, kind, name):
    """No larger error than rounding operands to TF32 makes, where containers hold them or not."""
    of, kernel = kind
    case = for_both(of_kind(groups=2), torch.float32)
    x, weight, grad = operands(case, torch.float32)
    grad = DISTRIBUTIONS[name](grad)
    with emulated_volume_gradients.on(), forced(kernel):
        assert check(emulated_volume_gradients, of, case, x, weight, grad)


def larger_behind_the_first_slice(x, times=1e3):
    return torch.cat([x[:, :, :1], x[:, :, 1:] * times], 2)


def somewhat_larger_behind_the_first_slice(x):
    """As much as rows of few values bear that are packed with the scale of all slices."""
    return larger_behind_the_first_slice(x, 100)


@pytest.mark.parametrize(
    ("of", "change"),
    [
        ("weight", larger_behind_the_first_slice),
        ("input", larger_behind_the_first_slice),
        ("both", somewhat_larger_behind_the_first_slice),
        *((of, lambda t: t * 1e-9) for of in ("weight", "input", "both")),
    ],
)
def test_no_matter_for_the_guard(emulated_volume_gradients, of, change):
    """Scales follow from all slices: the strict kernels, which err by a thousandth as much, stay
    idle.
    """
    case = for_both(of_kind(), torch.float32)
    x, weight, grad = operands(case, torch.float32)
    x, grad = (change(x), grad) if of == "weight" else (x, change(grad))
    with emulated_volume_gradients.on(), forced("hopper"):
        assert check(emulated_volume_gradients, of, case, x, weight, grad)
        made = found_in(emulated_volume_gradients, of, case, x, weight, grad)
    for part, found in made.items():
        wanted = exact(part, case, x, weight, grad)
        assert float((found - wanted).norm() / wanted.norm()) > 1e-5


@pytest.mark.parametrize("value", [float("inf"), float("nan")])
@pytest.mark.parametrize(
    ("kind", "dtype"),
    swept([(k, d) for k in KERNELS for d in DTYPES], (0, 4, 6, 7), names=2),
)
def test_non_finite_values_stay_where_their_products_are(
    emulated_volume_gradients, kind, dtype, value
):
    """Neither zeros beyond a volume in depth nor those that pad tiles or taps meet them."""
    of, kernel = kind
    for changes in ({}, {"stride": (1, 1, 1), "output_padding": (0, 0, 0), "groups": 2}):
        case = of_kind(out_channels=16, **changes)
        if of == "both":
            case = for_both(case, dtype)
        for of_x in (False,) if of == "input" else (True, False):
            x, weight, grad = operands(case, dtype)
            (x if of_x else grad)[0, 2, 0, 1, -1] = value
            with emulated_volume_gradients.on(), forced(kernel):
                made = found_in(emulated_volume_gradients, of, case, x, weight, grad)
            for part, found in made.items():
                wanted = exact(part, case, x, weight, grad)
                assert of_x and part == "input" or not bool(wanted.isfinite().all())
                assert bool(wanted.isfinite().any())
                assert torch.equal(found.isnan(), wanted.isnan())
                assert torch.equal(found.isfinite(), wanted.isfinite())


@pytest.mark.parametrize("kernel", ["hopper", "portable"])
def test_taps_that_read_no_slice_have_zeros(emulated_volume_gradients, kernel):
    case = of_kind(size=(1, 4, 8), stride=(1, 1, 1), output_padding=(0, 0, 0))
    x, weight, grad = operands(case, torch.float32)
    with emulated_volume_gradients.on(), forced(kernel):
        found = found_in(emulated_volume_gradients, "weight", case, x, weight, grad)["weight"]
    assert found[:, :, 1].count_nonzero() > 0
    assert found[:, :, ::2].count_nonzero() == 0


@pytest.mark.parametrize(
    "change",
    [
        {"dtype": torch.float64},
        {"tf32": False},
        {"channels": 12},
        {"grad_shape": (2, 16, 5, 5, 17)},
        {"grad_dtype": torch.float16},
        {"kernel": "plain"},
    ],
    ids=str,
)
@pytest.mark.parametrize("of", ["weight", "input", "both"])
def test_declined(emulated_volume_gradients, of, change):
    """The way by slices serves it, or says what is wrong."""
    case = of_kind(channels=change.get("channels", 16), out_channels=16)
    x, weight, grad = operands(case, change.get("dtype", torch.float32))
    grad = grad.to(change.get("grad_dtype", grad.dtype))
    if "grad_shape" in change:
        grad = grad.new_zeros(change["grad_shape"])
    with (
        emulated_volume_gradients.on(emulator.HOPPER),
        forced(change.get("kernel", "auto")),
    ):
        tf32 = change.get("tf32", True)
        assert found_in(emulated_volume_gradients, of, case, x, weight, grad, tf32) is None
        assert emulated_volume_gradients.launches() == 0


@pytest.mark.parametrize(("out_channels", "both"), [(24, False), (40, True)])
def test_a_tap_whose_channels_would_more_than_double(emulated_volume_gradients, out_channels, both):
    """Filled up to 64 they serve no packing of both gradients; the weight's alone has its own."""
    case = of_kind(
        out_channels=out_channels, kernel=(2, 2, 2), stride=(1, 1, 1), output_padding=(0, 0, 0)
    )
    made = operands(case, torch.float32)
    with emulated_volume_gradients.on(), forced("hopper"):
        assert (found_in(emulated_volume_gradients, "both", case, *made) is not None) == both
        assert check(emulated_volume_gradients, "weight", case, *made)


@pytest.mark.parametrize("kernel", ["plain", "portable", "hopper"])
def test_two_dimensions_in_the_same_library(emulated_volume_gradients, kernel):
    """What the operators decline goes to `backward`, image by image."""
    computed = 0
    for layer in random_layers(7, 8, "small"):
        x, weight, _ = layer.tensors()
        grad = output_gradient(layer.case, layer.dtype)
        backward = emulated_volume_gradients.backward
        try:
            with emulated_volume_gradients.on(seed=layer.index), forced(kernel):
                check_images(backward, layer.case, grad, x, weight, layer.allow_tf32)
            computed += 1
        except RuntimeError as error:
            assert "forced by TCONV_KERNEL" in str(error) and kernel != "plain"
    assert computed > 1
