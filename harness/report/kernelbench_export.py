"""Writes records as a tree of KernelBench files."""

import hashlib
from pathlib import Path

from harness.catalog import ROOT
from harness.errors import UsageError
from harness.files import write_files
from harness.report import kernelbench_files, records

_ONE_SETTING = ("device", "dtype", "tf32", "backward", "eval", "kernel")


def export(found: list[dict], folder: Path, sources: list[Path]) -> dict:
    """Write `found` below `folder`; returns what was written and what was left out, as JSON.

    level<L>/eval_results.json and level<L>/level_<L>_problem_<N>_sample_<S>_kernel.py make a run
    folder for each level; timing/<device>/baseline_time_*.json hold the baselines' times. A kernel
    is copied from the file with the record's SHA-256, looked for where the record says and in
    `sources` (files and folders). Samples without a number of their own are counted from 0.
    All is written or nothing. Raises UsageError when no record is of a problem with level and
    number, for records of more than one device or setting, and where a place cannot be written.
    """
    levels: dict[int, dict[str, list]] = {}
    kernels, left_out = [], []
    by_content = _by_content([ROOT / r["solution"] for r in found if r.get("solution")], sources)
    good = _known(found, left_out)
    for record in good:
        level, number = kernelbench_files.level_and_number(record)
        entries = levels.setdefault(level, {}).setdefault(str(number), [])
        sample = _free_sample(record.get("sample"), entries)
        entries.append(kernelbench_files.eval_entry(record, sample))
        source = by_content.get(record["solution_sha256"])
        name = f"level{level}/{kernelbench_files.run_name(level, number, sample)}"
        if source is None:
            left_out.append(f"{name}: no file with the record's SHA-256 found")
        else:
            kernels.append((source, folder / name))
    if not levels:
        raise UsageError("no record of a problem with level and number (such as 1/65) to export")
    written: dict[Path, bytes] = {}
    for level, numbers in sorted(levels.items()):
        ordered = {
            number: sorted(numbers[number], key=lambda entry: entry["sample_id"])
            for number in sorted(numbers, key=int)
        }
        written[folder / f"level{level}" / "eval_results.json"] = _json(ordered)
    written |= {target: source.read_bytes() for source, target in kernels}
    written |= _baselines(good, folder)
    write_files(written)
    return {"written": [str(path) for path in written], "left_out": left_out}


def _known(found: list[dict], left_out: list[str]) -> list[dict]:
    good = []
    for record in found:
        if "imported" in record or not kernelbench_files.level_and_number(record):
            left_out.append(f"{record['problem']}: no level and number, or no record of ours")
        else:
            good.append(record)
    settings = {records.setting(record, _ONE_SETTING) for record in good}
    if len(settings) > 1:
        told = "; ".join(sorted(" ".join(map(str, setting)) for setting in settings))
        raise UsageError(f"a KernelBench run has one device and one setting, not {told}")
    # Numbered samples first: the others take what numbers are left.
    return sorted(good, key=lambda record: record.get("sample") is None)


def _free_sample(wanted: int | None, entries: list[dict]) -> int:
    taken = {entry["sample_id"] for entry in entries}
    sample = 0 if wanted is None else wanted
    while sample in taken:
        sample += 1
    return sample


def _by_content(files: list[Path], sources: list[Path]) -> dict[str, Path]:
    for source in sources:
        files = [*files, *(sorted(source.rglob("*.py")) if source.is_dir() else [source])]
    return {hashlib.sha256(file.read_bytes()).hexdigest(): file for file in files if file.is_file()}


def _json(value) -> bytes:
    return records.to_json(value).encode()


def _baselines(found: list[dict], folder: Path) -> dict[Path, bytes]:
    written = {}
    for baseline, stem in kernelbench_files.BASELINE_FILES.items():
        times = kernelbench_files.baseline_times(found, baseline)
        if times:
            written[folder / "timing" / found[0]["device"] / f"{stem}.json"] = _json(times)
    return written
