"""Numbers of a record that are not to be believed as they stand: marked wherever they are shown."""

SHARE_LIMIT = 1.2  # of the ceiling that bounds a solution
SPREAD_LIMIT = 0.2  # inter-quartile range over median
MARK = "(!)"


def bounding_share(rates: dict) -> float:
    """The share of the ceiling that no honest solution gets far above, of a record's `roofline`.

    That is the 16-bit one where it was measured: with TF32 allowed a solution may multiply its
    operands in 16-bit containers, and exceed the ceiling of TF32 products.
    """
    return rates.get("share_16_bit") or rates["share"]


def is_high(rates: dict | None) -> bool:
    """Whether that share is above SHARE_LIMIT: the ceiling was measured at a bad moment, or the
    solution saves products as Winograd's algorithm does.
    """
    return bool(rates) and bounding_share(rates) > SHARE_LIMIT


def is_wide(entry: dict) -> bool:
    """Whether {"median", "iqr"} has an inter-quartile range above SPREAD_LIMIT of the median."""
    return bool(entry.get("iqr")) and entry["iqr"] > SPREAD_LIMIT * entry["median"]


def mark(doubtful: bool) -> str:
    """What stands behind a doubtful number."""
    return f" {MARK}" if doubtful else ""


def found(record: dict) -> list[str]:
    """What is doubtful in a record, a sentence each."""
    told = []
    rates = record.get("roofline")
    if is_high(rates):
        told.append(
            f"{MARK} {bounding_share(rates):.0%} of the ceiling that bounds it, more than "
            f"{SHARE_LIMIT:.0%}: the ceiling was measured at a bad moment, or products are saved"
        )
    wide = [name for name, entry in (record.get("ms") or {}).items() if is_wide(entry)]
    if wide:
        told.append(
            f"{MARK} quartiles further apart than {SPREAD_LIMIT:.0%} of the median: "
            f"{', '.join(wide)}; measure again on a quiet machine"
        )
    for name, part in (record.get("passes") or {}).items():
        told += [f"{name} alone: {text}" for text in found(part)]
    return told


LEGEND = (
    f"{MARK}: a share above {SHARE_LIMIT:.0%} of the ceiling that bounds the solution (the 16-bit "
    "one where there is one), which was then measured at a bad moment unless products are saved; "
    f"or an inter-quartile range above {SPREAD_LIMIT:.0%} of the median: to be measured again"
)
