"""What the tests of the emulated CUDA kernels share."""

import copy

import pytest
import torch

from tests.cuda_emulator import emulator
from tests.solution_tools import environment, relative_error

needs_cuda_headers = pytest.mark.skipif(
    emulator.cuda_headers() is None, reason="no CUDA toolkit: its headers are needed"
)


def forced(kernel: str):
    return environment(TCONV_KERNEL=kernel)


def model_input(dtype=torch.float32, size=(13, 21)):
    generator = torch.Generator().manual_seed(1)
    return torch.randn(2, 64, *size, generator=generator).to(dtype)


def models(reference: dict, emulated):
    """(Model, ModelNew) with parameters of either sign, and a BatchNorm weight of zero."""
    pair = []
    for factory in (reference["Model"], emulated.solution["ModelNew"]):
        torch.manual_seed(0)
        pair.append(factory(*reference["get_init_inputs"]()))
    model, new = pair
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.normal_()
        if hasattr(model, "batch_norm"):
            model.batch_norm.weight[3] = 0.0
    new.load_state_dict(model.state_dict())
    return model, new


def check_model(emulated, model, new, x, bound: float) -> None:
    """Output and buffers of copies in the dtype of x, against the reference in float64."""
    exact_model = copy.deepcopy(model).to(x.dtype).double()
    candidate = copy.deepcopy(new).to(x.dtype)
    with torch.no_grad():
        error = relative_error(candidate(x), exact_model(x.double()))
    assert error <= bound
    for key, value in candidate.state_dict().items():
        wanted = exact_model.state_dict()[key].double()
        torch.testing.assert_close(value.double(), wanted, rtol=0.04, atol=5e-3)
