"""How the kernels live with CUDA: determinism, streams, devices, graph capture, the range guard."""

import copy

import pytest
import torch

from tests.gpu_tools import KERNELS, LOW, NAN, captured, check_replays, forced, tf32
from tests.solution_tools import Case, relative_error
from tests.test_gpu_patterns import pattern_input

pytestmark = pytest.mark.gpu

NAMES = ["69", "19", "11"]


@pytest.fixture(scope="module")
def operator(shelf):
    return shelf["69"].solution["_operator"]


def model_on(shelf, name, device="cuda", dtype=torch.float32):
    return shelf[name].pair()[1].to(device, dtype)


def fill_free_memory():
    """NaN in the blocks that the next workspace is likely to come from."""
    blocks = [torch.full((1 << size,), NAN, device="cuda") for size in range(8, 24)]
    torch.cuda.synchronize()
    del blocks


# Determinism ------------------------------------------------------------------------------------


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("dtype", [torch.float32, *LOW], ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_the_same_bits_every_time(shelf, name, dtype, kernel):
    new = model_on(shelf, name, dtype=dtype)
    scales = (1, 1e6) if dtype == torch.float32 else (1,)  # 1e6: behind the range guard
    with torch.no_grad(), forced(kernel):
        for scale in scales:
            x = pattern_input(name, dtype) * scale
            first = new(x)
            for _ in range(3):
                fill_free_memory()
                assert torch.equal(new(x), first)


# Streams ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("name", NAMES)
def test_side_stream(shelf, name, kernel):
    """The kernels wait for work queued before them on the current stream, and only run there."""
    new, x = model_on(shelf, name), pattern_input(name)
    with torch.no_grad(), forced(kernel):
        expected = new(x)
        side = torch.cuda.Stream()
        late = torch.zeros_like(x)
        torch.cuda.synchronize()
        with torch.cuda.stream(side):
            torch.cuda._sleep(50_000_000)
            late.copy_(x)
            y = new(late)
            assert not side.query()  # nothing in the call synchronised
        side.synchronize()
    assert torch.equal(y, expected)


# Devices ----------------------------------------------------------------------------------------


def needs_two_gpus():
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    kinds = {torch.cuda.get_device_properties(i).name for i in range(2)}
    if len(kinds) > 1:
        pytest.skip(f"needs two GPUs of one kind, here are {kinds}")


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("name", NAMES)
def test_another_device(shelf, name, kernel):
    """Model and input on cuda:1 while cuda:0 is current, by turns with calls on cuda:0."""
    needs_two_gpus()
    here, x = model_on(shelf, name), pattern_input(name)
    there = model_on(shelf, name, "cuda:1")
    with torch.no_grad(), forced(kernel):
        expected = here(x)
        for _ in range(2):
            y = there(x.to("cuda:1"))
            assert torch.cuda.current_device() == 0
            assert y.device.index == 1 and torch.equal(y.cpu(), expected.cpu())
            assert torch.equal(here(x), expected)


@pytest.mark.parametrize("name", NAMES)
def test_another_devices_stream(shelf, name):
    """Work goes to the current stream of the input's device."""
    needs_two_gpus()
    there, x = model_on(shelf, name, "cuda:1"), pattern_input(name).to("cuda:1")
    with torch.no_grad():
        expected = there(x)
        side, late = torch.cuda.Stream("cuda:1"), torch.zeros_like(x)
        torch.cuda.synchronize("cuda:1")
        with torch.cuda.stream(side), torch.cuda.device(0):
            assert torch.cuda.current_stream("cuda:1") == side
            with torch.cuda.device(1):
                torch.cuda._sleep(50_000_000)
            late.copy_(x)
            y = there(late)
            assert not side.query()
        side.synchronize()
    assert torch.equal(y, expected)


# Graphs and the guard ---------------------------------------------------------------------------


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("name", NAMES)
def test_graph_capture(shelf, name, kernel):
    new, x = model_on(shelf, name), pattern_input(name)
    with torch.no_grad(), forced(kernel):
        graph, y = captured(new, x)
        check_replays(graph, new, x, y, torch.randn_like)


@pytest.mark.parametrize("kernel", ["portable", "hopper", "auto"])
@pytest.mark.parametrize("name", NAMES)
def test_guard_in_a_captured_graph(shelf, name, kernel):
    """Replays follow the range of their own input: in range, beyond, far below, in range again."""
    model, _ = shelf[name].pair()
    new, x = model_on(shelf, name), pattern_input(name)
    exact_model = copy.deepcopy(model).to("cuda").double()
    base = x.clone()
    with torch.no_grad(), forced(kernel), tf32(True):
        graph, y = captured(new, x)
        for scale in (1.0, 1e6, 1.0, 1e-12, 1e30, 1.0):
            if name != "69" and scale not in (1.0, 1e6):
                continue  # a normalisation is no measure there: 1e60 overflows, eps hides 1e-24
            x.copy_(base * scale)
            fill_free_memory()
            graph.replay()
            torch.cuda.synchronize()
            assert torch.equal(y, new(x)), scale
            assert relative_error(y, exact_model(x.double())) <= 3e-3, scale


@pytest.mark.parametrize("value", [NAN, float("inf")])
def test_a_graph_forgets_what_was_not_finite(operator, value):
    case = Case(in_channels=64, out_channels=64, size=(12, 40))
    x, weight, bias = case.tensors(torch.float32, "cuda")
    clean, exact = x.clone(), case.reference(x, weight, bias)
    with torch.no_grad(), tf32(True):
        graph, y = captured(lambda x: operator(x, weight, bias, *case.parameters), x)
        for broken in (False, True, False):
            x.copy_(clean)
            if broken:
                x[1, 5, 6, 20] = value
            graph.replay()
            torch.cuda.synchronize()
            if broken:
                touched = torch.zeros_like(y, dtype=torch.bool)
                touched[1, :, 6:9, 20:23] = True
                assert torch.equal(~y.isfinite(), touched)
            else:
                assert relative_error(y, exact) <= 1e-3
