"""Transposed convolutions of one and three dimensions, by the operator of two: outputs and
gradients are PyTorch's, in float64, for random layers.
"""

import pytest
import torch
import torch.nn.functional as F

from generator.runtime import dimensions, folded_rows, volumes
from tests.random_dimensions import layer
from tests.sweeps import swept

LAYERS = 120
LIFTED = {
    1: dimensions._in_one_dimension,
    3: lambda operator, *rest: dimensions._in_three_dimensions(operator, "", ((), 0), *rest),
}
GRID = [(count, start) for start in range(0, 10 * LAYERS, LAYERS) for count in LIFTED]


@pytest.fixture(scope="module")
def operator(shelf):
    return shelf["69"].solution["_operator"]


@pytest.fixture(autouse=True)
def by_slices(monkeypatch):
    """The library of `operator` has none for volumes; tests/test_volumes.py has."""
    monkeypatch.setattr(volumes, "_VOLUME_DEVICES", ())


def gradients(out, operands) -> list:
    """Those of a sum whose weights differ from element to element."""
    weights = torch.cos(torch.arange(out.numel(), dtype=torch.float64)).reshape(out.shape)
    asked = [tensor for tensor in operands if tensor is not None]
    return torch.autograd.grad((out * weights.to(out.dtype)).sum(), asked)


@pytest.mark.parametrize(("count", "start"), swept(GRID, (0, 1), names=2))
def test_random_layers(operator, count, start):
    computed = 0
    for seed in range(start, start + LAYERS):
        case = layer(count, seed)
        operands = case.operands()
        try:
            expected = case.reference(*operands)
        except RuntimeError:
            with pytest.raises(RuntimeError, match="conv_transpose"):
                LIFTED[count](operator, *operands, *case.parameters)
            continue
        if expected.numel() == 0 and 0 in expected.shape[-count:]:
            continue  # an empty batch, for which PyTorch looks at no size
        out = LIFTED[count](operator, *operands, *case.parameters)
        assert out.shape == expected.shape, case
        torch.testing.assert_close(out, expected, rtol=1e-10, atol=1e-10, msg=str(case))
        pairs = zip(gradients(out, operands), gradients(expected, operands), strict=True)
        for ours, theirs in pairs:
            torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-9, msg=str(case))
        computed += 1
    assert computed > LAYERS / 2


@pytest.mark.parametrize("start", swept(range(0, 10 * LAYERS, LAYERS), (0,)))
def test_long_rows_are_folded(operator, monkeypatch, start):
    """Random layers of one dimension, as if two inputs were many."""
    for name, value in (("_SHORT_ROW", 2), ("_REACHES", 0), ("_LEAST_ROWS", 2)):
        monkeypatch.setattr(folded_rows, name, value)
    images = []

    def noted(x, *rest):
        images.append(x.shape[-2])
        return operator(x, *rest)

    for seed in range(start, start + LAYERS):
        case = layer(1, seed)
        operands = case.operands()
        for dtype, bound in ((torch.float64, 1e-9), (torch.float32, 2e-5)):
            given = [None if t is None else t.detach().to(dtype).requires_grad_() for t in operands]
            try:
                expected = case.reference(*given)
            except RuntimeError:
                with pytest.raises(RuntimeError, match="conv_transpose"):
                    LIFTED[1](folded_rows._folding(noted), *given, *case.parameters)
                continue
            if expected.numel() == 0:
                continue
            out = LIFTED[1](folded_rows._folding(noted), *given, *case.parameters)
            assert out.shape == expected.shape, case
            close = {"rtol": bound, "atol": bound * float(expected.detach().abs().max() + 1)}
            torch.testing.assert_close(out, expected, msg=str(case), **close)
            if dtype is torch.float64:
                pairs = zip(gradients(out, given), gradients(expected, given), strict=True)
                for ours, theirs in pairs:
                    torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-9, msg=str(case))
    assert sum(rows > 1 for rows in images) > LAYERS / 4


