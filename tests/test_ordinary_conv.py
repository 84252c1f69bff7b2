"""nn.Conv2d as a transposed convolution: what is turned round, and when PyTorch runs it."""

import random

import pytest
import torch
from torch import nn

from generator.explain import explained
from generator.kernels import sources
from generator.runtime import ordinary_conv
from tests.solution_tools import REFERENCES, generated, program_of


class Transposed:
    """PyTorch's own in the place of the operator, which counts its calls."""

    def __init__(self):
        self.calls = 0

    def __call__(self, x, weight, bias, stride, padding, output_padding, dilation, groups):
        self.calls += 1
        return nn.functional.conv_transpose2d(
            x, weight, bias, stride, padding, output_padding, groups, dilation
        )


@pytest.fixture
def pays(monkeypatch):
    monkeypatch.setattr(ordinary_conv, "_pays", lambda module, x: True)


def random_conv(rng: random.Random) -> nn.Conv2d:
    kernel, dilation = [[rng.randint(1, n) for _ in range(2)] for n in (5, 3)]
    most = [d * (k - 1) + 2 for d, k in zip(dilation, kernel, strict=True)]
    return nn.Conv2d(
        rng.randint(1, 9),
        rng.randint(1, 9),
        kernel,
        padding=[rng.randint(0, n) for n in most],
        dilation=dilation,
        bias=rng.random() < 0.5,
    ).double()


@pytest.mark.parametrize("seed", range(60))
def test_random_layers(pays, seed):
    rng = random.Random(seed)
    torch.manual_seed(seed)
    conv, operator = random_conv(rng), Transposed()
    size = [rng.randint(13, 20) for _ in range(2)]
    x = torch.randn(rng.randint(1, 3), conv.in_channels, *size, dtype=torch.float64)
    with torch.no_grad():
        given = ordinary_conv._ordinary_conv(operator, conv, x)
        torch.testing.assert_close(given, conv(x), rtol=1e-11, atol=1e-10)
    axes = zip(conv.dilation, conv.kernel_size, conv.padding, strict=True)
    assert operator.calls == all(d * (k - 1) >= p for d, k, p in axes)


@pytest.mark.parametrize("wanted", ["x", "weight", "nothing"])
def test_gradients_are_pytorchs(pays, wanted):
    conv, operator = nn.Conv2d(3, 4, 3), Transposed()
    conv.requires_grad_(wanted == "weight")
    x = torch.randn(2, 3, 6, 7).requires_grad_(wanted == "x")
    y = ordinary_conv._ordinary_conv(operator, conv, x)
    assert operator.calls == (wanted == "nothing") == (not y.requires_grad)


class Doubled(nn.Conv2d):
    def forward(self, x):
        return 2 * super().forward(x)


def hooked() -> nn.Conv2d:
    conv = nn.Conv2d(3, 4, 3)
    conv.register_forward_hook(lambda module, given, out: 2 * out)
    return conv


def replaced() -> nn.Conv2d:
    conv = nn.Conv2d(3, 4, 3)
    conv.forward = torch.zeros_like
    return conv


MAKERS = [lambda: Doubled(3, 4, 3), hooked, replaced, nn.Identity]


@pytest.mark.parametrize("make", MAKERS)
def test_other_modules_are_called(pays, make):
    module, operator, x = make(), Transposed(), torch.randn(2, 3, 6, 7)
    with torch.no_grad():
        torch.testing.assert_close(ordinary_conv._ordinary_conv(operator, module, x), module(x))
    assert operator.calls == 0


def large(channels=64, filters=64, side=256, **more) -> tuple[nn.Conv2d, torch.Tensor]:
    """On no device, as if on CUDA."""
    conv = nn.Conv2d(channels, filters, more.pop("kernel", 3), **{"padding": 1} | more)
    return conv.to("meta"), torch.empty(1, channels, side, side, device="meta")


class OnCuda(torch.Tensor):
    """A tensor that says so."""

    is_cuda = True
    device = torch.device("cuda", 0)


def asked(conv, x) -> bool:
    return ordinary_conv._pays(conv, x.as_subclass(OnCuda))


@pytest.fixture
def on_hopper(monkeypatch):
    monkeypatch.setattr(ordinary_conv, "_is_hopper", lambda device: True)


def test_large_ones_are_ours(on_hopper):
    assert asked(*large())
    conv, x = large(512, 512, 64)
    assert asked(conv, x)
    half = [t.to(torch.float16) for t in (conv, x)]
    assert not asked(*half)
    assert not asked(*large(16, 32, 64))


@pytest.mark.parametrize(
    "other",
    [
        {"stride": 2},
        {"groups": 2},
        {"kernel": 1, "padding": 0},
        {"padding": "same"},
        {"padding_mode": "reflect"},
        {"dtype": torch.float64},
    ],
    ids=str,
)
def test_others_stay_pytorchs(on_hopper, other):
    conv, x = large(**other)
    assert not asked(conv, x.to(conv.weight.dtype))


def test_layouts_and_devices(on_hopper):
    conv, x = large()
    assert not ordinary_conv._pays(conv, x)  # on no CUDA device
    assert not asked(conv, x.to(memory_format=torch.channels_last))
    assert not asked(conv, x[0])
    assert not asked(conv, x[:0])


def test_compilers_see_pytorchs(pays, monkeypatch):
    monkeypatch.setattr(ordinary_conv, "_as_operator", lambda: True)
    operator = Transposed()
    with torch.no_grad():
        ordinary_conv._ordinary_conv(operator, nn.Conv2d(3, 4, 3), torch.randn(2, 3, 6, 7))
    assert operator.calls == 0


def test_a_solution_calls_it_where_a_kernel_is_there():
    text = generated(REFERENCES / "unet.py")
    assert "_ordinary_conv(_operator, self.head, " in text
    program = program_of(REFERENCES / "unet.py")
    assert any("but on Hopper" in line.text for line in explained(program))
    assert sources(program).sampled
    other = program_of(REFERENCES / "unet_block.py")  # whose one kernel has a step
    assert not other.ordinary and not sources(other).sampled
    assert "_ordinary_conv" not in generated(REFERENCES / "unet_block.py")
