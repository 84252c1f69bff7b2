"""nn.Conv2d by the kernels of the transposed convolution on a Hopper GPU."""

import pytest
import torch
from torch import nn

from tests.builds_ahead import MANY_CHANNELS
from tests.gpu_tools import LOW, tf32
from tests.solution_tools import assert_within, bound_factor

pytestmark = pytest.mark.gpu

# batch, channels, filters, height, width, kernel, padding, dilation: all large enough
LAYERS = [
    (2, 64, 64, 128, 256, 3, 1, 1),
    (1, 3, 40, 257, 260, 5, 2, 1),
    (3, 24, 5, 160, 150, (1, 4), (0, 2), 1),
    (2, 72, 130, 190, 180, 3, 2, 2),
    (8, 256, 256, 16, 128, 3, 1, 1),
    (16, 512, 160, 16, 18, 3, (1, 0), 1),
]


class Counted:
    def __init__(self, operator):
        self.operator, self.calls = operator, 0

    def __call__(self, *args):
        self.calls += 1
        return self.operator(*args)


@pytest.mark.parametrize("behind_softmax", [False, True])
@pytest.mark.parametrize(
    ("dtype", "allowed"),
    [(torch.float32, True), (torch.float32, False), *((dtype, True) for dtype in LOW)],
    ids=str,
)
@pytest.mark.parametrize("layer", LAYERS, ids=str)
def test_it_is_ours_and_right(shelf, layer, dtype, allowed, behind_softmax):
    if torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("ordinary convolutions are ours on Hopper alone")
    batch, channels, filters, height, width, kernel, padding, dilation = layer
    torch.manual_seed(0)
    conv = nn.Conv2d(channels, filters, kernel, padding=padding, dilation=dilation)
    conv = conv.cuda().to(dtype)
    x = torch.randn(batch, channels, height, width, device="cuda")
    if behind_softmax:
        x = torch.softmax(4 * x, -1)
    x = x.to(dtype)
    solution = shelf[MANY_CHANNELS].solution
    operator = Counted(solution["_operator"])
    with tf32(allowed), torch.no_grad():
        y = solution["_ordinary_conv"](operator, conv, x)
    assert operator.calls == (batch * height * width >= 1 << 16 or dtype == torch.float32)
    exact = [t.detach().double() for t in (x, conv.weight, conv.bias)]
    arguments = {"padding": conv.padding, "dilation": conv.dilation}
    wanted = nn.functional.conv2d(*exact, **arguments)
    is_tf32 = dtype == torch.float32 and allowed
    factor = bound_factor(conv.weight[0].numel(), dtype, dtype, tf32=is_tf32)
    magnitude = nn.functional.conv2d(*(t.abs() for t in exact), **arguments)
    assert_within(y, wanted, factor * magnitude)
