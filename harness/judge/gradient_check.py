"""Are these gradients right? Presence, shape and dtype, error, in this order."""

import math

import torch

from harness.errors import Rejected
from harness.judge import bounds, jumps, wire
from harness.judge.candidate import Candidate, checked_specs
from harness.judge.check import rms
from harness.judge.truth import Expected, is_finite


def sent_gradients(reply: dict, expected: Expected, where: str) -> list[dict | None]:
    """The descriptions of the gradients that a reply announces, None for one that is missing.

    Where the reference has no gradient (of a parameter that its forward does not use), None and a
    gradient are both taken here. Raises Rejected for a missing one elsewhere and for a wrong shape
    or dtype.
    """
    found, names = reply.get("gradients"), expected.gradient_names
    if not isinstance(found, list) or len(found) != len(names):
        raise Rejected("protocol_violation", "a malformed list of gradients")
    checked_specs([spec for spec in found if spec is not None])
    own = expected.own_gradients
    missing = [
        name
        for name, spec, value in zip(names, found, own, strict=True)
        if spec is None and value is not None
    ]
    if missing:
        raise Rejected("missing_gradient", f"{where}: no gradient for {missing}")
    for name, spec, wanted in zip(names, found, expected.gradient_specs, strict=True):
        if spec is not None and spec != wanted:
            raise Rejected("wrong_gradient", f"{where}: {name}: it is {spec}, expected {wanted}")
    return found


def sent_bytes(found: list[dict | None]) -> int:
    """How many bytes of the outbox these gradients take."""
    return sum(wire.spec_bytes(spec) for spec in found if spec is not None)


def require_right_gradients(
    candidate: Candidate,
    found: list[dict | None],
    offset: int,
    expected: Expected,
    precision: str,
    lengths: list[int],
    where: str,
) -> dict:
    """Raise Rejected unless every gradient is right; returns their errors by name.

    `found` is what `sent_gradients` gives, `lengths` are the reduction lengths, one for each
    gradient. Where the reference has none, one that is sent must be zero.
    """
    record = {}
    scales = layer_scales(expected)
    for index, (name, spec) in enumerate(zip(expected.gradient_names, found, strict=True)):
        if spec is None:
            continue
        ours = candidate.read(offset, spec, candidate.device)
        offset += wire.spec_bytes(spec)
        if expected.own_gradients[index] is None:
            if bool(ours.count_nonzero()):  # NaN counts
                told = "it is not zero, and the reference has none"
                raise Rejected("wrong_gradient", f"{where}: gradient of {name}: {told}")
            continue
        record[name] = require_right_gradient(
            ours, expected, index, precision, lengths[index], scales[index], where
        )
    return record


def require_right_gradient(
    ours: torch.Tensor,
    expected: Expected,
    index: int,
    precision: str,
    length: int,
    scale: float,
    where: str,
) -> dict:
    """The errors of gradient `index`, which the reference has; `scale` is `layer_scales`'s for it.

    Raises Rejected where it is wrong.
    """
    truth, own = expected.gradients[index], expected.own_gradients[index]
    if not is_finite(own):
        own, ours = _within_range(own, ours, truth)
    sizes = {"rms": rms(ours, truth), "pytorch_rms": rms(own, truth)}
    sizes["reference_rms"] = rms(truth)
    limit = bounds.gradient_bound(
        precision, length, sizes["pytorch_rms"], sizes["reference_rms"], scale
    )
    record = {**sizes, "rms_bound": limit}
    if not sizes["rms"] <= limit and math.isfinite(sizes["rms"]):
        size = sizes["reference_rms"] + scale
        relative = bounds.relative_bound(precision, length)
        jump = jumps.allowed_by_jumps(expected, index, sizes["rms"], relative, size)
        if jump > limit:
            limit = record["rms_bound"] = jump
            record["jumps"] = True
    if not sizes["rms"] <= limit:
        raise Rejected(
            "wrong_gradient",
            f"{where}: gradient of {expected.gradient_names[index]}: rms error {sizes['rms']:.3g}, "
            f"allowed {limit:.3g}, PyTorch's {sizes['pytorch_rms']:.3g}; rms of the true one "
            f"{sizes['reference_rms']:.3g}",
        )
    return record


def _within_range(
    own: torch.Tensor, ours: torch.Tensor, truth: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Both with the truth where PyTorch's own is not finite, as a sum beyond fp16's range is: there
    ours is right or not finite either. Else PyTorch's infinite error would allow any.
    """
    beyond = ~torch.isfinite(own)
    return own.where(~beyond, truth), ours.where(~beyond | torch.isfinite(ours), truth)


def layer_scales(expected: Expected) -> list[float]:
    """For each gradient the largest rms among the true gradients of the same layer."""
    layers = [name.rpartition(".")[0] or name for name in expected.gradient_names]
    sizes = [0.0 if value is None else rms(value) for value in expected.gradients]
    return [
        max(size for size, other in zip(sizes, layers, strict=True) if other == layer)
        for layer in layers
    ]
