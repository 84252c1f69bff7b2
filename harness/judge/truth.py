"""What the right answer is: the reference in float64, and PyTorch's own answer beside it."""

import math
from dataclasses import dataclass, field, replace

import torch
from torch import nn

from harness.copied import copied
from harness.errors import UsageError
from harness.judge.cases import Case, generator
from harness.judge.joined import layout_of
from harness.judge.one_answer import drawing_nothing, require_the_same_again
from harness.judge.reference import batch_of, cast
from harness.judge.wire import spec_of

# Layers that treat each sample by itself, so that the truth may be computed in parts of the batch.
_PER_SAMPLE = (
    nn.modules.conv._ConvNd,
    nn.Linear,
    nn.GroupNorm,
    nn.LayerNorm,
    nn.modules.instancenorm._InstanceNorm,
    nn.modules.pooling._MaxPoolNd,
    nn.modules.pooling._AvgPoolNd,
    nn.ReLU,
    nn.GELU,
    nn.Tanh,
    nn.Sigmoid,
    nn.Hardtanh,
    nn.Identity,
)
_CPU_CHUNK_BYTES = 1 << 30


class NotFinite(UsageError):
    """A case to which the reference's own answer is not finite."""


@dataclass
class Expected:
    """Truth and PyTorch's own result for one case.

    `truth` is float64 on the evaluation's device, `own` in its dtype. Buffers are those after the
    call. Gradients are listed as inputs first, then parameters; `gradient_names` names them, and
    one that the reference does not have (of what its forward does not use) is None. Each would be
    of `gradient_specs` ({"shape", "dtype"}).
    """

    truth: torch.Tensor
    own: torch.Tensor
    buffers: dict[str, torch.Tensor]
    own_buffers: dict[str, torch.Tensor]
    gradient_names: list[str] = field(default_factory=list)
    gradient_specs: list[dict] = field(default_factory=list)
    gradients: list[torch.Tensor | None] = field(default_factory=list)
    own_gradients: list[torch.Tensor | None] = field(default_factory=list)
    grad_output: torch.Tensor | None = None
    constant: bool = False  # nearly: a constant would do as an answer
    layout: dict | None = None  # of several outputs, joined to one
    case: Case | None = None
    model: nn.Module | None = None
    own_error: object = None  # filled in by whoever compares, as the next
    parts: list["Expected"] = field(default_factory=list)  # one for each of several outputs


def expected(model: nn.Module, case: Case, device: torch.device, backward: bool) -> Expected:
    """Run the reference on copies of the case's inputs, at its own precision and in float64.

    `model` is the reference on the CPU; it is copied, never changed. The TF32 switches must be
    set by the caller. Raises UsageError when the reference's answer is of no use as a measure.
    """
    dtype = _dtype_of(case)
    own_model = loaded(model, case.state, device, dtype)
    inputs = _leaves(case.inputs, backward)
    with torch.set_grad_enabled(backward), drawing_nothing(own_model, device):
        own = own_model(*inputs)
    if not isinstance(own, torch.Tensor):
        raise UsageError(f"the reference returns a {type(own).__name__}, supported is one tensor")
    grad_output = None
    if backward:
        if not own.requires_grad:
            raise UsageError("--backward: the reference's output has no gradient")
        draw = torch.randn(own.shape, generator=generator(device, case.seed + 2), device=device)
        grad_output = draw.to(own.dtype)
        own.backward(grad_output)
    result = Expected(
        truth=torch.empty(0),
        own=own.detach(),
        buffers={},
        own_buffers=_buffers(own_model),
        grad_output=grad_output,
        layout=layout_of(own_model),
        case=case,
        model=model,
    )
    if backward:
        holders = [*_floating(inputs), *own_model.parameters()]
        result.own_gradients = [holder.grad for holder in holders]
        result.gradient_specs = [spec_of(holder) for holder in holders]
        result.gradient_names = [f"input {i}" for i, _ in enumerate(_floating(inputs))]
        result.gradient_names += [name for name, _ in own_model.named_parameters()]
        del holders
    del inputs, own, own_model
    _fill_truth(result, model, case, device, backward)
    _require_useful(result, case)
    result.constant = _is_constant(result.truth)
    return result


def exact_gradients(answer: Expected, case: Case) -> list[torch.Tensor | None]:
    """The gradients in float64 at another point: inputs and weights of another case, the output's
    gradient of the answer.
    """
    result = replace(answer)
    _fill_truth(result, answer.model, case, answer.own.device, True)
    return result.gradients


