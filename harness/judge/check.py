"""Is this output right? Type, shape, dtype, device, finiteness, error, in this order."""

import math
from dataclasses import dataclass, replace

import torch

from harness.errors import Rejected
from harness.judge import bounds as rules
from harness.judge import wire
from harness.judge.candidate import Candidate
from harness.judge.cases import Case
from harness.judge.joined import sections
from harness.judge.truth import Expected

# Elements at a time: on a CPU what stays in its caches, on a GPU what keeps it busy.
_CPU_STEP, _GPU_STEP = 1 << 18, 1 << 24


@dataclass(frozen=True)
class ErrorSize:
    """Distance of a tensor from the float64 truth."""

    rel_l2: float
    max_abs: float
    at: int


def _step(tensor: torch.Tensor) -> int:
    return _CPU_STEP if tensor.device.type == "cpu" else _GPU_STEP


def measure(tensor: torch.Tensor, truth: torch.Tensor) -> ErrorSize:
    """||tensor - truth|| / ||truth||, the largest |tensor - truth| and its flat index."""
    flat, flat_truth = tensor.reshape(-1), truth.reshape(-1)
    squares = reference_squares = 0.0
    largest, at = -1.0, 0
    step = _step(tensor)
    for begin in range(0, flat.numel(), step):
        exact = flat_truth[begin : begin + step]
        error = (flat[begin : begin + step].double() - exact).abs_()
        squares += float(torch.linalg.vector_norm(error)) ** 2
        reference_squares += float(torch.linalg.vector_norm(exact)) ** 2
        index = int(error.argmax())
        if not float(error[index]) <= largest:
            largest, at = float(error[index]), begin + index
    if squares == 0.0:
        return ErrorSize(0.0, 0.0, 0)
    ratio = (squares / reference_squares) ** 0.5 if reference_squares else float("inf")
    return ErrorSize(ratio, largest, at)


def rms(value: torch.Tensor, truth: torch.Tensor | None = None) -> float:
    """Root of the mean square of `value`, or of its distance from the float64 truth; 0 of nothing.

    In steps: in one go three float64 copies of a gradient would take more memory than the rest.
    """
    flat = value.reshape(-1)
    flat_truth = None if truth is None else truth.reshape(-1)
    squares, step = 0.0, _step(flat)
    for begin in range(0, flat.numel(), step):
        part = flat[begin : begin + step].double()
        if flat_truth is not None:
            part = part - flat_truth[begin : begin + step]
        norm = float(torch.linalg.vector_norm(part))
        squares += norm * norm
    return math.sqrt(squares / max(flat.numel(), 1))


def own_error(expected: Expected) -> ErrorSize:
    """PyTorch's own error, measured once."""
    if expected.own_error is None:
        expected.own_error = measure(expected.own, expected.truth)
    return expected.own_error


def require_form(reply: dict, expected: torch.Tensor, layout: dict | None = None) -> None:
    """Raise Rejected unless the reply announces a tensor of the expected form; with a `layout`
    several of that layout, joined.
    """
    output = reply.get("output")
    if not isinstance(output, dict):
        raise Rejected("protocol_violation", "a reply without an output")
    if output.get("type") != "Tensor":
        given = str(output.get("type"))[:80]
        raise Rejected("wrong_type", f"forward returned a {given}, expected a torch.Tensor")
    if output.get("layout") != layout:
        given, told = (_layout_text(found) for found in (output.get("layout"), layout))
        raise Rejected("wrong_type", f"forward returned {given}, expected {told}")
    wanted = {"type": "Tensor", "device": str(expected.device), **wire.spec_of(expected)}
    for key in ("shape", "dtype", "device"):
        if output.get(key) != wanted[key]:
            given = str(output.get(key))[:200]
            raise Rejected(f"wrong_{key}", f"the output's is {given}, expected {wanted[key]}")


def _layout_text(layout) -> str:
    if not isinstance(layout, dict):
        return "one tensor"
    return f"{layout.get('structure')} of shapes {layout.get('shapes')}"[:300]


