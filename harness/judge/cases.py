"""The seeded inputs and weights on which a solution is checked."""

import math
from dataclasses import dataclass

import torch
from torch import nn

from harness.judge.drawn import Drawn, drawn
from harness.judge.reference import Reference, batch_of, cast

CASES = ("own", "normal", "wide")

# Exponents of two between which the wide inputs lie, so that sums stay finite in the dtype.
_WIDE_EXPONENTS = {torch.float16: (-8, 4)}
_WIDE_DEFAULT = (-20, 20)
_OFFSET = 4096.0  # a mean over the spread around it


@dataclass
class Case:
    """One input distribution with its weights.

    `inputs` are in the evaluation's dtype on its device; `state` is a state_dict on the CPU. Behind
    a layer that subtracts a mean, roundings before it count `magnified` times as much.
    """

    name: str
    inputs: list
    state: dict
    seed: int
    magnified: float = 1.0


def generator(device: torch.device, seed: int) -> torch.Generator:
    """A seeded generator on the device."""
    return torch.Generator(device).manual_seed(seed)


def make_case(
    name: str,
    reference: Reference,
    state: dict,
    device: torch.device,
    dtype: torch.dtype,
    batch: int | None,
    seed: int,
) -> Case:
    """The case called `name`: "own", "normal", "wide", "offset", "eval", "train", "end",
    "other_size" or "non_finite".

    own: the problem's inputs and freshly drawn weights. normal: zero-mean normal inputs. wide:
    magnitudes log-uniform over 2^-20 .. 2^20 (fp16: 2^-8 .. 2^4) with random signs. offset: as
    normal, with biases that put what convolutions give 4096 times its spread away from zero (see
    `statistics_matter`). eval, train: as normal, for the model in that mode. end: as normal.
    other_size: as normal, with another batch and, behind the
    channels, a seventh less of every dimension; never more elements than evaluated. non_finite: as
    normal, with NaN and both infinities at three places of the first sample. All but the first
    come with re-drawn weights (`redraw`), so that nothing computed from earlier weights survives
    and an affine parameter left out shows; where the weights are `Drawn` they are those of the
    case's own seed.
    """
    inputs = reference.inputs(seed, device, batch)
    if name != "own":
        source = generator(device, seed)
        if name == "other_size":
            inputs = _resized(inputs)
        draw = {"wide": _wide, "non_finite": _non_finite}.get(name, _normal)
        inputs = [
            draw(value, dtype, source)
            if torch.is_tensor(value) and value.is_floating_point()
            else value
            for value in inputs
        ]
        seeded = isinstance(state, Drawn)
        state = drawn(reference, seed, dtype) if seeded else redraw(state, seed)
    if name == "offset":
        state = _with_offset(reference.model(seed), state)
    return Case(name, cast(inputs, dtype), state, seed, _OFFSET if name == "offset" else 1.0)


def statistics_matter(model: nn.Module, dtype: torch.dtype) -> bool:
    """Whether the model normalises by statistics of its input behind a convolution or a matrix with
    a bias: in one pass, by E[x^2] - E[x]^2, their digits cancel where the mean is large.

    Only in 32 and 64 bits: in 16 PyTorch's own layers keep no digit of what lies so far from zero.
    """
    of_input = any(
        isinstance(layer, nn.GroupNorm | nn.LayerNorm)
        or isinstance(layer, nn.modules.batchnorm._NormBase)
        and (layer.training or not layer.track_running_stats)
        for layer in model.modules()
    )
    return of_input and torch.finfo(dtype).bits >= 32 and bool(_biased(model))


def mode_matters(model: nn.Module) -> bool:
    """Whether some layer does something else in eval mode."""
    normalisations = nn.modules.batchnorm._NormBase
    return any(
        isinstance(layer, nn.modules.dropout._DropoutNd)
        or (isinstance(layer, normalisations) and layer.track_running_stats)
        for layer in model.modules()
    )


def _biased(model: nn.Module) -> dict[str, nn.Module]:
    """Convolutions and matrices with a bias, by name."""
    kinds = nn.modules.conv._ConvNd | nn.Linear
    layers = dict(model.named_modules()).items()
    return {n: v for n, v in layers if isinstance(v, kinds) and v.bias is not None}


def _with_offset(model: nn.Module, state: dict) -> dict:
    """Every bias about _OFFSET times the spread of what its layer gives for normal inputs, and
    itself no wider spread than that.
    """
    for name, layer in _biased(model).items():
        weight, bias = (f"{name}.{part}".removeprefix(".") for part in ("weight", "bias"))
        values = state[bias].double()
        products = state[weight].numel() / values.numel()
        if isinstance(layer, nn.modules.conv._ConvTransposeNd):
            products /= math.prod(layer.stride)
        spread = math.sqrt(products * float(state[weight].double().square().mean()))
        values = (values - values.mean()) / values.std(correction=0).clamp(min=1e-12)
        state[bias] = (spread * (_OFFSET + values)).to(state[bias].dtype)
    return state


def _resized(inputs: list) -> list:
    """Tensors that hold all samples with half of the batch, and less of what is behind channels."""
    batch = batch_of(inputs)
    cut = []
    for value in inputs:
        if torch.is_tensor(value) and value.dim() >= 2 and value.shape[0] == batch:
            sizes = [max(1, size - math.ceil(size / 7)) for size in value.shape[2:]]
            window = (slice(0, max(1, batch // 2)), slice(None), *(slice(0, n) for n in sizes))
            value = value[window].contiguous()
        cut.append(value)
    return cut


def _normal(like: torch.Tensor, dtype: torch.dtype, source: torch.Generator) -> torch.Tensor:
    return torch.randn(like.shape, generator=source, device=like.device)


def _wide(like: torch.Tensor, dtype: torch.dtype, source: torch.Generator) -> torch.Tensor:
    low, high = _WIDE_EXPONENTS.get(dtype, _WIDE_DEFAULT)
    draw = torch.rand(like.shape, generator=source, device=like.device).mul_(2).sub_(1)
    sign = draw.sign()
    # |draw| is uniform on [0, 1): it gives the exponent, the sign gives the sign.
    return draw.abs_().mul_(high - low).add_(low).exp2_().mul_(sign)


def _non_finite(like: torch.Tensor, dtype: torch.dtype, source: torch.Generator) -> torch.Tensor:
    values = _normal(like, dtype, source)
    sample = values[0].reshape(-1) if values.dim() > 1 else values.reshape(-1)
    for index, value in enumerate((math.nan, math.inf, -math.inf)):
        sample[(2 * index + 1) * sample.numel() // 6] = value
    return values


def redraw(state: dict, seed: int) -> dict:
    """New values for every floating-point parameter and buffer, of the size of the old ones.

    Weights of two or more dimensions are drawn anew with the old standard deviation; vectors
    (biases, affine weights of a normalisation), and what is constant or a single number, get normal
    noise of 0.5 added, so no affine weight is one and no bias is zero; running variances stay
    positive.
    """
    source = generator(torch.device("cpu"), seed + 1)
    fresh = {}
    for name, tensor in state.items():
        if not tensor.is_floating_point():
            fresh[name] = tensor.clone()
            continue
        noise = torch.randn(tensor.shape, generator=source)
        spread = float(tensor.float().std(correction=0)) if tensor.numel() else 0.0
        if tensor.dim() >= 2 and spread > 0:
            values = noise * tensor.float().std()
        else:
            values = tensor.float() + 0.5 * noise
        if name.endswith("running_var"):
            values = values.abs() + 0.5
        fresh[name] = values.to(tensor.dtype)
    return fresh
