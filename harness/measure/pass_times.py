"""With --backward: the forward and the backward of a training step, each timed alone."""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from harness.errors import Rejected
from harness.measure import roofline, timing
from harness.measure.own_clock import clocks_agree
from harness.measure.passes import BACKWARD, FORWARD, PARTS
from harness.measure.roofline import Work


@dataclass
class PassTimes:
    """Times of one pass, and its rates under the run's ceilings."""

    measurement: timing.Measurement
    roofline: dict


def require_possible(name: str, reported: float, work: Work, ceilings, device) -> None:
    """Raise Rejected for a time in milliseconds that physics does not allow."""
    floor = roofline.physical_floor_ms(work, ceilings, device)
    if not reported >= floor:
        told = f"{name}{reported:.3g} ms, physically at least {floor:.3g} ms"
        raise Rejected("impossible_time", told)


def measure_parts(
    measure: Callable[..., timing.Measurement],
    names: list[str],
    work: Work,
    precision: str,
    device: torch.device,
    own_clock_ms: float,
    own_clock: Callable[[float], float],
) -> dict[str, PassTimes]:
    """The times of both parts, by name.

    `measure(part, names, made)` is `timing.measure_rounds` for a pass; `names` are the baselines,
    `work` is the forward's, `own_clock_ms` what the harness's own clock says of both passes
    together, and `own_clock(ms)` what it says once more, trying for a while to agree with `ms`: a
    busy machine may have kept it from that. Raises Rejected for a time below the floor, and where
    both parts together are shorter than that clock allows.
    """
    found, made = {}, {}
    for part, share in zip(PARTS, (work, work.backward()), strict=True):
        measurement = measure(part, names, made)
        reported = measurement.summary()["solution"]["median"]
        rates, ceilings = roofline.measured_roofline(share, device, precision, reported)
        require_possible(f"{part} alone: ", reported, share, ceilings, device)
        found[part] = PassTimes(measurement, rates)
    parts = [found[part].measurement.summary()["solution"]["median"] for part in PARTS]
    if not clocks_agree(sum(parts), own_clock_ms):
        own_clock_ms = min(own_clock_ms, own_clock(sum(parts)))
    if not clocks_agree(sum(parts), own_clock_ms):
        raise Rejected(
            "clocks_disagree",
            f"{parts[0]:.3g} ms {FORWARD} and {parts[1]:.3g} ms {BACKWARD} reported, "
            f"{own_clock_ms:.3g} ms for both by the harness's clock",
        )
    return found
