"""Whether an accepted solution drops into KernelBench, told from its record in tables and lines.

KernelBench copies no weights, so both constructors must draw the same values from the same seed,
and its static checker must find no error in the text. Neither rejects without --kernelbench.
"""


def checked(record: dict) -> dict[str, list[str]]:
    """The static checker's `errors` and `warnings`; older records have none."""
    return {"errors": [], "warnings": [], **(record.get("static_checker") or {})}


def drops_in(record: dict) -> bool:
    """Whether nothing is known against it."""
    return not (record.get("does_not_drop_in") or checked(record)["errors"])


def verdict(record: dict) -> str:
    """The verdict with a few words behind that of an accepted one, for a table's cell."""
    if record["verdict"] != "accepted" or (drops_in(record) and not checked(record)["warnings"]):
        return record["verdict"]
    return "accepted, no drop-in" if not drops_in(record) else "accepted, warned"


def lines(record: dict) -> list[str]:
    """What there is against it, one line for each kind."""
    found, static = [], checked(record)
    if record.get("does_not_drop_in"):
        found.append(f"does not drop into KernelBench: {record['does_not_drop_in']}")
    if static["errors"]:
        told = "; ".join(static["errors"])
        found.append(f"does not drop into KernelBench: errors of its static checker: {told}")
    if static["warnings"]:
        found.append(f"KernelBench's static checker warns: {'; '.join(static['warnings'])}")
    return found
