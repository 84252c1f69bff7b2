"""Figures of merit of a set of evaluations."""

import math
from collections.abc import Iterable

Outcome = tuple[bool, float | None]
THRESHOLDS = (0.0, 0.5, 0.8, 1.0, 1.5, 2.0, 3.0, 5.0)


def summary(found: list[dict], total: int | None = None) -> dict:
    """Counts, smallest and geometric mean speedup over the fastest baseline, fast_p.

    `total` is the number of all candidates, also of those without a record. `minimum` and
    `geometric_mean` are None unless all were accepted and timed: an average over the survivors
    alone would reward giving up. Keys: accepted, all, minimum, geometric_mean, fast_p.
    """
    total = len(found) if total is None else total
    accepted = [record for record in found if record["verdict"] == "accepted"]
    speedups = [record["fastest"]["speedup"] for record in accepted if record.get("fastest")]
    whole = total > 0 and len(speedups) == total
    return {
        "accepted": len(accepted),
        "all": total,
        "minimum": min(speedups) if whole else None,
        "geometric_mean": math.exp(sum(map(math.log, speedups)) / total) if whole else None,
        "fast_p": {f"{p:g}": fast_p(outcomes(found), p, total) for p in THRESHOLDS},
    }


def outcomes(found: list[dict]) -> list[Outcome]:
    """(accepted, speedup over the fastest baseline) of each record."""
    return [
        (record["verdict"] == "accepted", (record.get("fastest") or {}).get("speedup"))
        for record in found
    ]


def fast_p(found: Iterable[Outcome], p: float, total: int | None = None) -> float | None:
    """The share of all candidates that were accepted with a speedup above p: the one fast_p that
    terminal, page and pictures show. Formula: KernelBench (Ouyang et al. 2025).

    `found`: whether a candidate was accepted, and its speedup over a baseline where it has one;
    `total` is the number of all candidates where that is more. None where there are none, and
    where an accepted one has no speedup, but for p = 0, which asks for acceptance alone.
    """
    found = list(found)
    total = len(found) if total is None else total
    speedups = [speedup for accepted, speedup in found if accepted]
    if total == 0:
        return None
    if p == 0:
        return len(speedups) / total
    if None in speedups:
        return None
    return sum(speedup > p for speedup in speedups) / total