def _fill_truth(result: Expected, model, case: Case, device, backward: bool) -> None:
    exact = loaded(model, case.state, device, torch.float64)
    count = batch_of(case.inputs)
    step = None if result.layout else _chunk(result.own, exact, count, device)
    result.truth = torch.empty(result.own.shape, dtype=torch.float64, device=device)
    parts = [[] for _ in result.own_gradients]
    for begin in range(0, count or 1, step or 1):
        whole = step is None or step >= (count or 1)
        window = slice(None) if whole else slice(begin, begin + step)
        inputs = _leaves([_window(v, window, count) for v in case.inputs], backward, torch.float64)
        with torch.set_grad_enabled(backward):
            output = exact(*inputs)
        result.truth[window].copy_(output.detach()) if output.dim() else result.truth.copy_(output)
        if backward:
            output.backward(result.grad_output[window].double())
            for part, value in zip(parts, _floating(inputs), strict=False):
                part.append(value.grad)
        del output, inputs
        if whole:
            break
    result.buffers = _buffers(exact)
    if case.name == "own" and any(
        not torch.equal(value, case.state[name].cpu().to(value.dtype))
        for name, value in result.buffers.items()
    ):
        inputs = _leaves(case.inputs, False, torch.float64)
        require_the_same_again(exact, inputs, result.truth)
    if backward:
        from_inputs = [_joined(part) for part in parts if part]
        result.gradients = from_inputs + [p.grad for p in exact.parameters()]


def _joined(parts: list[torch.Tensor | None]) -> torch.Tensor | None:
    if parts[0] is None or len(parts) == 1:
        return parts[0]
    return torch.cat(parts)


def loaded(model: nn.Module, state: dict, device: torch.device, dtype: torch.dtype) -> nn.Module:
    """A copy of the model on the device in the dtype, with the state copied in strictly."""
    fresh = copied(model).to(device=device, dtype=dtype)
    fresh.load_state_dict(state, strict=True)
    return fresh


def treats_samples_alone(model: nn.Module) -> bool:
    """Whether every layer of the model treats each sample by itself.

    BatchNorm does so in eval mode only. A mistake here could not go unseen: the truth would
    disagree with PyTorch's own full-batch answer, which is refused.
    """
    for layer in model.modules():
        if any(True for _ in layer.children()):
            continue
        batch_norm = isinstance(layer, nn.modules.batchnorm._BatchNorm)
        if batch_norm and not layer.training and layer.track_running_stats:
            continue
        if not isinstance(layer, _PER_SAMPLE):
            return False
    return True


def _chunk(own: torch.Tensor, exact: nn.Module, count: int | None, device) -> int | None:
    """Samples per part of the float64 computation, None for all at once."""
    if not count or own.dim() == 0 or own.shape[0] != count or not treats_samples_alone(exact):
        return None
    budget = _CPU_CHUNK_BYTES
    if device.type == "cuda":
        budget = torch.cuda.mem_get_info(device)[0] // 6
    per_sample = 6 * 8 * max(own.numel() // count, 1)  # the output and some intermediates
    return max(1, min(count, budget // per_sample))


def _window(value, window: slice, count: int | None):
    whole = window == slice(None)
    if whole or not torch.is_tensor(value) or value.dim() == 0 or value.shape[0] != count:
        return value
    return value[window]


def _require_useful(result: Expected, case: Case) -> None:
    if result.own.numel() == 0:
        return
    name = f"case {case.name!r}"
    pairs = zip(result.gradients, result.own_gradients, strict=True)
    if any((truth is None) != (own is None) for truth, own in pairs):
        told = "the reference has other gradients in float64"
        raise UsageError(f"{name}: {told}; it measures nothing")
    if not all(is_finite(value) for value in (result.truth, result.own)):
        raise NotFinite(f"{name}: the reference's own output is not finite; it measures nothing")


def _is_constant(truth: torch.Tensor) -> bool:
    """A single number is none: another case has another one."""
    if truth.numel() < 2:
        return False
    spread, size = float(truth.std(correction=0)), float(truth.abs().max())
    return not spread > 1e-6 * size


def is_finite(value: torch.Tensor) -> bool:
    """A finite sum has finite terms, and is had faster; an infinite one may have overflowed."""
    return math.isfinite(float(value.sum())) or bool(torch.isfinite(value).all())


def _dtype_of(case: Case) -> torch.dtype:
    values = _floating(case.inputs)
    if not values:
        raise UsageError("the reference's inputs hold no floating-point tensor")
    return values[0].dtype


def _leaves(values: list, backward: bool, dtype: torch.dtype | None = None) -> list:
    copies = [value.detach().clone() if torch.is_tensor(value) else value for value in values]
    copies = copies if dtype is None else cast(copies, dtype)
    if backward:
        for value in _floating(copies):
            value.requires_grad_(True)
    return copies


def _floating(values: list) -> list:
    return [value for value in values if torch.is_tensor(value) and value.is_floating_point()]


def _buffers(model: nn.Module) -> dict:
    parameters = {name for name, _ in model.named_parameters()}
    state = model.state_dict().items()
    return {name: value.detach().cpu() for name, value in state if name not in parameters}
