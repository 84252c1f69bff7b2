"""The baseline a strong user writes where the stride is one: conv1d, conv2d or conv3d with flipped
weights.

A transposed convolution of stride one, y[o] = sum over i, k with i + k d - p = o of x[i] w[k], is
with k' = K - 1 - k and P = (K - 1) d - p the convolution

    y[o] = sum over k' of x[o - P + k' d] w[K - 1 - k']

of the same dilation d and the padding P, the taps reversed, input and output channels of each group
exchanged. The weights are prepared once, as the convolution's own parameters, so that training goes
through no flip either.
"""

from collections.abc import Sequence

import torch
from torch import nn

from harness.copied import copied
from harness.errors import Rejected
from harness.judge import check
from harness.judge.cases import Case
from harness.judge.truth import expected, loaded
from harness.measure.layouts import in_channels_last, module_in_channels_last
from harness.names import CONV2D

# What takes the place of each.
_CONVOLUTIONS = {
    nn.ConvTranspose1d: nn.Conv1d,
    nn.ConvTranspose2d: nn.Conv2d,
    nn.ConvTranspose3d: nn.Conv3d,
}


def offered(names: Sequence[str], model: nn.Module) -> tuple[list[str], dict[str, str]]:
    """Of these baselines the ones that are the model's operator, and why others are not."""
    why = unlike(model) if CONV2D in names else None
    if why is None:
        return list(names), {}
    return [name for name in names if name != CONV2D], {CONV2D: why}


def unlike(model: nn.Module) -> str | None:
    """Why the model is no chain with convolutions in place of all its transposed ones; None where
    it is.
    """
    kinds = tuple(_CONVOLUTIONS)
    layers = [item for item in model.named_modules() if isinstance(item[1], kinds)]
    if not layers:
        return "the model has no module of a transposed convolution"
    for name, layer in layers:
        if why := _unlike_layer(layer):
            return f"{name or 'the model'} {why}"
    return None


def _unlike_layer(layer: nn.Module) -> str | None:
    if type(layer) not in _CONVOLUTIONS:
        return f"is a {type(layer).__name__}"
    if layer._forward_hooks or layer._forward_pre_hooks:
        return "has hooks"
    if any(step != 1 for step in layer.stride):
        return f"has stride {layer.stride}"
    if any(layer.output_padding):
        return f"has output padding {layer.output_padding}"
    padding = _padding(layer)
    if min(padding) < 0:
        return f"would need the padding {padding}"
    return None


def _padding(layer: nn.Module) -> tuple[int, ...]:
    sizes = zip(layer.kernel_size, layer.dilation, layer.padding, strict=True)
    return tuple((size - 1) * dilation - padding for size, dilation, padding in sizes)


def with_convolutions(model: nn.Module) -> nn.Module:
    """A copy with an nn.Conv2d in place of every nn.ConvTranspose2d, and so in one and three
    dimensions, on the same device, of the same dtype. Raises ValueError where `unlike` gives a
    reason.
    """
    if why := unlike(model):
        raise ValueError(why)
    if type(model) in _CONVOLUTIONS:
        return _convolution(model)
    made = copied(model)
    replaced: dict[nn.Module, nn.Module] = {}
    for parent in list(made.modules()):
        for name, child in parent.named_children():
            if type(child) in _CONVOLUTIONS:
                if child not in replaced:
                    replaced[child] = _convolution(child)
                setattr(parent, name, replaced[child])
    return made


def _convolution(layer: nn.Module) -> nn.Module:
    made = _CONVOLUTIONS[type(layer)](
        layer.in_channels,
        layer.out_channels,
        layer.kernel_size,
        padding=_padding(layer),
        dilation=layer.dilation,
        groups=layer.groups,
        bias=layer.bias is not None,
        device="meta",
    )
    # (in, out / groups, ...) to (out, in / groups, ...), group by group
    grouped = layer.weight.detach().unflatten(0, (layer.groups, -1))
    taps = tuple(range(2, layer.weight.dim()))
    weight = grouped.transpose(1, 2).flatten(0, 1).flip(taps).contiguous()
    made.weight = nn.Parameter(weight, layer.weight.requires_grad)
    if layer.bias is not None:
        made.bias = nn.Parameter(layer.bias.detach().clone(), layer.bias.requires_grad)
    return made.train(layer.training)


def to_time(
    baselines: Sequence[str],
    model: nn.Module,
    case: Case,
    device: torch.device,
    precision: str,
    reduction_length: int,
) -> tuple[list[str], dict[str, str], dict[str, str]]:
    """Those to time, why others are not offered, and why one that was offered is wrong. Out of
    memory is passed on.
    """
    names, not_offered = offered(baselines, model)
    if CONV2D not in names:
        return names, not_offered, {}
    try:
        require_right(model, case, device, precision, reduction_length)
    except torch.cuda.OutOfMemoryError:
        raise
    except Exception as error:  # whatever a reference makes of a convolution in its place
        names.remove(CONV2D)
        return names, not_offered, {CONV2D: f"{type(error).__name__}: {error}"[:500]}
    return names, not_offered, {}


def require_right(
    model: nn.Module, case: Case, device: torch.device, precision: str, reduction_length: int
) -> None:
    """Raise Rejected unless the baseline's answer to the case is within a solution's bounds, and
    whatever it raises: a model may use a layer's weights without calling it.
    """
    answer = expected(model, case, device, False)
    made = with_convolutions(loaded(model, case.state, device, answer.own.dtype))
    made = module_in_channels_last(made)
    with torch.no_grad():
        ours = made(*(in_channels_last(value) for value in case.inputs))
    if ours.shape != answer.own.shape:
        raise Rejected("wrong_shape", f"{tuple(ours.shape)}")
    check.require_right(ours, answer, precision, reduction_length, "normal inputs")
