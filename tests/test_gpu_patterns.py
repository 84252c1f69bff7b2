"""Generated models on a CUDA GPU against their references: values, gradients, torch.compile."""

import copy

import pytest
import torch

from tests.gpu_tools import DTYPES, KERNELS, captured, forced, settings, tf32
from tests.solution_tools import relative_error

pytestmark = pytest.mark.gpu

# 65 has the kernels of 69, and one build less is half a minute less.
PATTERNS = ["69", "19", "11", "every_step", "soft_activations", "grouped_norm", "pooled"]
# Only BatchNorm knows training from evaluation.
MODES = [(name, True) for name in PATTERNS] + [("11", False), ("pooled", False)]
MODE_IDS = [f"{name}-{'train' if training else 'eval'}" for name, training in MODES]
CHANNELS = {"every_step": 5, "grouped_norm": 4, "pooled": 4}
BOUND = {torch.float32: 2e-5, torch.float64: 1e-13, torch.float16: 4e-3, torch.bfloat16: 3e-2}


def pattern_input(name, dtype=torch.float32, batch=3):
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(batch, CHANNELS.get(name, 64), 13, 21, generator=generator)
    return x.to("cuda", dtype)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("name", "training"), MODES, ids=MODE_IDS)
def test_values(shelf, name, training, dtype, kernel):
    if kernel in ("direct", "portable", "hopper") and dtype == torch.float64:
        pytest.skip("fp64 has the plain kernel only")
    model, new = shelf[name].pair()
    model.to("cuda", dtype).train(training), new.to("cuda", dtype).train(training)
    exact_model = copy.deepcopy(model).double()
    x = pattern_input(name, dtype)
    with forced(kernel), torch.no_grad():
        exact = exact_model(x.double())
        for allowed in settings(dtype):
            if kernel == "hopper" and not allowed:
                continue  # refused: tests/test_gpu_operator.py
            candidate = copy.deepcopy(new)
            with tf32(allowed):
                error = relative_error(candidate(x), exact)
            assert error <= (3e-3 if allowed and dtype == torch.float32 else BOUND[dtype])
            for key, value in candidate.state_dict().items():
                expected = exact_model.state_dict()[key]
                torch.testing.assert_close(
                    value.double(), expected.double(), rtol=10 * BOUND[torch.float16], atol=5e-3
                )


@pytest.mark.parametrize("kernel", ["portable", "hopper"])
@pytest.mark.parametrize("size", [(61, 67), (60, 100), (100, 60), (128, 128)])
def test_groups_too_large_for_one_block(shelf, kernel, size):
    """Their statistics are the convolution's moments, whose tiles end behind the image."""
    model, new = shelf["19"].pair()
    exact_model = copy.deepcopy(model).to("cuda").double()
    for dtype, bound in ((torch.float32, 6e-4), (torch.float16, 6e-4), (torch.bfloat16, 5e-3)):
        candidate = copy.deepcopy(new).to("cuda", dtype)
        x = torch.rand(2, 64, *size, generator=torch.Generator().manual_seed(1)).to("cuda", dtype)
        with forced(kernel), tf32(True), torch.no_grad():
            exact = copy.deepcopy(exact_model).to(dtype).double()(x.double())
            assert relative_error(candidate(x), exact) <= bound


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_slices_that_fit_l2(shelf, dtype):
    """Their number follows from the GPU. In fp32 one sample raises the guard of its slice."""
    model, new = shelf["19"].pair()
    model.to("cuda", dtype), new.to("cuda", dtype)
    sample_bytes = 64 * 252 * 252 * dtype.itemsize
    l2_bytes = torch.cuda.get_device_properties("cuda").L2_cache_size
    batch = l2_bytes // 2 // sample_bytes * 2 + 1
    x = torch.rand(batch, 64, 250, 250, generator=torch.Generator().manual_seed(1))
    x[-1] *= 300
    x = x.to("cuda", dtype)
    with forced("slices"), tf32(True), torch.no_grad():
        y = new(x)
        graph, replayed = captured(new, x)
        graph.replay()
        for i in range(batch):
            exact = copy.deepcopy(model).double()(x[i : i + 1].double())
            assert relative_error(y[i : i + 1], exact) <= max(6e-4, BOUND[dtype])
    assert torch.equal(replayed, y)


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


@pytest.mark.parametrize(
    ("name", "training"), [("69", True), ("19", True), ("11", True), ("11", False)]
)
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
