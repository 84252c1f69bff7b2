"""The kernel for volumes of few channels on the CPU, thread by thread: every layer that a solution
compiles it for, of random sizes, right and without races; which calls take it.
"""

import itertools
import random

import pytest
import torch
import torch.nn.functional as F

from tests.emulated_tools import needs_cuda_headers
from tests.gpu_tools import tf32
from tests.sweeps import swept

pytestmark = needs_cuda_headers
# Half a unit in the last place of a result; fp32's is in the bound of the sum.
LAST_PLACES = {torch.float32: 0.0, torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8}


@pytest.fixture(scope="module")
def emulated(emulated_few_channels):
    emulated_few_channels.solution["_VOLUME_DEVICES"] = ("cpu",)
    return emulated_few_channels


@pytest.fixture(scope="module")
def layers(emulated):
    return emulated.solution["ModelNew"](*emulated.solution["get_init_inputs"]()).layers


def axes_of(layer) -> list:
    return [layer.stride, layer.padding, layer.output_padding, layer.dilation]


def operands_of(layer, seed: int, dtype=torch.float32) -> list:
    """x and weight, of other out_channels than the layer's, and bias or None."""
    rng, made = random.Random(seed), torch.Generator().manual_seed(seed)
    out_channels = rng.choice([1, 3, 16, 19, 33])
    sizes = rng.randint(1, 5), rng.choice([1, 4, 9, 21]), rng.choice([1, 6, 31, 32, 33, 45])
    kernel = layer.kernel_size
    shapes = (
        (rng.randint(1, 3), layer.in_channels, *sizes),
        (layer.in_channels, out_channels, *kernel),
    )
    x, weight, bias = (
        torch.randn(shape, generator=made).to(dtype) for shape in (*shapes, (out_channels,))
    )
    if rng.random() < 0.3:
        x = x.mT.contiguous().mT
    return [x, weight, bias if rng.random() < 0.7 else None]


def run(emulated, layer, operands, allowed=True):
    """The result in place, without the solution's chain applied again, or None."""
    x, weight, bias = operands
    call = emulated.solution["_whole_volumes"]
    with tf32(allowed):
        return call(None, "", ((), 0), x, weight, bias, axes_of(layer), layer.groups, ())


def exact(layer, operands, change=lambda tensor: tensor):
    x, weight, bias = [None if t is None else change(t.double()) for t in operands]
    stride, padding, output_padding, dilation = axes_of(layer)
    return F.conv_transpose3d(x, weight, bias, stride, padding, output_padding, 1, dilation)


def chained(y, factor=0.5):
    return torch.tanh(y) * factor


@pytest.mark.parametrize("allowed", [True, False])
@pytest.mark.parametrize("start", swept(range(0, 80, 8), (0,)))
def test_random_sizes(emulated, layers, start, allowed):
    """Of every layer and dtype; one launch for each residue in depth."""
    computed = 0
    for seed, (number, layer) in itertools.product(range(start, start + 8), enumerate(layers)):
        dtype = list(LAST_PLACES)[(seed + number) % 3]
        operands = operands_of(layer, 100 * seed + number, dtype)
        try:
            wanted = exact(layer, operands)
        except RuntimeError:  # no output
            continue
        with emulated.on(seed=seed, detect_races=True):
            out = run(emulated, layer, operands, allowed)
            launches, races = emulated.launches(), emulated.races()
        if out is None:  # taps that no slice of a volume so flat reads
            assert operands[0].shape[2] < 3
            continue
        most = exact(layer, operands, torch.abs)
        bound = LAST_PLACES[dtype] * chained(wanted).abs() + 2.0**-20 * most + 2.0**-22
        assert out.shape == wanted.shape
        assert bool(((out.double() - chained(wanted)).abs() <= bound).all()), (seed, layer)
        assert races == [] and launches <= layer.stride[0]
        computed += 1
    assert computed >= 36


