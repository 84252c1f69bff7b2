"""The operators on a CUDA GPU: kernel choices, dtypes, TF32 settings, streams, graphs, layouts."""

import contextlib
import copy

import pytest
import torch

from tests.solution_tools import (
    GRID,
    Case,
    assert_within,
    conv_bound,
    environment,
    relative_error,
)

pytestmark = pytest.mark.gpu

DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16]


@contextlib.contextmanager
def tf32(allowed):
    old = torch.backends.cudnn.allow_tf32
    torch.backends.cudnn.allow_tf32 = allowed
    try:
        yield
    finally:
        torch.backends.cudnn.allow_tf32 = old


@pytest.fixture(scope="module")
def operator(shelf):
    return shelf["69"].solution["_operator"]


def check(operator, case, dtype, *, allowed, x=None):
    made, weight, bias = case.tensors(dtype, "cuda")
    x = made if x is None else x
    with tf32(allowed):
        y = operator(x, weight, bias, *case.parameters)
    assert y.is_contiguous() and y.dtype == dtype and y.device == x.device
    rounded = allowed and dtype == torch.float32
    operands = [None if t is None else t.cpu().double() for t in (x, weight, bias)]
    bound = conv_bound(
        case, *[t if t is None else t.to(dtype) for t in operands], dtype, tf32=rounded
    )
    assert_within(y, case.reference(*operands), bound)


