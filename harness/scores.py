"""Figures of merit of a set of evaluations."""

import math

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
        "fast_p": {f"{p:g}": fast_p(found, p, total) for p in THRESHOLDS},
    }


def fast_p(found: list[dict], p: float, total: int | None = None) -> float | None:
    """The share of all candidates that were accepted with a speedup above p (KernelBench's fast_p).

    The speedup is that over the fastest baseline. None where an accepted one has no time, but for
    p = 0, which asks for acceptance alone.
    """
    total = len(found) if total is None else total
    accepted = [record for record in found if record["verdict"] == "accepted"]
    if total == 0:
        return None
    if p == 0:
        return len(accepted) / total
    if not all(record.get("fastest") for record in accepted):
        return None
    return sum(record["fastest"]["speedup"] > p for record in accepted) / total