def _parts(expected: Expected) -> list[tuple[str, slice, Expected]]:
    """(name, its elements, what is expected) of each of several outputs."""
    places = list(sections(expected.layout))
    if not expected.parts:
        expected.parts = [
            replace(expected, truth=expected.truth[at], own=expected.own[at], layout=None)
            for _, at in places
        ]
    return [(name, at, part) for (name, at), part in zip(places, expected.parts, strict=True)]


def first_non_finite(tensor: torch.Tensor) -> int | None:
    """Flat index of the first NaN or infinity, None when there is none."""
    flat, step = tensor.reshape(-1), _step(tensor)
    for begin in range(0, flat.numel(), step):
        # A finite sum has finite terms, and is had faster; an infinite one may have overflowed.
        if math.isfinite(float(flat[begin : begin + step].sum())):
            continue
        bad = ~torch.isfinite(flat[begin : begin + step])
        if bool(bad.any()):
            return begin + int(bad.to(torch.uint8).argmax())
    return None


def require_right(
    ours: torch.Tensor,
    expected: Expected,
    precision: str,
    reduction_length: int,
    where: str,
    magnified: float = 1.0,
) -> dict:
    """Raise Rejected unless `ours` is finite and within the bounds; returns the errors' record.

    The record holds ours and PyTorch's own errors, and the bounds. The Rejected carries it too,
    as `details`. Of several outputs each is held against bounds of its own, and the record is that
    of the one that comes nearest to them.
    """
    if expected.layout is not None:
        records = [
            require_right(
                ours[at], part, precision, reduction_length, f"{where}, {name}", magnified
            )
            for name, at, part in _parts(expected)
        ]
        return max(filter(None, records), key=lambda r: r["rel_l2"] / r["rel_l2_bound"], default={})
    bad = first_non_finite(ours)
    if bad is not None:
        raise Rejected(
            "non_finite",
            f"{where}: {_spot(ours, expected.truth, bad)} (the reference is finite everywhere)",
        )
    if ours.numel() == 0:
        return {}
    error, own = measure(ours, expected.truth), own_error(expected)
    largest = max(map(abs, map(float, torch.aminmax(expected.truth))))
    limits = rules.bounds(precision, reduction_length, own.rel_l2, own.max_abs, largest, magnified)
    details = {
        "rel_l2": error.rel_l2,
        "rel_l2_bound": limits.rel_l2,
        "pytorch_rel_l2": own.rel_l2,
        "max_abs": error.max_abs,
        "max_abs_bound": limits.max_abs,
        "pytorch_max_abs": own.max_abs,
        "reference_max_abs": largest,
    }
    # Written so that NaN fails.
    if error.rel_l2 <= limits.rel_l2 and error.max_abs <= limits.max_abs:
        return details
    spot = _first_beyond(ours, expected.truth, limits.max_abs)
    spot = error.at if spot is None else spot
    rejection = Rejected(
        "inaccurate",
        f"{where}: relative L2 error {error.rel_l2:.3g} (allowed {limits.rel_l2:.3g}, PyTorch's "
        f"{own.rel_l2:.3g}), largest error {error.max_abs:.3g} (allowed {limits.max_abs:.3g}, "
        f"PyTorch's {own.max_abs:.3g}); {_spot(ours, expected.truth, spot)}",
    )
    rejection.details = details
    raise rejection


def _first_beyond(ours: torch.Tensor, truth: torch.Tensor, limit: float) -> int | None:
    flat, flat_truth = ours.reshape(-1), truth.reshape(-1)
    step = _step(ours)
    for begin in range(0, flat.numel(), step):
        error = (flat[begin : begin + step].double() - flat_truth[begin : begin + step]).abs_()
        bad = ~(error <= limit)
        if bool(bad.any()):
            return begin + int(bad.to(torch.uint8).argmax())
    return None


