"""Tails by kernels of ours on a Hopper GPU: each beside PyTorch's in float64, and in a model."""

import pytest
import torch
import torch.nn.functional as F

from tests.sanitizer_cases import NORMED

pytestmark = pytest.mark.gpu
UNITS = {torch.float32: 2.0**-20, torch.float16: 2.0**-10, torch.bfloat16: 2.0**-7}


@pytest.fixture(scope="module")
def solution(shelf):
    return shelf[NORMED].solution


@pytest.fixture(scope="module")
def library(solution):
    return solution["_tail_library"]()


def drawn(dtype, *shape, shift=0):
    generator = torch.Generator("cuda").manual_seed(len(shape))
    held = torch.randn(shift + torch.Size(shape).numel(), generator=generator, device="cuda")
    return held.to(dtype)[shift:].view(shape)


def check(found, wanted, dtype):
    """Within units of what a result of the dtype may differ by, for values of about one."""
    assert found.dtype == dtype and found.shape == wanted.shape and found.is_contiguous()
    error = (found.double() - wanted).abs()
    assert float((error / (1 + wanted.abs())).max()) <= UNITS[dtype]


def like(vector, value):
    return vector.double().view(1, -1, *[1] * (value.dim() - 2))


@pytest.mark.parametrize("shift", [0, 1])
@pytest.mark.parametrize("dtype", UNITS)
@pytest.mark.parametrize("row", [1, 7, 33, 64, 128, 200, 256, 1024])
def test_rows(library, row, dtype, shift):
    if row == 1024 and shift:
        pytest.skip("rows so long begin at boundaries")
    value = drawn(dtype, 3, 5, 1000, row, shift=shift)
    weight, bias = drawn(dtype, row), drawn(dtype, row) * 0.5
    found = library.layer_norm.default(0, value, weight, bias, 1e-3, row)
    normed = F.layer_norm(value.double(), (row,), weight.double(), bias.double(), 1e-3)
    check(found, F.gelu(normed) * 0.5, dtype)


@pytest.mark.parametrize("dtype", UNITS)
@pytest.mark.parametrize("channels", [1, 8, 16, 17, 32, 64, 65, 100, 128, 129, 256])
def test_softmax_over_channels(library, channels, dtype):
    for image in ((129, 31), (8, 16, 32)):
        value, shift = drawn(dtype, 3, channels, *image), drawn(dtype, channels)
        wanted = value.double().softmax(1)
        check(library.softmax.default(5, value), wanted, dtype)
        found = library.softmax.default(1, value, shift)
        check(found, torch.sigmoid(wanted + like(shift, value)), dtype)


@pytest.mark.parametrize("dtype", UNITS)
@pytest.mark.parametrize("plane", [1, 100, 8192, 8193, 131072, 1000001])
def test_softmax_over_positions(library, plane, dtype):
    value, factor = drawn(dtype, 2, 5, plane) * 3, drawn(dtype, 5)
    found = library.plane_softmax.default(2, value, factor)
    wanted = value.double().softmax(2) * like(factor, value)
    assert float((found.double() - wanted).abs().max()) <= UNITS[dtype] * float(wanted.abs().max())


@pytest.mark.parametrize("dtype", UNITS)
@pytest.mark.parametrize("window", [(2, 2, 2), (1, 3, 2), (4, 4, 4), (3, 1, 1)])
def test_pools(library, window, dtype):
    value, factor = drawn(dtype, 3, 7, 15, 33, 31), drawn(dtype, 7)
    found = library.pool.default(3, value, *window, factor)
    check(found, F.silu(F.avg_pool3d(value.double(), window) * like(factor, value)), dtype)
    found = library.pool.default(4, value, *window)
    check(found, torch.tanh(F.max_pool3d(value.double(), window)), dtype)


def test_two_runs_give_the_same_bits(library):
    value = drawn(torch.float32, 4, 32, 16, 64, 64)
    calls = (
        lambda: library.layer_norm.default(0, value, None, None, 1e-3, 64),
        lambda: library.softmax.default(5, value),
        lambda: library.plane_softmax.default(2, value, value[0, :, 0, 0, 0].contiguous()),
        lambda: library.pool.default(4, value, 2, 2, 2),
    )
    for call in calls:
        assert torch.equal(call(), call())


def test_more_than_two_to_the_31_bytes(library):
    """64-bit places, of the last sample."""
    value = torch.zeros(3, 64, 64, 300, 301, dtype=torch.float16, device="cuda")
    value[-1] = drawn(torch.float16, 64, 64, 300, 301)
    wanted = value[-1:].float().softmax(1)
    found = library.softmax.default(5, value)[-1:]
    assert float((found.float() - wanted).abs().max()) <= 2.0**-10
    found = library.pool.default(4, value, 2, 2, 2)[-1:]
    assert torch.equal(found, torch.tanh(F.max_pool3d(value[-1:].float(), 2)).half())


def test_a_model_calls_them(shelf, solution):
    """Eagerly, captured in a graph, and with a gradient."""
    if torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("tails are ours on Hopper alone")
    reference, ours = (model.cuda() for model in shelf[NORMED].pair())
    x = torch.rand(16, 3, 64, 64, 8, device="cuda")
    assert 16 * 8 * 64 * 64 * 8 >= solution["_MANY_OF_TAIL"]  # behind the first pool
    wanted = reference.double()(x.double()).detach()
    profile = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA])
    with torch.no_grad():
        ours(x)
        with profile:
            found = ours(x)
            torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            captured = ours(x)
        graph.replay()
    for y in (found, captured, ours(x).detach()):
        assert float((y.double() - wanted).abs().max()) < 1e-5
    seen = " ".join({event.name for event in profile.events()})
    if "tconv" in seen:
        for name in ("row_norm", "channel_softmax", "plane_softmax", "window_pool"):
            assert f"{name}_kernel" in seen
