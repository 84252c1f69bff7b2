"""Two or more sets of records side by side: which belong together, in what they differ, ratios."""

from collections import Counter
from pathlib import PurePath

from harness.errors import UsageError
from harness.report import records, scores

# Records that differ in one of these may stand in one row, where a set has one of them a problem.
AXES = ("device", "dtype", "tf32", "kernel", "batch")
SETTINGS = (*AXES, "backward", "eval")
_UNUSUAL = {"backward": "forward and backward", "eval": "in eval mode"}
NOT_TOLD, WITHOUT_EFFECT = "?", "-"


def comparison(groups: list[tuple[str, list[dict]]], sort: str = "problem") -> dict:
    """Times, ratios and scores of sets of records, as JSON: one row for each problem.

    A row holds one record of each set: of the same problem and passes (forward or both, training
    or eval mode). Device, dtype, TF32, forced kernel and batch may differ, and `differs` names
    those that do for some problem; but where a set has a problem under several values of one of
    them, records of equal values belong together. Where a set holds several candidates of one
    problem and setting, each is a row of its own, told by its sample number or file name. Settings
    that KernelBench's files do not tell are None and fit any.

    `ratio` is the first set's median over this one's: above 1 means this one is faster. It is None
    where one was not timed and where their batches differ, which is another amount of work.
    `sort` (of names.SORTS) is by the last set: smallest ratio, longest time, smallest speedup
    first.
    Raises UsageError when no problem is in all sets and each set has one candidate a problem at
    most.
    """
    groups = _distinct(groups)
    keys = _keys(groups)
    filled = [(label, _filled(part, groups)) for label, part in groups]
    several = {
        key[0]
        for _, part in filled
        for key, count in Counter(_key(record, keys) for record in part).items()
        if count > 1
    }
    tables = [
        (label, {_key(record, keys, several): record for record in part}) for label, part in filled
    ]
    shared = [key for key in tables[0][1] if all(key in table for _, table in tables)]
    if not shared and not several:  # of candidates none in common the scores still tell
        raise UsageError(
            "--compare: no problem was evaluated with the same settings in all of them"
            + _unlike(groups)
        )
    rows = [_row(key[0], [(label, table[key]) for label, table in tables]) for key in shared]
    settings = [entry["setting"] for row in rows for entry in row["entries"]]
    return {
        "rows": sorted(rows, key=_sort_key(sort)),
        "common": {n: settings[0][n] for n in SETTINGS if len({s[n] for s in settings}) == 1},
        "differs": [name for name in SETTINGS if _differs(name, rows)],
        "left_out": {
            label: [_told(key, keys) for key in table if key not in shared]
            for label, table in tables
            if any(key not in shared for key in table)
        },
        "scores": {
            label: scores.summary(part)
            for label, part in filled
            if not all(record["verdict"] == "baseline" for record in part)
        },
        "imported": [
            label for label, part in groups if any("imported" in record for record in part)
        ],
        "made_by": {label: _makers(part) for label, part in groups},
    }


def _differs(name: str, rows: list[dict]) -> bool:
    """Whether a problem's entries have several values of a setting: batches of problems differ."""
    found: dict[str, set] = {}
    for row in rows:
        found.setdefault(row["problem"], set()).update(e["setting"][name] for e in row["entries"])
    return any(len(values) > 1 for values in found.values())


def below(result: dict, ratio: float) -> list[str]:
    """What of a comparison is not at least `ratio` times as fast as in its first set, in words.

    That is also what was accepted in the first set and is rejected, not timed, of another batch or
    not there at all in a later one.
    """
    found = []
    for row in result["rows"]:
        first, *others = row["entries"]
        for entry in others:
            told = f"{row['problem']} in {entry['set']}"
            if first["verdict"] == "accepted" and entry["verdict"] == "rejected":
                found.append(f"{told}: rejected")
            elif entry["ratio"] is not None and entry["ratio"] < ratio:
                found.append(f"{told}: {entry['ratio']:.3f}")
            elif entry["ratio"] is None and first["ms"] is not None:
                found.append(f"{told}: no ratio")
    first = next(iter(result["made_by"]), None)
    found += [f"{key}: in {first} alone" for key in result["left_out"].get(first, ())]
    return found


def _distinct(groups: list[tuple[str, list[dict]]]) -> list[tuple[str, list[dict]]]:
    seen: Counter = Counter()
    named = []
    for label, part in groups:
        seen[label] += 1
        named.append((label if seen[label] == 1 else f"{label} ({seen[label]})", part))
    return named


# Which records belong together -----------------------------------------------------------------


