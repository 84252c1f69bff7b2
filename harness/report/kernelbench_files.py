"""KernelBench's file formats: run-folder names, eval_results.json, baseline_time_*.json.

Formats as written by KernelBench's scripts/eval_from_generations.py and
scripts/generate_baseline_time.py (https://github.com/ScalingIntelligence/KernelBench). Times are in
milliseconds. An eval_results.json names no level: one run folder holds one level.
"""

import re
from pathlib import Path

from harness.errors import UsageError

_RUN = re.compile(r"level_(\d+)_problem_(\d+)_sample_(\d+)_kernel\.py")
_LEVEL = re.compile(r"level_?(\d+)")
# Baselines of a record by the names of KernelBench's baseline files, without extension.
BASELINE_FILES = {
    "eager": "baseline_time_torch",
    "compile": "baseline_time_torch_compile_inductor_default",
}
# KernelBench's own names of the catalogued problems; its analysis looks times up by them.
_PUBLIC_NAMES = {
    "1/65": "65_conv_transposed_2D__square_input__asymmetric_kernel.py",
    "1/69": "69_conv_transposed_2D__asymmetric_input__asymmetric_kernel.py",
    "2/11": "11_ConvTranspose2d_BatchNorm_Tanh_MaxPool_GroupNorm.py",
    "2/19": "19_ConvTranspose2d_GELU_GroupNorm.py",
}
_NOT_COMPILED = ("import_error", "no_model_new")


def run_name(level: int, number: int, sample: int) -> str:
    """File name of a kernel in a KernelBench run folder."""
    return f"level_{level}_problem_{number}_sample_{sample}_kernel.py"


def parse_run_name(name: str) -> tuple[int, int, int] | None:
    """(level, number, sample) of such a file name; None for any other."""
    match = _RUN.fullmatch(name)
    return (int(match[1]), int(match[2]), int(match[3])) if match else None


def level_and_number(record: dict) -> tuple[int, int] | None:
    """(1, 65) for a record of problem "1/65"; None for a problem without level and number."""
    match = re.fullmatch(r"(\d+)/(\d+)", record["problem"])
    return (int(match[1]), int(match[2])) if match else None


# Writing ---------------------------------------------------------------------------------------


def eval_entry(record: dict, sample: int) -> dict:
    """One record as an entry of eval_results.json.

    `correctness` is this harness's verdict, which asks for more than KernelBench's rule;
    `runtime` is -1 where nothing was timed.
    """
    codes = [reason.partition(":")[0] for reason in record["reasons"]]
    failed_build = any("while building" in reason for reason in record["reasons"])
    spread = _spread(record, "solution")
    return {
        "sample_id": sample,
        "compiled": not failed_build and not any(code in _NOT_COMPILED for code in codes),
        "correctness": record["verdict"] == "accepted",
        "metadata": {
            "hardware": record["device_name"],
            "device": record["device"],
            "reasons": record["reasons"],
            "dtype": record["dtype"],
            "tf32": record["tf32"],
            "batch": record["batch"],
            "backward": record["backward"],
            "eval": record.get("eval", False),
            "solution_sha256": record["solution_sha256"],
        },
        "runtime": spread["mean"] if spread else -1.0,
        "runtime_stats": spread or {},
    }


def baseline_times(records: list[dict], baseline: str) -> dict:
    """The times of one baseline ("eager", "compile") as {"level1": {file name: statistics}}."""
    levels: dict[str, dict] = {}
    for record in records:
        place, spread = level_and_number(record), _spread(record, baseline)
        if place and spread:
            name = _PUBLIC_NAMES.get(record["problem"]) or Path(record["reference"]).name
            levels.setdefault(f"level{place[0]}", {})[name] = spread
    return levels


def _spread(record: dict, name: str) -> dict | None:
    """KernelBench's statistics of one timed variant; a record without them lends its median."""
    if name not in record["ms"]:
        return None
    found = record.get("statistics", {}).get(name)
    if not found:
        median = record["ms"][name]["median"]
        found = {"mean": median, "mean_is": "median"}
    return {**found, "hardware": record["device_name"], "device": record["device"]}


# Reading ---------------------------------------------------------------------------------------


def files_of(folder: Path) -> list[Path]:
    """KernelBench's files that a folder stands for; none where it is no folder of KernelBench's.

    A run folder's own eval_results.json, or those of its level<L>/ folders; else files of baseline
    times, in it or in the one folder of its timing/, or in its one folder where it is timing/.
    Raises UsageError where there are several machines' baseline times to choose from.
    """
    runs = [path for path in (folder, *sorted(folder.glob("level*"))) if _holds_results(path)]
    if runs:
        own = runs[0] == folder
        return [path / "eval_results.json" for path in (runs[:1] if own else runs)]
    if times := sorted(folder.glob("baseline_time_*.json")):
        return times
    machines: dict[Path, list[Path]] = {}
    for path in sorted((*folder.glob("timing/*/baseline_time_*.json"), *_of_timing(folder))):
        machines.setdefault(path.parent, []).append(path)
    if len(machines) > 1:
        told = ", ".join(map(str, machines))
        raise UsageError(f"{folder}: baseline times of several machines; name one of {told}")
    return [path for paths in machines.values() for path in paths]


def _holds_results(path: Path) -> bool:
    return (path / "eval_results.json").is_file()