def _spot(ours: torch.Tensor, truth: torch.Tensor, flat_index: int) -> str:
    index = tuple(int(i) for i in torch.unravel_index(torch.tensor(flat_index), ours.shape))
    return (
        f"first bad index {index}: {float(ours.reshape(-1)[flat_index]):.9g} instead of "
        f"{float(truth.reshape(-1)[flat_index]):.9g}"
    )


def require_same_inputs(candidate: Candidate, reply: dict, case: Case, offset: int) -> int:
    """Raise Rejected unless the inputs came back with the bits they went with."""
    tensors = [value for value in case.inputs if torch.is_tensor(value)]
    if reply.get("inputs") != [wire.spec_of(value) for value in tensors]:
        raise Rejected("input_mutated", "an input changed its shape or dtype during forward")
    for index, value in enumerate(tensors):
        spec = wire.spec_of(value)
        if not same_bits(candidate.read(offset, spec, value.device), value):
            raise Rejected("input_mutated", f"forward changed input {index}")
        offset += wire.spec_bytes(spec)
    return offset


def require_sample(
    sample: list, indices: list[int], expected: Expected, precision: str, reduction_length: int
) -> None:
    """Raise Rejected unless these elements of an output, by flat index, are within the bounds.

    An element that was not finite is None.
    """
    if expected.layout is not None:
        for _, at, part in _parts(expected):
            here = [(i, v) for i, v in zip(indices, sample, strict=True) if at.start <= i < at.stop]
            if here:
                found, values = zip(*here, strict=True)
                places = [index - at.start for index in found]
                require_sample(list(values), places, part, precision, reduction_length)
        return
    own = own_error(expected)
    largest = max(map(abs, map(float, torch.aminmax(expected.truth))))
    limit = rules.bounds(precision, reduction_length, own.rel_l2, own.max_abs, largest).max_abs
    truths = expected.truth.reshape(-1)[torch.tensor(indices)].tolist()
    for index, value, truth in zip(indices, sample, truths, strict=True):
        if value is None or not abs(value - truth) <= limit:
            raise Rejected(
                "wrong_when_timed",
                f"element {index} when the harness's clock stopped: {value} instead of "
                f"{truth:.9g}, allowed error {limit:.3g}",
            )


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two tensors have the same shape, dtype and bits (NaN equals itself)."""
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    raw_a = a.contiguous().reshape(-1).view(torch.uint8)
    return torch.equal(raw_a, b.contiguous().reshape(-1).view(torch.uint8))


def require_right_state(
    after: dict, sent: dict, expected: Expected, precision: str, magnified: float = 1.0
) -> None:
    """Raise Rejected unless parameters kept their bits and buffers are as PyTorch updates them."""
    if set(after) != set(sent):
        raise Rejected("weights_mutated", "the names in the state_dict changed during forward")
    for name, value in sent.items():
        if name not in expected.buffers:
            if not same_bits(after[name], value):
                raise Rejected("weights_mutated", f"forward changed the parameter {name}")
            continue
        truth, own = expected.buffers[name], expected.own_buffers[name]
        if after[name].shape != own.shape or after[name].dtype != own.dtype:
            raise Rejected("wrong_buffer", f"{name} changed its shape or dtype")
        if not own.is_floating_point():
            if not torch.equal(after[name], own):
                given = after[name].reshape(-1)[:4].tolist()
                raise Rejected("wrong_buffer", f"{name} is {given}, PyTorch's {own.tolist()}")
            continue
        error, own_error = measure(after[name], truth), measure(own, truth)
        # A statistic of many values: the length of its sum is not known here, so 2^16 is taken.
        limit = rules.bounds(precision, 1 << 16, own_error.rel_l2, 0.0, 0.0, magnified).rel_l2
        if not error.rel_l2 <= limit:
            raise Rejected(
                "wrong_buffer",
                f"{name} after forward: relative L2 error {error.rel_l2:.3g}, allowed {limit:.3g}",
            )
