"""Records: what an evaluation leaves behind as JSON."""

import datetime
import json
import math
import re
import statistics
from pathlib import Path

from harness import devices
from harness.catalog import ROOT, Problem
from harness.errors import UsageError
from harness.files import write_files
from harness.judge import wire
from harness.report import kernelbench_files
from harness.report.commit import commit_of
from harness.run.outcome import Options, Outcome

SETTINGS = ("device", "dtype", "tf32", "batch", "backward", "eval")
_PATH_PART = re.compile(r"\w[\w.-]*")


def machine(record: dict) -> str:
    """Where it was made: device, driver and CUDA or threads, PyTorch."""
    versions = record["versions"]
    how = f"{versions['cpu_threads']} threads"
    if versions["gpu"]:
        how = f"driver {versions['driver']}, CUDA {versions['cuda']}"
    return f"{record['device_name']}, {how}, PyTorch {versions['torch']}"


def setting(record: dict, names: tuple[str, ...] = SETTINGS) -> tuple:
    """These settings of a record; None where it does not tell. Older ones have neither eval mode
    nor forced kernel.
    """
    told = {"eval": False, "kernel": "auto", **record}
    return tuple(told.get(name) for name in names)


def folder_name(record: dict) -> str:
    """Where a record and its pictures belong: the device, and the settings that are not usual.

    Raises ValueError where one of them cannot name a folder.
    """
    parts = [record["device"]]
    parts += [record["dtype"]] * (record["dtype"] != "float32")
    parts += ["tf32-forbid"] * tf32_forbidden(record) + ["backward"] * bool(record["backward"])
    parts += ["eval"] * bool(record.get("eval"))
    kernel = record.get("kernel", "auto")
    parts += [kernel] * (kernel != "auto")
    for part in parts:
        if not (isinstance(part, str) and _PATH_PART.fullmatch(part)):
            raise ValueError(f"{part!r} cannot name a folder: letters, digits, '_', '-', '.' can")
    return "-".join(parts)


def folder_of(options: Options) -> str:
    """The folder of the record that an evaluation with these options will have."""
    return folder_name(
        {
            "device": devices.device_slug(options.device),
            "dtype": wire.dtype_name(options.dtype),
            "tf32": options.tf32,
            "backward": options.backward,
            "eval": options.eval,
            "kernel": options.kernel,
        }
    )


def tf32_forbidden(record: dict) -> bool:
    """Whether TF32 could have been allowed and was not."""
    on_gpu = record["device"] != "cpu" and record["dtype"] == "float32"
    return on_gpu and record["tf32"] == "forbid"


def make_record(problem: Problem, options: Options, outcome: Outcome, command: str) -> dict:
    """The record of one evaluation. Times are in milliseconds, sizes in bytes.

    A rejected solution's record has an empty `ms` and `speedup` and `fastest` None.
    """
    accepted = not outcome.reasons
    measurement = outcome.measurement if accepted else None
    record = {
        "problem": problem.id,
        "name": problem.name,
        "reference": shown_path(problem.reference),
        "solution": shown_path(problem.solution),
        "solution_sha256": outcome.solution_sha256,
        "device": devices.device_slug(options.device),
        "device_name": devices.device_name(options.device),
        "dtype": wire.dtype_name(options.dtype),
        "tf32": options.tf32,
        "batch": outcome.batch,
        "problem_batch": outcome.problem_batch or outcome.batch,
        "input_shape": outcome.shape,
        "backward": options.backward,
        "eval": options.eval,
        "kernel": options.kernel,
        "verdict": "accepted" if accepted else "rejected",
        "reasons": outcome.reasons,
        "ms": measurement.summary() if measurement else {},
        "cold_call_ms": measurement.cold_summary() if measurement else {},
        "cold_call_errors": measurement.cold_errors if measurement else {},
        "statistics": _statistics(measurement),
        "speedup": measurement.speedup() if measurement else {},
        "fastest": measurement.fastest() if measurement else None,
        "baseline_errors": measurement.baseline_errors if measurement else {},
        "baselines_not_offered": outcome.baselines_not_offered,
        "calls_timed": _calls(measurement),
        "own_clock_ms": outcome.own_clock_ms if accepted else None,
        "error": _error(outcome),
        "kernelbench": outcome.kernelbench,
        "roofline": outcome.roofline if accepted else None,
        "passes": _passes(outcome) if accepted else {},
        "other_size": outcome.other_size,
        "non_finite": outcome.non_finite,
        "second_instance": outcome.second_instance,
        "weights_copied": outcome.weights_copied,
        "does_not_drop_in": outcome.does_not_drop_in,
        "static_checker": outcome.static_checker,
        "other_arguments": outcome.other_arguments,
        "build_s": outcome.build_s,
        "seconds": {name: round(value, 2) for name, value in outcome.seconds.items()},
        "peak_bytes": outcome.peak_bytes,
        "seeds": outcome.seeds,
        "versions": devices.environment(options.device),
        "commit": commit_of(),
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d"),
        "command": command,
    }
    return _json_safe(record)