def setting(record: dict) -> dict:
    """A record's settings by name; None where it does not tell, "-" for TF32 without effect."""
    told = dict(zip(SETTINGS, records.setting(record, SETTINGS), strict=True))
    if told["device"] == "cpu" or told["dtype"] not in ("float32", None):
        told["tf32"] = WITHOUT_EFFECT
    if "imported" in record and record.get("kernel") is None:
        told["kernel"] = None
    return told


def _keys(groups) -> tuple[str, ...]:
    """The settings that tell a set's records of one problem apart, and what is timed."""
    needed = set()
    for _, part in groups:
        first: dict[tuple, dict] = {}
        for record in part:
            told = setting(record)
            place = (record["problem"], record.get("backward"), told["eval"])
            other = first.setdefault(place, told)
            needed |= {name for name in AXES if other[name] != told[name]}
    return (*(name for name in AXES if name in needed), "backward", "eval")


def _key(record: dict, keys: tuple[str, ...], several=frozenset()) -> tuple:
    told = setting(record) | record.get("taken", {})
    name = record["problem"]
    if name in several:
        name = f"{name} {_candidate(record)}"
    return (name, *(told[key] for key in keys))


def _told(key: tuple, keys: tuple[str, ...]) -> str:
    """A key in words; what is usual, forward in training mode, is not said."""
    name, *values = key
    shown = [("", other)[bool(value)] if (other := _UNUSUAL.get(which)) else str(value)
             for which, value in zip(keys, values, strict=True)]  # fmt: skip
    return " ".join([name, *filter(None, shown)])


def _candidate(record: dict) -> str:
    if record.get("sample") is not None:
        return f"sample {record['sample']}"
    return PurePath(record.get("solution") or "?").stem


def _filled(part: list[dict], groups) -> list[dict]:
    """Imported records with what their files do not tell `taken` from the first other record of
    the problem; those of this harness unchanged.
    """
    ours: dict[str, dict] = {}
    for _, other in groups:
        for record in other:
            if "imported" not in record:
                ours.setdefault(record["problem"], setting(record))
    return [
        {**record, "taken": _taken(record, ours.get(record["problem"], {}))}
        if "imported" in record
        else record
        for record in part
    ]


def _taken(record: dict, model: dict) -> dict:
    told = setting(record)
    plain = {"backward": False, "eval": False} | model
    return {name: value for name, value in plain.items() if told[name] is None}


def _unlike(groups) -> str:
    """For a message: the settings that no two sets have in common."""
    told = []
    for name in SETTINGS:
        values = [{str(setting(record)[name]) for record in part} for _, part in groups]
        if not set.intersection(*values):
            given = "; ".join(", ".join(sorted(value)) for value in values)
            told.append(f"{name}: {given}")
    return f" ({'. '.join(told)})" if told else ""


# Rows ------------------------------------------------------------------------------------------


def _row(problem: str, found: list[tuple[str, dict]]) -> dict:
    first = found[0][1]
    entries = []
    for label, record in found:
        base, median = _median(first), _median(record)
        comparable = base and median and _same_work(first, record)
        fastest = record.get("fastest")
        entries.append(
            {
                "set": label,
                "setting": setting(record),
                "verdict": record["verdict"],
                "ms": median,
                "ratio": base / median if comparable else None,
                "speedup": fastest["speedup"] if fastest else None,
            }
        )
    return {"problem": problem, "entries": entries}


def _median(record: dict) -> float | None:
    entry = record.get("ms", {}).get("solution")
    return entry["median"] if entry else None


def _same_work(one: dict, other: dict) -> bool:
    """Whether both are of one batch; a KernelBench file that tells none is of the problem's own."""
    a, b = (record.get("batch") or record.get("problem_batch") for record in (one, other))
    if a is None:
        a = other.get("problem_batch")
    if b is None:
        b = one.get("problem_batch")
    return None in (a, b) or a == b


def _makers(part: list[dict]) -> dict:
    """What made a set's records: commits and versions of PyTorch, those that are told."""
    commits = [record.get("commit") for record in part]
    return {
        "commit": sorted({told_commit(commit) for commit in commits if commit}),
        "PyTorch": sorted({v["torch"] for r in part if (v := r.get("versions")) and "torch" in v}),
    }


def told_commit(commit: dict) -> str:
    """A record's commit in a few characters, with a mark where files had been changed."""
    return commit["sha"][:9] + "+changes" * bool(commit["dirty"])


def _sort_key(sort: str):
    if sort == "problem":
        return lambda row: 0  # as they came
    sign = -1 if sort == "ms" else 1

    def key(row: dict) -> tuple:
        value = row["entries"][-1][sort]
        return (value is None, 0 if value is None else sign * value)

    return key