@pytest.mark.parametrize("stride", [1, 2, 3])
@pytest.mark.parametrize("kernel", [1, 3, 8])
@pytest.mark.parametrize("padding", [0, 1, 9])
@pytest.mark.parametrize("dilation", [1, 2])
def test_a_long_row(operator, stride, kernel, padding, dilation):
    """With an Infinity, which stays where its products are."""
    generator = torch.Generator().manual_seed(stride)
    x = torch.randn(3, 5000, generator=generator)
    x[1, 2048] = float("inf")
    weight = torch.randn(3, 2, kernel, generator=generator).abs()
    numbers = stride, padding, stride - 1, dilation, 1
    out = LIFTED[1](folded_rows._folding(operator), x, weight, None, *numbers)
    expected = F.conv_transpose1d(x, weight, None, stride, padding, stride - 1, 1, dilation)
    torch.testing.assert_close(out, expected, rtol=1e-5, atol=1e-5)


X = {1: (2, 6, 9), 3: (2, 6, 3, 4, 5)}
WEIGHT = {1: (6, 2, 3), 3: (6, 2, 3, 3, 3)}


def called(operator, count, dtype=torch.float32, stride=2, dilation=1):
    """(result, float64's) of one layer with groups."""
    generator = torch.Generator().manual_seed(count)
    shapes = X[count], WEIGHT[count], (4,)
    exact = [torch.randn(shape, generator=generator).to(dtype).double() for shape in shapes]
    given = [tensor.to(dtype) for tensor in exact]
    out = LIFTED[count](operator, *given, stride, 1, 1, dilation, 2)
    conv = {1: F.conv_transpose1d, 3: F.conv_transpose3d}[count]
    return out, conv(*exact, stride, 1, 1, 2, dilation)


@pytest.mark.parametrize("count", LIFTED)
@pytest.mark.parametrize(
    ("dtype", "bound"), [(torch.float32, 2e-6), (torch.float16, 1e-3), (torch.bfloat16, 8e-3)]
)
def test_every_dtype_is_rounded_once(operator, count, dtype, bound):
    out, exact = called(operator, count, dtype)
    assert out.dtype is dtype and out.shape == exact.shape
    assert float((out - exact).abs().max() / exact.abs().max()) < bound


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last_3d])
def test_three_dimensions_keep_the_layout(operator, layout):
    x = torch.randn(X[3]).contiguous(memory_format=layout)
    out = LIFTED[3](operator, x, torch.randn(WEIGHT[3]), None, 2, 1, 1, 1, 2)
    assert out.is_contiguous(memory_format=layout)


def test_slices_that_no_tap_reaches_are_the_bias_alone(operator):
    """Even where weights are infinite; their gradients are zeros, not missing."""
    x = torch.randn(1, 2, 3, 3, 3, dtype=torch.float64, requires_grad=True)
    weight = torch.full((2, 2, 1, 1, 1), float("inf"), dtype=torch.float64, requires_grad=True)
    bias = torch.tensor([1.0, -2.0], dtype=torch.float64)
    out = LIFTED[3](operator, x, weight, bias, (3, 1, 1), 0, 0, 1, 1)
    for between in (out[:, :, 1::3], out[:, :, 2::3]):
        assert torch.equal(between, bias.view(1, 2, 1, 1, 1).expand_as(between))
    finite = torch.ones_like(weight, requires_grad=True)
    out = LIFTED[3](operator, x, finite, bias, (3, 1, 1), (1, 0, 0), 0, 1, 1)
    found = torch.autograd.grad(out[:, :, ::3].sum(), (x, finite))
    assert all(bool((gradient == 0).all()) for gradient in found)


