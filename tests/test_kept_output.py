"""What a training step's forward of 2/11 keeps for backward: on a CPU by its own kernels, and by
the CUDA kernels thread by thread.
"""

import pytest
import torch

from tests.emulated_tools import forced, models, needs_cuda_headers
from tests.gpu_tools import tf32

SIZES = [(8, 12), (7, 9)]


def kept_of(solution, model, x, conv_out, training):
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


def check_kept(solution, model, training, size, bound):
    x = torch.randn(3, 64, *size, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        model.batch_norm.running_mean.uniform_(-1, 1), model.batch_norm.running_var.uniform_(1, 2)
        exact = model.conv_transpose(x)
        conv_out = torch.full_like(exact, float("nan"))
        found, mean, var = kept_of(solution, model, x, conv_out, training)
        alone, *_ = kept_of(solution, model, x, None, training)
    scale = float(exact.abs().max())
    assert float((conv_out - exact).abs().max()) <= bound * scale
    assert float((found - alone).abs().max()) <= 10 * bound
    if training:
        assert torch.allclose(mean, conv_out.mean((0, 2, 3)), atol=1e-6 * scale)
        assert torch.allclose(var, conv_out.var((0, 2, 3), correction=0), rtol=1e-5)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("training", [True, False])
def test_on_a_cpu(shelf, training, size):
    model, _ = shelf["11"].pair()
    check_kept(shelf["11"].solution, model, training, size, 1e-5)


@needs_cuda_headers
@pytest.mark.sweep
@pytest.mark.parametrize("kernel", ["auto", "hopper", "portable", "plain"])
@pytest.mark.parametrize("training", [True, False])
def test_by_cuda_kernels(shelf, emulated_solutions, training, kernel):
    emulated = emulated_solutions["11"]
    model, _ = models(shelf.reference("11"), emulated)
    with emulated.on(), forced(kernel), tf32(True):
        check_kept(emulated.solution, model, training, SIZES[0], 2e-3)
        assert emulated.launches() > 0


@pytest.mark.parametrize("wrong", ["shape", "dtype", "layout"])
def test_what_cannot_be_written_is_refused(shelf, wrong):
    model, _ = shelf["11"].pair()
    x = torch.randn(2, 64, 6, 8)
    conv_out = torch.empty_like(model.conv_transpose(x))
    changed = {
        "shape": conv_out[:1],
        "dtype": conv_out.double(),
        "layout": conv_out.to(memory_format=torch.channels_last),
    }
    with torch.no_grad(), pytest.raises(RuntimeError, match="conv_out must be contiguous"):
        kept_of(shelf["11"].solution, model, x, changed[wrong], True)
