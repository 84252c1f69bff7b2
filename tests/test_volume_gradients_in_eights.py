"""Gradients of volumes where input channels are no multiple of eight: the kernels get more."""

import types

import pytest
import torch
import torch.nn.functional as F

from generator.runtime import packed_volume_gradients, volume_gradients
from generator.runtime.activation_gradients import _Relu
from generator.runtime.step_gradients import _Multiply

# Stride, padding, output padding, dilation; each of depth, height and width.
AXES = (2, 1, 2), (1, 0, 1), (0, 0, 1), (1, 1, 2)


def pytorchs(grad, x, weight, axes, groups):
    stride, padding, output_padding, dilation = axes
    sizes = stride, padding, dilation, True, output_padding, groups, [True, True, False]
    return torch.ops.aten.convolution_backward.default(grad, x, weight, None, *sizes)[:2]


@pytest.fixture
def asked(monkeypatch):
    """Channels that PyTorch's own, in the place of the operators, are called with."""
    channels = []

    def operator(library, name, count, results):
        def call(grad, x, weight, bias, *numbers):
            *axes, groups, _ = numbers
            channels.append(x.shape[1])
            made = [x.new_empty(0)] * 2
            if x.shape[1] // groups % 8 == 0:
                axes = [axes[first : first + 3] for first in range(0, 12, 3)]
                made = [g.flatten(0, 1) for g in pytorchs(grad, x, weight, axes, groups)]
            return made if results > 1 else made[name == "depth_weight_gradient"]

        return call

    monkeypatch.setattr(volume_gradients, "_gradient_library", lambda: None)
    monkeypatch.setattr(volume_gradients, "_declining_operator", operator)
    return channels


def operands(channels, groups=1):
    generator = torch.Generator().manual_seed(channels)

    def drawn(*shape):
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    x, weight = drawn(2, channels, 3, 4, 5), drawn(channels, 6, 3, 2, 3)
    stride, padding, output_padding, dilation = AXES
    y = F.conv_transpose3d(x, weight, None, stride, padding, output_padding, groups, dilation)
    return drawn(*y.shape), x, weight, AXES, groups


@pytest.mark.parametrize("needs", [(True, True), (True, False), (False, True)], ids=str)
@pytest.mark.parametrize("channels", [1, 3, 7, 8, 12, 16])
def test_as_pytorchs(asked, channels, needs):
    given = operands(channels)
    found = volume_gradients._in_place(*given, needs)
    for mine, theirs, need in zip(found, pytorchs(*given), needs, strict=True):
        assert (mine is not None) == need
        if need:
            assert mine.shape == theirs.shape and mine.is_contiguous()
            assert torch.allclose(mine, theirs)
    assert set(asked) == {-(-channels // 8) * 8}


def test_groups_are_left_as_they_are(asked):
    found = volume_gradients._in_place(*operands(6, groups=2), (True, True))
    assert found == [None, None] and set(asked) == {6}


@pytest.mark.parametrize("channels", [3, 8, 12])
@pytest.mark.parametrize("kept", [True, False])
def test_with_a_chain(monkeypatch, channels, kept):
    """Which has been given where the kernels are to compute it of x as it is."""
    grad, x, weight, axes, groups = operands(channels)
    given = []

    def operator(library, name, count, results):
        def call(grad, x, weight, bias, *numbers, value, chain, need_bias):
            given.append((x.shape[1], weight.shape[0], value))
            found = pytorchs(grad, x, weight, axes, groups)
            return *(g.flatten(0, 1) for g in found), grad.sum((0, 2, 3, 4)), grad.new_zeros(0, 6)

        return call

    module, value = packed_volume_gradients, torch.ones(1)
    monkeypatch.setattr(module, "_gradient_library", lambda: None)
    monkeypatch.setattr(module, "_declining_operator", operator)
    of_chain = (), value if kept else None, 0
    needs = True, True, True
    found = module._packed_gradients(grad, x, weight, None, axes, groups, of_chain, needs)
    wanted = *pytorchs(grad, x, weight, axes, groups), grad.sum((0, 2, 3, 4))
    for mine, theirs in zip(found, wanted, strict=True):
        assert mine.shape == theirs.shape and mine.is_contiguous()
        assert torch.allclose(mine, theirs)
    ((of_x, of_weight, made),) = given
    assert of_x == of_weight == -(-channels // 8) * 8
    assert made is (value if kept else None)


@pytest.mark.parametrize(("channels", "groups"), [(3, 1), (12, 1), (8, 1), (6, 2)])
def test_the_chains_value_is_made_of_x_as_it_is(monkeypatch, channels, groups):
    """Once, and before it is known whether the chain is packed."""
    grad, x, weight, axes, _ = operands(channels)
    made, seen = torch.full((), 5.0), []
    monkeypatch.setattr(volume_gradients, "_GRADIENT_DEVICES", ("cpu",))
    monkeypatch.setattr(volume_gradients, "_library_volumes", lambda x, *rest: made)

    def packed(grad, x, weight, bias, axes, groups, of_chain, needs):
        seen.append(of_chain[1])
        return ["packed"]

    monkeypatch.setattr(volume_gradients, "_packed_gradients", packed)
    ctx = types.SimpleNamespace(
        call=(None, ((_Relu(),), 0, None), axes, groups),
        needs_input_grad=(*[False] * 5, True, True, True),
        saved_tensors=(x, weight, None, None),
    )
    with torch.no_grad():
        assert volume_gradients._gradients_of_volumes(ctx, grad) == ["packed"]
    assert seen == [made if groups == 1 and channels % 8 else None]


@pytest.mark.parametrize("channels", [3, 8])
def test_a_chain_that_reads_no_value_is_packed_too(monkeypatch, channels):
    """The gradient stands where its value would be read; nothing is computed again."""
    grad, x, weight, axes, groups = operands(channels)
    seen = []
    monkeypatch.setattr(volume_gradients, "_GRADIENT_DEVICES", ("cpu",))
    monkeypatch.setattr(volume_gradients, "_library_volumes", None)
    monkeypatch.setattr(
        volume_gradients, "_packed_gradients", lambda *given: seen.append(given) or ["packed"]
    )
    ctx = types.SimpleNamespace(
        call=(None, ((_Multiply(2.0),), 7, None), axes, groups),
        needs_input_grad=(*[False] * 5, True, True, True),
        saved_tensors=(x, weight, None, None),
    )
    with torch.no_grad():
        assert volume_gradients._gradients_of_volumes(ctx, grad) == ["packed"]
    ((given, *_, (vectors, value, number), needs),) = seen
    assert given is value and value is grad and vectors == [] and number == 7
