"""Training steps of volumes with steps behind them, whose gradient is formed as it is packed, on a
GPU: larger layers of odd sizes, in several goes, right and the same each time.
"""

import pytest
import torch

from tests.chain_gradient_tools import ALLOWED
from tests.gpu_tools import tf32

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize(
    ("channels", "out_channels", "stride", "shape"),
    [
        (32, 128, 2, (5, 32, 9, 24, 48)),
        (64, 128, 2, (16, 64, 12, 32, 32)),  # in several goes
        (40, 40, 1, (3, 40, 7, 33, 70)),
    ],
)
@pytest.mark.parametrize("dtype", ALLOWED, ids=str)
@pytest.mark.parametrize("factor", [1.0, 1e-9])
def test_a_step_is_right(shelf, channels, out_channels, stride, shape, dtype, factor):
    """factor: of one sample's gradient; containers of fp32 do not hold both."""
    solution = shelf["packed_volumes"].solution
    torch.manual_seed(0)
    new = solution["ModelNew"](channels, out_channels, stride).to(dtype).cuda()
    model = shelf["packed_volumes"].reference["Model"](channels, out_channels, stride)
    model.load_state_dict(new.state_dict())
    model = model.double().cuda()
    x = torch.randn(shape).to(dtype).cuda().requires_grad_()
    exact_x = x.detach().double().requires_grad_()
    with tf32(True):
        y = new(x)
        grad = torch.randn(y.shape).to(dtype).cuda()
        grad[0] *= factor
        leaves = [x, *new.parameters()]
        found, again = (torch.autograd.grad(y, leaves, grad, retain_graph=True) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(found, again, strict=True))
    leaves = [exact_x, *model.parameters()]
    wanted = torch.autograd.grad(model(exact_x), leaves, grad.double())
    for got, right in zip(found, wanted, strict=True):
        assert float((got.double() - right).norm()) <= ALLOWED[dtype] * float(right.norm())
