"""In the emulator memory that nobody wrote is full of NaN, so that every test there shows a kernel
that reads it, of workspaces and of results.
"""

import pytest
import torch

from tests.emulated_tools import needs_cuda_headers
from tests.gradient_tools import call, output_gradient
from tests.solution_tools import Case

pytestmark = needs_cuda_headers


@pytest.fixture
def idle(emulated_gradients):
    """The library of the gradients, whose launches and memsets do nothing."""
    emulated_gradients._library.emulator_set_idle(1)
    yield emulated_gradients
    emulated_gradients._library.emulator_set_idle(0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16], ids=str)
def test_what_no_kernel_writes_is_nan(idle, dtype):
    case = Case(in_channels=12, out_channels=20)
    x, weight, _ = case.tensors(dtype)
    with idle.on():
        results = call(idle.backward, case, output_gradient(case, dtype), x, weight, True)
    assert [bool(result.isnan().all()) for result in results] == [True] * 3