@pytest.mark.parametrize("kernel", ["plain", "portable", "auto"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("case", GRID, ids=str)
def test_grid(operator, case, dtype, kernel):
    if kernel == "portable" and dtype == torch.float64:
        pytest.skip("fp64 has the plain kernel only")
    with environment(TCONV_KERNEL=kernel):
        for allowed in (True, False) if dtype == torch.float32 else (True,):
            check(operator, case, dtype, allowed=allowed)


def test_tf32_switch_changes_the_answer_at_call_time(operator):
    case = Case(in_channels=64, out_channels=64, kernel=(3, 5), size=(16, 32))
    x, weight, bias = case.tensors(torch.float32, "cuda")
    exact = case.reference(x, weight, bias)
    errors = []
    for allowed in (True, False, True):
        with tf32(allowed):
            errors.append(relative_error(operator(x, weight, bias, *case.parameters), exact))
    assert errors[1] < 3e-6 and errors[1] < errors[0] < 1e-3 and errors[0] == errors[2]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("layout", ["channels_last", "strided", "offset", "expanded"])
def test_layouts(operator, layout, dtype):
    case = Case(batch=2, in_channels=16, size=(8, 24), kernel=(3, 3), stride=(1, 2))
    x = case.tensors(dtype, "cuda")[0]
    if layout == "channels_last":
        x = x.to(memory_format=torch.channels_last)
    elif layout == "strided":
        wide = torch.full((2, 16, 16, 72), float("nan"), dtype=dtype, device="cuda")
        wide[..., ::2, ::3] = x
        x = wide[..., ::2, ::3]
    elif layout == "offset":  # one element off every vector alignment
        flat = torch.empty(x.numel() + 1, dtype=dtype, device="cuda")
        flat[1:] = x.reshape(-1)
        x = flat[1:].view(x.shape)
    else:
        x = x[:1].expand(2, -1, -1, -1)
    check(operator, case, dtype, allowed=True, x=x)


PATTERNS = ["65", "69", "19", "11", "every_step", "grouped_norm", "pooled"]
CHANNELS = {"every_step": 5, "grouped_norm": 4, "pooled": 4}
BOUND = {torch.float32: 2e-5, torch.float64: 1e-13, torch.float16: 4e-3, torch.bfloat16: 3e-2}


def pattern_input(name, dtype=torch.float32, batch=3):
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(batch, CHANNELS.get(name, 64), 13, 21, generator=generator)
    return x.to("cuda", dtype)


@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
@pytest.mark.parametrize("kernel", ["plain", "portable", "auto"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", PATTERNS)
def test_patterns(shelf, name, dtype, kernel, training):
    if kernel == "portable" and dtype == torch.float64:
        pytest.skip("fp64 has the plain kernel only")
    model, new = shelf[name].pair()
    model.to("cuda", dtype).train(training), new.to("cuda", dtype).train(training)
    exact_model = copy.deepcopy(model).double()
    x = pattern_input(name, dtype)
    with environment(TCONV_KERNEL=kernel), torch.no_grad():
        exact = exact_model(x.double())
        for allowed in (True, False) if dtype == torch.float32 else (True,):
            candidate = copy.deepcopy(new)
            with tf32(allowed):
                error = relative_error(candidate(x), exact)
            assert error <= (3e-3 if allowed and dtype == torch.float32 else BOUND[dtype])
            for key, value in candidate.state_dict().items():
                expected = exact_model.state_dict()[key]
                torch.testing.assert_close(
                    value.double(), expected.double(), rtol=10 * BOUND[torch.float16], atol=5e-3
                )


@pytest.mark.parametrize("name", PATTERNS)
def test_gradients(shelf, name):
    model, new = shelf[name].pair()
    model.to("cuda").double(), new.to("cuda").double()
    gradients = []
    for candidate in (model, new):
        x = pattern_input(name, torch.float64).requires_grad_()
        y = candidate(x)
        generator = torch.Generator().manual_seed(3)
        y.backward(torch.randn(y.shape, generator=generator, dtype=y.dtype).cuda())
        gradients.append([x.grad, *(p.grad for p in candidate.parameters())])
    for expected, got in zip(*gradients, strict=True):
        assert (got - expected).norm() <= 1e-10 * max(float(expected.norm()), 1.0)


@pytest.mark.parametrize("name", ["65", "19", "11"])
def test_two_runs_give_the_same_bits(shelf, name):
    _, new = shelf[name].pair()
    new.cuda()
    x = pattern_input(name)
    assert torch.equal(new(x), new(x))


@pytest.mark.parametrize("name", ["65", "19", "11"])
def test_graph_capture(shelf, name):
    _, new = shelf[name].pair()
    new.cuda()
    x = pattern_input(name)
    with torch.no_grad():
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            new(x)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            captured = new(x)
        for seed in range(3):
            torch.manual_seed(seed)
            x.copy_(torch.randn_like(x))
            graph.replay()
            torch.cuda.synchronize()
            assert torch.equal(captured, new(x))


@pytest.mark.parametrize("name", ["65", "19", "11"])
def test_side_stream(shelf, name):
    """The kernels wait for work queued before them on the current stream, and only run there."""
    _, new = shelf[name].pair()
    new.cuda()
    x = pattern_input(name)
    with torch.no_grad():
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


def test_another_device(shelf):
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    _, new = shelf["19"].pair()
    x = pattern_input("19")
    expected = copy.deepcopy(new).cuda()(x)
    assert torch.cuda.current_device() == 0
    y = new.to("cuda:1")(x.to("cuda:1"))
    assert y.device.index == 1 and torch.equal(y.cpu(), expected.cpu())


def test_operands_on_two_devices_are_an_error(operator):
    case = Case()
    x, weight, bias = case.tensors(torch.float32, "cuda")
    with pytest.raises(RuntimeError, match="weight must be on the input's device"):
        operator(x, weight.cpu(), bias, *case.parameters)


@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
@pytest.mark.parametrize("name", ["65", "19", "11"])
def test_compile(shelf, name, training):
    _, new = shelf[name].pair()
    new.cuda().train(training)
    eager = copy.deepcopy(new)
    torch._dynamo.reset()
    compiled = torch.compile(new, fullgraph=True)
    with torch.no_grad():
        for batch in (3, 5):
            x = pattern_input(name, batch=batch)
            torch.testing.assert_close(compiled(x), eager(x))