@pytest.mark.parametrize(
    ("count", "changes", "message"),
    [
        (1, {"x": torch.zeros(2, 6, 3, 3)}, r"conv_transpose1d: expected an input of 2 .* or 3"),
        (3, {"x": torch.zeros(6, 3, 3)}, r"conv_transpose3d: expected an input of 4 .* or 5"),
        (3, {"x": torch.zeros(2, 5, 3, 4, 5)}, "must have 6 channels"),
        (3, {"weight": torch.zeros(6, 2, 3, 3, 3), "groups": 4}, "groups must divide the 6 input"),
        (1, {"stride": (1, 2)}, r"conv_transpose1d: stride must be an int or a tuple of 1, got 2"),
        (3, {"dilation": (1, 2)}, r"conv_transpose3d: dilation must be an int or a tuple of 3"),
        (3, {"stride": (0, 1, 1)}, "stride and dilation must be positive"),
        (3, {"output_padding": (2, 0, 0)}, "output_padding must be smaller than stride or dil"),
        (3, {"padding": (9, 0, 0)}, "the output would have a depth of -1"),
    ],
)
def test_what_pytorch_refuses_is_refused_by_name(operator, count, changes, message):
    arguments = {"x": torch.zeros(X[count]), "weight": torch.zeros(WEIGHT[count]), "bias": None}
    arguments |= {"stride": 2, "padding": 0, "output_padding": 0, "dilation": 1, "groups": 2}
    given = arguments | changes
    with pytest.raises(RuntimeError, match=message):
        LIFTED[count](operator, *given.values())


COMPILED = """
def _lifted(lift, x, weight):
    return lift(_operator, x, weight, None, 2, 1, 1, 1, 2)
"""


@pytest.mark.parametrize("count", LIFTED)
def test_compilers_and_transforms(operator, count):
    x, weight = torch.randn(X[count]), torch.randn(WEIGHT[count])

    def run(x, weight):
        return LIFTED[count](operator, x, weight, None, 2, 1, 1, 1, 2)

    expected = run(x, weight)
    exec(COMPILED, operator.__globals__)  # where a solution's forward is
    compiled = torch.compile(operator.__globals__["_lifted"], backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(LIFTED[count], x, weight), expected)
    samples = torch.vmap(lambda sample: run(sample, weight))(x)
    torch.testing.assert_close(samples, expected)

    def loss(weight):
        return run(x, weight).square().sum()

    leaf = weight.clone().requires_grad_()
    loss(leaf).backward()
    torch.testing.assert_close(torch.func.grad(loss)(weight), leaf.grad)


@pytest.mark.parametrize("count", LIFTED)
def test_autocast_computes_in_the_low_precision(operator, count):
    with torch.autocast("cpu", torch.bfloat16):
        out, _ = called(operator, count)
    assert out.dtype is torch.bfloat16


@pytest.mark.sweep
def test_export_with_any_batch(shelf):
    """Of a model with layers of one, two and three dimensions."""
    model, new = shelf["one_and_three_dimensions"].pair()
    batch = torch.export.Dim("batch", min=2, max=64)
    example = torch.randn(3, 3, 5)
    program = torch.export.export(new, (example,), dynamic_shapes=({0: batch},))
    for size in (3, 7):
        x = torch.randn(size, 3, 5)
        torch.testing.assert_close(program.module()(x), model(x), equal_nan=True)


def test_a_long_row_before_the_other_convolutions(shelf):
    """Long enough to be folded, its element-wise step behind it: outputs and every gradient."""
    model, new = shelf["one_and_three_dimensions"].pair()
    assert folded_rows._folded(torch.zeros(2, 3, 6000), 3, 2, 0, 0, 1) is not None
    results = []
    for one in (new, model):
        x = torch.randn(2, 3, 6000, generator=torch.Generator().manual_seed(1)).requires_grad_()
        out = one(x).nan_to_num()  # of logarithms of negative numbers
        out.square().sum().backward()
        results.append([out.detach(), x.grad, *[p.grad for p in one.parameters()]])
    for ours, theirs in zip(*results, strict=True):
        assert theirs.count_nonzero() > 0
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-4 * float(theirs.abs().max()))
