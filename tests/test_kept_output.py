"""A training step's forward of 2/11 with the convolution's output, which it keeps for backward:
computed before, by the CUDA kernels thread by thread; left by those of a CPU.
"""

import copy

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from tests.emulated_tools import models, needs_cuda_headers
from tests.gpu_tools import tf32

SIZES = [(8, 12), (7, 9)]


def behind(solution, model, x, conv_out, training):
    """(result, the batch's statistics) of the kernels with `conv_out`."""
    conv, norm = model.conv_transpose, model.batch_norm
    mean, var = torch.zeros_like(norm.running_mean), torch.zeros_like(norm.running_var)
    kept = (None, None, None, 0.0, mean, var) if training else (None, None, None, 0.0, None, None)
    read = (None, None) if training else (norm.running_mean, norm.running_var)
    group = model.group_norm
    out = solution["_run"](
        x,
        conv.weight,
        conv.bias,
        (conv.stride, conv.padding, conv.output_padding, conv.dilation, conv.groups),
        (norm.weight, norm.bias, *read, training, norm.eps),
        kept,
        ((2, 2), (2, 2), (0, 0), (1, 1), False),
        (group.num_groups, group.weight, group.bias, group.eps),
        conv_out,
    )
    return out, mean, var


def pair_and_input(model, size, dtype=torch.float32):
    x = torch.randn(3, 64, *size, dtype=dtype, generator=torch.Generator().manual_seed(1))
    model.batch_norm.running_mean.uniform_(-1, 1), model.batch_norm.running_var.uniform_(1, 2)
    return x, model.conv_transpose(x)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("training", [True, False])
def test_on_a_cpu(shelf, training, size):
    model, _ = shelf["11"].pair()
    solution = shelf["11"].solution
    with torch.no_grad():
        x, conv_out = pair_and_input(model, size)
        found = behind(solution, model, x, conv_out, training)
        alone = behind(solution, model, x, None, training)
    assert all(torch.equal(a, b) for a, b in zip(found, alone, strict=True))


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_cpu_leaves_it_in_a_flat_tensor(shelf, training, size, dtype):
    """The batch's chunks one behind the other, and the answer as without."""
    model, _ = shelf["11"].pair()
    solution = shelf["11"].solution
    with torch.no_grad():
        x, conv_out = pair_and_input(model.to(dtype), size, dtype)
        left = torch.full_like(conv_out, torch.nan).flatten()
        found = behind(solution, model, x, left, training)
        alone = behind(solution, model, x, None, training)
    assert all(torch.equal(a, b) for a, b in zip(found, alone, strict=True))
    torch.testing.assert_close(left.view_as(conv_out), conv_out, rtol=1e-5, atol=1e-5)


def gradients(model, x, **options):
    x = x.clone().requires_grad_()
    out = model(x)
    generator = torch.Generator().manual_seed(3)
    grad = torch.randn(out.shape, dtype=torch.float64, generator=generator).to(out.dtype)
    parameters = [p for name, p in model.named_parameters() if name != "conv_transpose.bias"]
    return torch.autograd.grad(out, (x, *parameters), grad, **options)


@pytest.mark.parametrize("create_graph", [False, True])
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("training", [True, False])
def test_a_cpus_backward_reads_it(shelf, monkeypatch, training, layout, create_graph):
    """And computes it again where gradients have gradients. (A convolution's bias before BatchNorm
    has none.)
    """
    solution, again = shelf["11"].solution, []
    compute = solution["_conv_output"]
    monkeypatch.setitem(solution, "_LEAST_KEPT", 1)
    monkeypatch.setitem(solution, "_conv_output", lambda *a: again.append(1) or compute(*a))
    model, new = (part.train(training) for part in shelf["11"].pair())
    x = torch.randn(5, 64, 7, 9, generator=torch.Generator().manual_seed(2))
    exact = gradients(copy.deepcopy(model).double(), x.double())
    found = gradients(new, x.contiguous(memory_format=layout), create_graph=create_graph)
    assert len(again) == create_graph
    for ours, wanted in zip(found, exact, strict=True):
        assert float((ours.detach().double() - wanted).norm() / wanted.norm()) <= 2e-5


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_cpu_keeps_none_in_16_bits(shelf, monkeypatch, dtype):
    monkeypatch.setitem(shelf["11"].solution, "_LEAST_KEPT", 1)
    _, new = shelf["11"].pair()
    found = gradients(new.to(dtype), torch.randn(2, 64, 6, 6, dtype=dtype))
    assert all(bool(part.isfinite().all()) for part in found)


