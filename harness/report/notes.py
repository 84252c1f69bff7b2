"""What a record says besides verdict, times and errors: a sentence for each thing."""


def notes(record: dict) -> list[str]:
    """For terminal and page. Older records lack some of it."""
    told = []
    other = record.get("other_size")
    if other:
        shape = "x".join(map(str, other["shape"]))
        told.append(f"on an input of {shape}: {other['verdict']}{_aside(other)}")
    how = record.get("weights_copied", "by name")
    if how not in ("", "by name"):
        told.append(f"weights {how if how.startswith('not') else 'copied ' + how}")
    second = record.get("second_instance") or {}
    if second.get("verdict") == "refused":
        told.append(f"a second instance: refused ({second['told']})")
    others = record.get("other_arguments") or {}
    if "arguments" in others:
        told.append(f"constructed with {others['arguments']}: {others['verdict']}{_aside(others)}")
    special = record.get("non_finite")
    if special:
        counts = ", ".join(f"{special[k]} {k}" for k in ("lost", "spread") if special.get(k))
        aside = _aside({"told": special.get("told", counts)})
        told.append(f"NaN and Inf in the input: {special['verdict']}{aside}")
    return told


def seconds(record: dict) -> str:
    """Where the evaluation's time went; empty where the record does not tell."""
    spent = record.get("seconds")
    if not spent:
        return ""
    parts = ", ".join(f"{name} {spent[name]:.1f} s" for name in spent if name != "wall")
    return f"{spent['wall']:.1f} s in all: {parts}"


def _aside(entry: dict) -> str:
    return f" ({entry['told']})" if entry.get("told") else ""