def _passes(outcome: Outcome) -> dict:
    """The forward and the backward of a training step, each alone; what stands outside of `passes`
    is of both together.
    """
    return {
        name: {
            "ms": times.measurement.summary(),
            "statistics": _statistics(times.measurement),
            "speedup": times.measurement.speedup(),
            "fastest": times.measurement.fastest(),
            "baseline_errors": times.measurement.baseline_errors,
            "calls_timed": _calls(times.measurement),
            "roofline": times.roofline,
            "peak_bytes": outcome.peak_by_pass.get(name),
        }
        for name, times in outcome.passes.items()
    }


def _error(outcome: Outcome) -> dict:
    cases = {name: case for name, case in outcome.errors.items() if case}
    several = {} if outcome.outputs is None else {"outputs": outcome.outputs}
    return several | {
        "precision": outcome.precision,
        "constant": outcome.constant,
        "reduction_length": outcome.reduction_length,
        "rel_l2": max((case["rel_l2"] for case in cases.values()), default=None),
        "max_abs": max((case["max_abs"] for case in cases.values()), default=None),
        "cases": cases,
    }


def _calls(measurement) -> dict:
    if measurement is None:
        return {}
    return {name: sum(map(len, parts)) for name, parts in measurement.rounds.items()}


def _statistics(measurement) -> dict:
    """Mean, standard deviation and extremes in milliseconds, as KernelBench's files have them."""
    found = {}
    for name, parts in measurement.rounds.items() if measurement else ():
        times = [value for part in parts for value in part]
        if times:
            found[name] = {
                "mean": statistics.fmean(times),
                "std": statistics.pstdev(times),
                "min": min(times),
                "max": max(times),
                "num_trials": len(times),
            }
    return found


def shown_path(path: Path | None) -> str | None:
    """The path within the project, or only the name of a file elsewhere."""
    if path is None:
        return None
    absolute = path.resolve()
    return str(absolute.relative_to(ROOT)) if absolute.is_relative_to(ROOT) else path.name


def _json_safe(value):
    """JSON has no NaN or infinity: they become None."""
    if isinstance(value, dict):
        return {str(key): _json_safe(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_json_safe(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def to_json(value) -> str:
    """JSON text as it is written to files."""
    return json.dumps(value, indent=1, allow_nan=False) + "\n"


def write_json(path: Path, value) -> None:
    """Write a file whole or not at all: an interruption leaves the old one.

    Raises UsageError where `path` cannot be written (`files.write_files`).
    """
    write_files({path: to_json(value).encode()})


def read_records(path: Path) -> list[dict]:
    """The records in a file (one object or a list), or in a folder among its JSON files.

    KernelBench's eval_results.json and baseline_time_*.json are read, too; baseline times next to
    an eval_results.json, or in ../timing/<device>/, give its speedups. Of a folder they are found
    in it, or in level<L>/ (an export), or in the one folder of timing/. Raises UsageError for a
    missing path, malformed JSON, or JSON that holds no record.
    """
    if not path.exists():
        raise UsageError(f"{path}: no such file or folder")
    if not path.is_dir():
        return _records_of(path, _parsed(path))
    if files := kernelbench_files.files_of(path):
        return [record for file in files for record in _records_of(file, _parsed(file))]
    values = [_parsed(file) for file in sorted(path.glob("*.json"))]
    found = [item for value in values for item in _listed(value) if _is_record(item)]
    if not found:
        raise UsageError(f"{path}: no record (*.json) in this folder")
    return found


def is_record_file(path: Path) -> bool:
    """Whether a JSON file holds a record of an evaluation, or a list with one."""
    return any(map(_is_record, _listed(_parsed(path))))


def _records_of(path: Path, value) -> list[dict]:
    if kernelbench_files.is_eval_results(value):
        baselines = _baselines_near(path)
        return kernelbench_files.records_of_eval_results(value, path, baselines)
    if kernelbench_files.is_baseline_times(value):
        return kernelbench_files.records_of_baseline_times(value, path.stem)
    found = _listed(value)
    if not all(map(_is_record, found)):
        raise UsageError(f"{path}: not a record of an evaluation")
    return found


def _baselines_near(path: Path) -> dict[str, dict]:
    """The baseline files that belong to an eval_results.json, by the name of the baseline."""
    places = [path.parent, *sorted((path.resolve().parent.parent / "timing").glob("*"))]
    found = {}
    for name, stem in kernelbench_files.BASELINE_FILES.items():
        files = [place / f"{stem}.json" for place in places if (place / f"{stem}.json").is_file()]
        if len(files) > 1:
            told = ", ".join(map(str, files))
            raise UsageError(f"{path}: more than one file of baseline times belongs to it ({told})")
        if files:
            found[name] = _parsed(files[0])
            if not kernelbench_files.is_baseline_times(found[name]):
                raise UsageError(f"{files[0]}: not a file of baseline times")
    return found


def _parsed(path: Path):
    try:
        return json.loads(path.read_text())
    except ValueError as error:
        raise UsageError(f"{path}: not JSON ({error})") from None


def _listed(value) -> list:
    return value if isinstance(value, list) else [value]


def _is_record(value) -> bool:
    return isinstance(value, dict) and {"problem", "verdict", "ms", "device"} <= set(value)