def _of_timing(folder: Path) -> list[Path]:
    named = folder.resolve().name == "timing"
    return list(folder.glob("*/baseline_time_*.json")) if named else []


def is_eval_results(value) -> bool:
    """Whether parsed JSON has the form of an eval_results.json."""
    return (
        isinstance(value, dict)
        and bool(value)
        and all(isinstance(key, str) and key.isdigit() for key in value)
        and all(isinstance(part, list) and all(map(_is_entry, part)) for part in value.values())
    )


def _is_entry(entry) -> bool:
    return (
        isinstance(entry, dict)
        and {"sample_id", "compiled", "correctness", "runtime"} <= set(entry)
        and isinstance(entry["runtime"], int | float)
        and isinstance(entry["sample_id"], int)
    )


def is_baseline_times(value) -> bool:
    """Whether parsed JSON has the form of a baseline_time_*.json."""
    return (
        isinstance(value, dict)
        and bool(value)
        and all(_LEVEL.fullmatch(key) and isinstance(part, dict) for key, part in value.items())
        and all(
            isinstance(entry, dict)
            and isinstance(entry.get("mean"), int | float)
            and entry["mean"] > 0
            for part in value.values()
            for entry in part.values()
        )
    )


def records_of_eval_results(value: dict, path: Path, baselines: dict[str, dict]) -> list[dict]:
    """An eval_results.json as records: problem, sample, verdict, times and speedups.

    `baselines` are baseline files by the name of the baseline. Settings the file does not tell
    are None. Raises UsageError when the level is told neither by kernels next to the file nor by
    its folder's name.
    """
    level = _level_of(path)
    found = []
    for number, entries in value.items():
        for entry in entries:
            found.append(_record_of_entry(level, int(number), entry, baselines))
    return found


def _level_of(path: Path) -> int:
    folder = path.resolve().parent
    levels = {named[0] for file in folder.glob("*.py") if (named := parse_run_name(file.name))}
    if not levels and (match := _LEVEL.fullmatch(folder.name)):
        levels = {int(match[1])}
    if len(levels) != 1:
        raise UsageError(
            f"{path}: its level is not known; put the kernels (level_<L>_problem_...) of one level "
            "next to it, or name its folder level<L>"
        )
    return levels.pop()


def _record_of_entry(level: int, number: int, entry: dict, baselines: dict) -> dict:
    accepted = entry["compiled"] is True and entry["correctness"] is True
    told = entry.get("metadata") if isinstance(entry.get("metadata"), dict) else {}
    stats = entry.get("runtime_stats") if isinstance(entry.get("runtime_stats"), dict) else {}
    hardware = told.get("hardware") or stats.get("hardware")
    ms = {}
    if accepted and entry["runtime"] > 0:
        ms["solution"] = _as_ms(entry["runtime"])
        reference = entry.get("ref_runtime")
        if isinstance(reference, int | float) and reference > 0:
            ms["eager"] = _as_ms(reference)
        for name, levels in baselines.items():
            for file, times in levels.get(f"level{level}", {}).items():
                if _number(file) == number and _same_hardware(times.get("hardware"), hardware):
                    ms[name] = _as_ms(times["mean"])
    speedup = {n: ms[n]["median"] / ms["solution"]["median"] for n in ms if n != "solution"}
    best = min(speedup, key=speedup.get) if speedup else None
    return {
        "problem": f"{level}/{number}",
        "sample": entry["sample_id"],
        "imported": "eval_results",
        "device": _slug(hardware),
        "dtype": told.get("dtype"),
        "tf32": told.get("tf32"),
        "batch": told.get("batch"),
        "backward": told.get("backward"),
        "eval": told.get("eval"),
        "verdict": "accepted" if accepted else "rejected",
        "reasons": told.get("reasons") or ([] if accepted else [f"kernelbench: {told}"]),
        "ms": ms,
        "speedup": speedup,
        "fastest": {"baseline": best, "speedup": speedup[best]} if best else None,
    }


def _same_hardware(one, other) -> bool:
    """Whether times may be set against one another: the same hardware, as far as it is told."""
    return one is None or other is None or _slug(one) == _slug(other)


def records_of_baseline_times(value: dict, stem: str) -> list[dict]:
    """A baseline file as records whose `solution` is the baseline, named as the file (`stem`) is;
    their verdict is "baseline".
    """
    return [
        {
            "problem": f"{_LEVEL.fullmatch(level)[1]}/{_number(file)}",
            "imported": "baseline_time",
            "solution": stem.removeprefix("baseline_time_"),
            "device": _slug(entry.get("hardware")),
            "dtype": None,
            "tf32": None,
            "batch": None,
            "backward": None,
            "eval": None,
            "verdict": "baseline",
            "reasons": [],
            "ms": {"solution": _as_ms(entry["mean"])},
            "speedup": {},
            "fastest": None,
        }
        for level, part in value.items()
        for file, entry in part.items()
        if _number(file) is not None
    ]


def _as_ms(mean: float) -> dict:
    return {"median": float(mean), "iqr": None}


def _number(file: str) -> int | None:
    match = re.match(r"(\d+)_", file)
    return int(match[1]) if match else None


def _slug(hardware) -> str | None:
    return re.sub(r"[^a-z0-9]+", "-", str(hardware).lower()).strip("-") if hardware else None