@pytest.mark.parametrize("wanted", [True, False])
def test_kept_where_the_input_wants_a_gradient(shelf, monkeypatch, wanted):
    """A suite that times forwards with gradients enabled asks for none of the input."""
    solution, asked = shelf["11"].solution, []

    def conv_output(x, weight, bias, conv):
        asked.append(x.shape)
        return torch.nn.functional.conv_transpose2d(x, weight, bias, conv.stride, conv.padding)

    monkeypatch.setitem(solution, "_GRADIENT_DEVICES", ("cpu",))
    monkeypatch.setitem(solution, "_LEAST_KEPT", 1)
    monkeypatch.setitem(solution, "_conv_output", conv_output)
    model, new = shelf["11"].pair()
    x = torch.randn(2, 64, 6, 8).requires_grad_(wanted)
    found = new(x)
    assert found.requires_grad and asked == [x.shape] * wanted
    assert torch.allclose(found, model(x), rtol=1e-4, atol=1e-5)


def test_its_products_are_counted_once(shelf):
    """By who computed it, in PyTorch's flop counter."""
    model, _ = shelf["11"].pair()
    counts = []
    with torch.no_grad():
        x, conv_out = pair_and_input(model, SIZES[0])
        for given in (conv_out, None, torch.empty(conv_out.numel())):
            with FlopCounterMode(display=False) as counter:
                behind(shelf["11"].solution, model, x, given, True)
            counts.append(counter.get_total_flops())
        with FlopCounterMode(display=False) as counter:
            model.conv_transpose(x)
    assert counts == [0, *[counter.get_total_flops()] * 2]


@needs_cuda_headers
@pytest.mark.sweep
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("training", [True, False])
def test_by_cuda_kernels(shelf, emulated_solutions, training, size):
    """They read it, and nothing of the convolution's operands."""
    emulated = emulated_solutions["11"]
    model, _ = models(shelf.reference("11"), emulated)
    with torch.no_grad():
        x, conv_out = pair_and_input(model, size)
        conv_out = conv_out.sin() * 3 + 2
        with emulated.on(), tf32(True):
            found, mean, var = behind(emulated.solution, model, x * torch.nan, conv_out, training)
            assert emulated.launches() > 0
        model.train(training)
        exact = model.group_norm(model.max_pool(torch.tanh(model.batch_norm(conv_out))))
    assert float((found - exact).abs().max()) <= 2e-5
    if training:
        assert torch.allclose(mean, conv_out.mean((0, 2, 3)), atol=1e-5)
        assert torch.allclose(var, conv_out.var((0, 2, 3), correction=0), rtol=1e-5)


@pytest.mark.parametrize("wrong", ["shape", "dtype", "count", "strides"])
def test_what_does_not_fit_is_refused(shelf, wrong):
    model, _ = shelf["11"].pair()
    x = torch.randn(2, 64, 6, 8)
    conv_out = torch.empty_like(model.conv_transpose(x))
    flat = torch.empty(2 * conv_out.numel())
    changed = {
        "shape": conv_out[:1],
        "dtype": conv_out.double(),
        "count": flat,
        "strides": flat[::2],
    }
    said = "conv_out must be torch.float32 of shape"
    with torch.no_grad(), pytest.raises(RuntimeError, match=said):
        behind(shelf["11"].solution, model, x, changed[wrong], True)
