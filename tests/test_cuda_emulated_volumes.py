"""Transposed convolutions of three dimensions that the Hopper kernel reads and writes in place, on
the CPU, thread by thread: random layers, right and without races; what is declined.
"""

import pytest
import torch

from generator.runtime import group_norm_gradient_kernels
from generator.runtime.activation_gradients import _Gelu
from tests.cuda_emulator import emulator
from tests.emulated_tools import forced, needs_cuda_headers
from tests.random_dimensions import volume
from tests.sweeps import swept

pytestmark = needs_cuda_headers
LAYERS = 30
# Of an operand: 11 significant bits, or 8; a result of 16 bits is rounded likewise.
STEPS = {torch.float32: 2.0**-11, torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8}
GRID = [(dtype, start) for start in range(0, 4 * LAYERS, LAYERS) for dtype in STEPS]


@pytest.fixture(scope="module")
def emulated(emulated_volumes):
    emulated_volumes.solution["_VOLUME_DEVICES"] = ("cpu",)
    return emulated_volumes


@pytest.fixture(scope="module")
def with_gradients(emulated, emulated_volume_gradients):
    """The library of the gradients, and the solution, which calls it."""
    library = emulated_volume_gradients
    emulated.solution["_gradient_library"] = lambda: library.namespace
    emulated.solution["_GRADIENT_DEVICES"] = ("cpu",)
    return emulated, library


def namespace_of(emulated):
    return getattr(torch.ops, emulated.solution["_NAMESPACE"])


def in_place(emulated, operands, case, tf32=True, detach=True):
    """The result of the operator of three dimensions, or None where it declines."""
    x, weight, bias = operands
    if detach:
        x, weight, bias = [None if t is None else t.detach() for t in operands]
    torch.backends.cudnn.conv.fp32_precision, old = (
        "tf32" if tf32 else "ieee",
        torch.backends.cudnn.conv.fp32_precision,
    )
    try:
        batched = x if x.dim() == 5 else x.unsqueeze(0)
        *axes, groups = case.parameters
        out = emulated.solution["_whole_volumes"](
            None, "", ((), 0), batched, weight, bias, axes, groups, ()
        )
    finally:
        torch.backends.cudnn.conv.fp32_precision = old
    return out if out is None or x.dim() == 5 else out.squeeze(0)


@pytest.mark.parametrize("size", swept([1.0, 1e4]))
@pytest.mark.parametrize(("dtype", "start"), swept(GRID, (0,), names=2))
def test_random_layers(emulated, dtype, start, size):
    """Values of 1e4 do not fit fp16 containers: another kernel computes them again."""
    if size > 1 and dtype != torch.float32:
        pytest.skip("only fp32 has containers")
    computed = 0
    for seed in range(start, start + LAYERS):
        case = volume(seed)
        x, *rest = case.operands(dtype)
        operands = [(x.detach() * size), *rest]
        exact = [None if t is None else t.detach().double() for t in operands]
        try:
            wanted = case.reference(*exact)
        except RuntimeError:
            assert in_place(emulated, operands, case) is None
            continue
        with emulated.on(seed=seed, detect_races=True), forced("hopper"):
            out = in_place(emulated, operands, case)
            races = emulated.races()
        if out is None:
            continue
        most = case.reference(*[None if t is None else t.abs() for t in exact])
        error = (out.double() - wanted).abs()
        assert out.shape == wanted.shape
        assert bool((error <= 2.5 * STEPS[dtype] * most + 1e-30).all()), (case, float(error.max()))
        assert races == [], case
        computed += 1
    assert computed > LAYERS / 4