@pytest.mark.parametrize("bad", [float("inf"), float("nan")])
def test_absent_inputs_are_not_multiplied(emulated, layers, bad):
    """By a weight that is not finite, which made NaN of their zeros."""
    for number, layer in enumerate(layers):
        operands = operands_of(layer, 7 + number)
        x, weight, bias = torch.rand(1, layer.in_channels, 3, 5, 34) + 0.5, *operands[1:]
        weight[-1, 0, 0, 0, -1] = bad
        wanted = chained(exact(layer, [x, weight, bias]))
        with emulated.on():
            out = run(emulated, layer, [x, weight, bias])
        assert bool(out.isnan().any()) == bool(wanted.isnan().any())
        torch.testing.assert_close(out.double(), wanted, rtol=1e-4, atol=1e-5, equal_nan=True)


def test_inputs_that_are_not_finite_reach_their_outputs_alone(emulated, layers):
    for number, layer in enumerate(layers):
        x, weight, bias = operands_of(layer, 31 + number)
        x = torch.rand(1, layer.in_channels, 3, 5, 34)
        x[0, 0, 1, 2, 33] = float("nan")
        wanted = exact(layer, [x, weight, bias])
        with emulated.on():
            out = run(emulated, layer, [x, weight, bias])
        assert torch.equal(out.isnan(), wanted.isnan())


@pytest.mark.parametrize(
    "change", ["padding", "stride", "kernel", "channels", "groups", "dtype", "kernel choice"]
)
def test_other_layers_decline(emulated, layers, change, monkeypatch):
    """Which are computed by slices then."""
    x, weight = torch.rand(2, 3, 4, 5, 6), torch.rand(3, 4, 3, 3, 3)
    axes, groups = axes_of(layers[0]), 1
    call = emulated.solution["_whole_volumes"]
    with emulated.on():
        assert call(None, "", ((), 0), x, weight, None, axes, groups, ()) is not None
    if change == "padding":
        axes[1] = (1, 0, 1)
    if change == "stride":
        axes[0] = (2, 2, 3)
    if change == "kernel":
        weight = torch.rand(3, 4, 3, 3, 4)
    if change == "channels":
        x, weight = torch.rand(2, 2, 4, 5, 6), torch.rand(2, 4, 3, 3, 3)
    if change == "groups":
        x, weight, groups = torch.rand(2, 6, 4, 5, 6), torch.rand(6, 4, 3, 3, 3), 2
    if change == "dtype":
        x, weight = x.double(), weight.double()
    if change == "kernel choice":
        monkeypatch.setenv("TCONV_KERNEL", "portable")
    with emulated.on():
        assert call(None, "", ((), 0), x, weight, None, axes, groups, ()) is None


def test_a_model_calls_it(emulated):
    solution = emulated.solution
    torch.manual_seed(0)
    model = solution["ModelNew"](*solution["get_init_inputs"]())
    (x,) = solution["get_inputs"]()
    with emulated.on(), torch.no_grad():
        found = model(x)
        launches = emulated.launches()
    assert launches <= sum(layer.stride[0] for layer in model.layers)
    for layer, y in zip(model.layers, found, strict=True):
        wanted = exact(layer, [x[:, : layer.in_channels], layer.weight, layer.bias])
        torch.testing.assert_close(y.double(), chained(wanted), rtol=1e-5, atol=1e-5)


def test_the_library_of_gradients_has_it(emulated, emulated_volume_gradients, layers):
    """The convolution alone, for backward."""
    solution, library = emulated.solution, emulated_volume_gradients
    kernels = solution["_volume_operator"](library.namespace)
    for number, layer in enumerate(layers):
        x, weight, bias = operands_of(layer, 60 + number)
        x = torch.randn(2, layer.in_channels, 4, 5, 34)
        with library.on(detect_races=True):
            out = solution["_run_volumes"](kernels, x, weight, bias, axes_of(layer), 1)
            assert library.races() == [] and library.launches() <= layer.stride[0]
        most = exact(layer, [x, weight, bias], torch.abs)
        error = (out.double() - exact(layer, [x, weight, bias])).abs()
        assert bool((error <= 2.0**-20 * most).all())
