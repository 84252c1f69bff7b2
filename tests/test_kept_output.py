"""A training step's forward of 2/11 with the convolution's output, which it keeps for backward,
computed before: on a CPU, whose kernels compute it anyway, and by the CUDA kernels thread by
thread.
"""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from tests.emulated_tools import models, needs_cuda_headers
from tests.gpu_tools import tf32

SIZES = [(8, 12), (7, 9)]


def behind(solution, model, x, conv_out, training):
    """(result, the batch's statistics) of the kernels with `conv_out`."""
    conv, norm = model.conv_transpose, model.batch_norm
    mean, var = torch.zeros(norm.num_features), torch.zeros(norm.num_features)
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


def pair_and_input(model, size):
    x = torch.randn(3, 64, *size, generator=torch.Generator().manual_seed(1))
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
        for given in (conv_out, None):
            with FlopCounterMode(display=False) as counter:
                behind(shelf["11"].solution, model, x, given, True)
            counts.append(counter.get_total_flops())
        with FlopCounterMode(display=False) as counter:
            model.conv_transpose(x)
    assert counts == [0, counter.get_total_flops()]


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


@pytest.mark.parametrize("wrong", ["shape", "dtype"])
def test_what_does_not_fit_is_refused(shelf, wrong):
    model, _ = shelf["11"].pair()
    x = torch.randn(2, 64, 6, 8)
    conv_out = torch.empty_like(model.conv_transpose(x))
    changed = {"shape": conv_out[:1], "dtype": conv_out.double()}
    said = "conv_out must be torch.float32 of shape"
    with torch.no_grad(), pytest.raises(RuntimeError, match=said):
        behind(shelf["11"].solution, model, x, changed[wrong], True)