@pytest.mark.parametrize("dtype", swept(STEPS))
@pytest.mark.parametrize("size", swept([(3, 5, 6), (2, 4, 10), (1, 9, 16), (4, 2, 4)], (0, 1)))
def test_rows_of_whole_vectors(emulated, size, dtype):
    """Twin columns that leave from registers: rows, slices and volumes that end anywhere in tiles,
    channels that are fewer than a tile's, several groups.
    """
    for channels, out_channels, groups, kernel, padding in (
        (16, 32, 1, 3, 1),
        (48, 80, 1, 4, 1),
        (32, 32, 2, 3, 1),
        (8, 16, 1, 2, 0),
    ):
        made = torch.Generator().manual_seed(size[0] + channels)
        x = torch.randn(3, channels, *size, generator=made).to(dtype)
        weight = torch.randn(channels, out_channels // groups, *[kernel] * 3, generator=made)
        weight, bias = weight.to(dtype), torch.randn(out_channels, generator=made).to(dtype)
        axes = [(2,) * 3, (padding,) * 3, (2 - kernel + 2 * padding,) * 3, (1,) * 3]
        call = emulated.solution["_whole_volumes"]
        with emulated.on(detect_races=True), forced("hopper"):
            out = call(None, "", ((), 0), x, weight, bias, axes, groups, ())
            assert emulated.races() == []
        assert out.shape[-1] % 4 == 0
        operands = x.double(), weight.double(), bias.double()
        conv, parameters = torch.nn.functional.conv_transpose3d, (*axes[:3], groups)
        wanted, most = (conv(*given, *parameters) for given in (operands, map(abs, operands)))
        assert bool(((out.double() - wanted).abs() <= 2.5 * STEPS[dtype] * most + 1e-30).all())


def test_chosen_where_the_rule_has_hopper(emulated):
    """A layer of 2/61's kind, small."""
    made = torch.Generator().manual_seed(1)
    x = torch.randn(2, 64, 6, 16, 16, generator=made)
    weight = torch.randn(64, 64, 3, 3, 3, generator=made)
    axes = [(1, 1, 1), (0, 0, 0), (0, 0, 0), (1, 1, 1)]
    with emulated.on():
        out = emulated.solution["_whole_volumes"](None, "", ((), 0), x, weight, None, axes, 1, ())
        assert emulated.launches() == 3  # weights, the convolution, and what waits for the guard
    wanted = torch.nn.functional.conv_transpose3d(x.double(), weight.double())
    most = torch.nn.functional.conv_transpose3d(x.double().abs(), weight.double().abs())
    assert bool(((out.double() - wanted).abs() <= 2.5 * STEPS[torch.float32] * most).all())


@pytest.mark.parametrize(
    "change",
    [
        {"dtype": torch.float64},
        {"tf32": False},
        {"channels": 12},
        {"groups": 3},
        {"padding": (9, 0, 0)},
        {"output_padding": (1, 0, 0)},
        {"weight": (16, 4, 3, 3)},
        {"bias": (5,)},
        {"bias_dtype": torch.float16},
        {"device": emulator.AMPERE},
        {"kernel": "portable"},
    ],
    ids=str,
)
def test_declined(emulated, change):
    """What the kernel does not serve, and what is wrong: the other way says what."""
    dtype = change.get("dtype", torch.float32)
    channels = change.get("channels", 16)
    x = torch.zeros(1, channels, 3, 4, 4, dtype=dtype)
    weight = torch.zeros(change.get("weight", (channels, 4, 3, 3, 3)), dtype=dtype)
    bias = torch.zeros(change.get("bias", (4,)), dtype=change.get("bias_dtype", dtype))
    axes = [(1, 1, 1), change.get("padding", (0, 0, 0)), change.get("output_padding", (0, 0, 0))]
    kernels = emulated.solution["_volume_operator"](namespace_of(emulated))
    numbers = [n for axis in [*axes, (1, 1, 1)] for n in axis]
    with emulated.on(change.get("device", emulator.HOPPER)), forced(change.get("kernel", "hopper")):
        out = kernels(x, weight, bias, *numbers, change.get("groups", 1), change.get("tf32", True))
    assert out.numel() == 0


def gradients(out, leaves) -> list:
    """Those of a sum whose weights differ from element to element."""
    weights = torch.cos(torch.arange(out.numel(), dtype=torch.float64)).reshape(out.shape)
    return list(torch.autograd.grad((out * weights.to(out.dtype)).sum(), leaves))


@pytest.mark.parametrize(("dtype", "start"), swept(GRID, (), names=2))
def test_gradients(with_gradients, dtype, start):
    """Of magnitudes that differ from layer to layer: 1e-6, 1, 1e6."""
    emulated, library = with_gradients
    computed = 0
    for seed in range(start, start + LAYERS):
        case = volume(seed)
        operands = case.operands(dtype)
        leaves = [tensor for tensor in operands if tensor is not None]
        exact = [None if t is None else t.detach().double().requires_grad_() for t in operands]
        size = 10.0 ** (6 * (seed % 3 - 1)) if dtype == torch.float32 else 1.0
        try:
            wanted = case.reference(*exact)
        except RuntimeError:
            continue
        with emulated.on(seed=seed), library.on(seed=seed), forced("hopper"):
            out = in_place(emulated, operands, case, detach=False)
            if out is None:
                continue
            with torch.backends.cudnn.flags(allow_tf32=True):
                found = gradients(out * size, leaves)
        exact_leaves = [tensor for tensor in exact if tensor is not None]
        truth = gradients(wanted * size, exact_leaves)
        positive = [None if t is None else t.detach().abs().requires_grad_() for t in exact]
        most = torch.autograd.grad(
            case.reference(*positive).sum() * size, [t for t in positive if t is not None]
        )
        for ours, theirs, bound in zip(found, truth, most, strict=True):
            error = (ours.double() - theirs).abs()
            assert bool((error <= 4 * STEPS[dtype] * bound + 1e-30).all()), (case, error.max())
        computed += 1
    assert computed > LAYERS / 4


@pytest.mark.parametrize("stride", [1, 2])
def test_gradients_without_copies(with_gradients, monkeypatch, stride):
    """The operator of two dimensions, which takes copies of slices, is not asked."""
    emulated, library = with_gradients
    monkeypatch.setitem(emulated.solution, "_kernel_gradients", None)
    generator = torch.Generator().manual_seed(1)
    leaves = [
        torch.randn(size, generator=generator).requires_grad_()
        for size in ((2, 64, 3, 8, 12), (64, 32, 3, 3, 3))
    ]
    axes = [(stride,) * 3, (1, 1, 1), (stride - 1,) * 3, (1, 1, 1)]
    with emulated.on(), library.on(), torch.backends.cudnn.flags(allow_tf32=True):
        out = emulated.solution["_whole_volumes"](None, "", ((), 0), *leaves, None, axes, 1, ())
        found = gradients(out, leaves)
    exact = [leaf.detach().double().requires_grad_() for leaf in leaves]
    y = torch.nn.functional.conv_transpose3d(*exact, None, stride, 1, stride - 1)
    for ours, wanted in zip(found, gradients(y, exact), strict=True):
        assert float((ours.double() - wanted).norm()) <= 1e-3 * float(wanted.norm())


@pytest.mark.parametrize("kept", [False, True])
@pytest.mark.parametrize("stride", [1, 2])
def test_gradients_through_steps(
    with_gradients, emulated_norm_gradients, monkeypatch, stride, kept
):
    """Of a chain behind the convolution: the output once more, then the chain's own library. Where
    that has a chain for the result, forward keeps it, and no output is computed.
    """
    emulated, library = with_gradients
    chain_library = group_norm_gradient_kernels
    norm = emulated_norm_gradients.backward
    monkeypatch.setattr(chain_library, "_norm_backward_kernels", lambda: norm)
    through = chain_library._kernel_chain_gradients
    monkeypatch.setitem(emulated.solution, "_kernel_chain_gradients", through)
    gelu = (_Gelu("none"),), 1  # its number in the tests' library
    if kept:  # not a chain for results, but one that reads what it is given
        monkeypatch.setitem(emulated.solution, "_RESULT_CHAINS", {1: 1})
        monkeypatch.setitem(emulated.solution, "_library_volumes", None)
    generator = torch.Generator().manual_seed(1)
    sizes = (2, 16, 3, 8, 12), (16, 8, 3, 3, 3), (8,)
    leaves = [torch.randn(size, generator=generator).requires_grad_() for size in sizes]
    exact = [leaf.detach().double().requires_grad_() for leaf in leaves]
    axes = [(stride,) * 3, (1, 1, 1), (0, 0, 0), (1, 1, 1)]
    with emulated.on(), library.on(), emulated_norm_gradients.on(), forced("hopper"):
        solution = emulated.solution
        out = solution["_whole_volumes"](None, "", gelu, *leaves, axes, 1, ())
        with torch.backends.cudnn.flags(allow_tf32=True):
            found = gradients(out, leaves)
        assert emulated_norm_gradients.launches() > 0
    y = torch.nn.functional.conv_transpose3d(*exact, stride, 1)
    through = torch.nn.functional.gelu(y)
    if kept:
        read = out.detach().double().requires_grad_()
        (slope,) = torch.autograd.grad(torch.nn.functional.gelu(read).sum(), read)
        through = y * slope
    for ours, wanted in zip(found, gradients(through, exact), strict=True):
        assert float((ours.double() - wanted).norm()) <= 2e-3 * float(wanted.norm())
