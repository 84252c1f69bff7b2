"""KernelBench's files: names, export of records, import for comparisons, and there and back."""

import hashlib
import json
from pathlib import Path

import pytest

from harness.errors import UsageError
from harness.report import kernelbench_export, kernelbench_files, records
from harness.report.compare import comparison
from harness.run import cli

SOURCE = b"# a kernel\n"


def record(**changes) -> dict:
    made = {
        "problem": "1/65",
        "reference": "harness/problems/level1/65_conv_transpose_3x7.py",
        "solution": "kernel.py",
        "solution_sha256": hashlib.sha256(SOURCE).hexdigest(),
        "device": "nvidia-h200",
        "device_name": "NVIDIA H200",
        "dtype": "float32",
        "tf32": "allow",
        "batch": 8,
        "backward": False,
        "verdict": "accepted",
        "reasons": [],
        "ms": {n: {"median": m, "iqr": 0.1} for n, m in (("solution", 2.0), ("eager", 6.0))},
        "statistics": {
            n: {"mean": m, "std": 0.1, "min": m, "max": m, "num_trials": 9}
            for n, m in (("solution", 2.5), ("eager", 7.5), ("compile", 5.0))
        },
        "speedup": {"eager": 3.0},
        "fastest": {"baseline": "eager", "speedup": 3.0},
    }
    made["ms"]["compile"] = {"median": 5.0, "iqr": 0.1}
    return {**made, **changes}


def rejected(reason: str, **changes) -> dict:
    empty = {"ms": {}, "statistics": {}, "speedup": {}, "fastest": None}
    return record(verdict="rejected", reasons=[reason], **empty, **changes)


def entry(**changes) -> dict:
    made = {"sample_id": 0, "compiled": True, "correctness": True, "metadata": {}}
    return {**made, "runtime": 2.0, "runtime_stats": {}, **changes}


def write(path: Path, value) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value))
    return path


def test_run_names():
    name = kernelbench_files.run_name(1, 65, 3)
    assert name == "level_1_problem_65_sample_3_kernel.py"
    assert kernelbench_files.parse_run_name(name) == (1, 65, 3)
    assert kernelbench_files.parse_run_name("level_1_problem_65_sample_3_kernel.py.bak") is None
    assert kernelbench_files.parse_run_name("65_x.py") is None


# Export ----------------------------------------------------------------------------------------


def test_export_is_a_tree_of_run_folders_and_baseline_times(tmp_path):
    kernel = tmp_path / "somewhere" / "kernel.py"
    kernel.parent.mkdir()
    kernel.write_bytes(SOURCE)
    found = [
        record(sample=3),
        rejected("inaccurate: so", solution_sha256="0" * 64),
        rejected("import_error: while building: x", sample=7, problem="2/19"),
        record(problem="tiny"),
    ]
    result = kernelbench_export.export(found, tmp_path / "out", [tmp_path / "somewhere"])
    level1 = json.loads((tmp_path / "out/level1/eval_results.json").read_text())
    assert [part["sample_id"] for part in level1["65"]] == [0, 3]
    wrong, right = level1["65"]
    assert right["compiled"] and right["correctness"] and right["runtime"] == 2.5
    assert right["runtime_stats"].keys() >= {"mean", "std", "min", "max", "num_trials"}
    assert right["metadata"]["hardware"] == "NVIDIA H200"
    assert wrong["compiled"] and not wrong["correctness"] and wrong["runtime"] == -1.0
    level2 = json.loads((tmp_path / "out/level2/eval_results.json").read_text())
    assert level2["19"][0]["compiled"] is False and level2["19"][0]["sample_id"] == 7
    names = sorted(path.name for path in (tmp_path / "out").rglob("*.py"))
    assert names == [kernelbench_files.run_name(1, 65, 3), kernelbench_files.run_name(2, 19, 7)]
    assert (tmp_path / "out/level1" / names[0]).read_bytes() == SOURCE
    assert len(result["left_out"]) == 2  # the problem without a number, the kernel not found
    timing = tmp_path / "out/timing/nvidia-h200"
    eager = json.loads((timing / "baseline_time_torch.json").read_text())
    name = "65_conv_transposed_2D__square_input__asymmetric_kernel.py"
    assert eager["level1"][name]["mean"] == 7.5
    assert eager["level1"][name]["hardware"] == "NVIDIA H200"
    compiled = timing / "baseline_time_torch_compile_inductor_default.json"
    assert json.loads(compiled.read_text())["level1"][name]["mean"] == 5.0


def test_a_record_without_means_says_that_it_gives_medians():
    found = kernelbench_files.eval_entry(record(statistics={}), 0)
    assert found["runtime"] == 2.0 and found["runtime_stats"]["mean_is"] == "median"


@pytest.mark.parametrize(
    ("found", "message"),
    [
        ([record(problem="tiny")], "level and number"),
        ([record(), record(device="cpu")], "one device and one setting"),
        ([record(), record(dtype="float16")], "one device and one setting"),
    ],
)
def test_what_no_run_folder_can_hold_is_refused(tmp_path, found, message):
    with pytest.raises(UsageError, match=message):
        kernelbench_export.export(found, tmp_path / "out", [])
    assert not (tmp_path / "out").exists()


# Import ----------------------------------------------------------------------------------------


def test_results_and_baselines_of_a_run_folder(tmp_path):
    run = tmp_path / "run"
    entries = [entry(), entry(sample_id=1, correctness=False, runtime=-1.0)]
    write(run / "eval_results.json", {"65": entries, "7": [entry(compiled=False, runtime=-1)]})
    (run / kernelbench_files.run_name(1, 65, 0)).touch()
    times = {"level1": {"65_x.py": {"mean": 5.0}}, "level2": {"65_y.py": {"mean": 99.0}}}
    write(run / "baseline_time_torch.json", times)
    first, second, third = records.read_records(run)
    assert first["problem"] == "1/65" and first["verdict"] == "accepted"
    assert first["ms"]["solution"]["median"] == 2.0
    assert first["fastest"] == {"baseline": "eager", "speedup": 2.5}
    assert second["sample"] == 1 and second["verdict"] == "rejected" and second["ms"] == {}
    assert third["problem"] == "1/7" and third["verdict"] == "rejected"


def test_baselines_of_other_hardware_give_no_speedup(tmp_path):
    made = entry(metadata={"hardware": "NVIDIA H200"})
    write(tmp_path / "level1" / "eval_results.json", {"65": [made]})
    times = {"level1": {"65_x.py": {"mean": 5.0, "hardware": "NVIDIA L40S"}}}
    write(tmp_path / "level1" / "baseline_time_torch.json", times)
    found = records.read_records(tmp_path / "level1" / "eval_results.json")[0]
    assert found["fastest"] is None and found["device"] == "nvidia-h200"


@pytest.mark.parametrize("kernels", [[], [(1, 65, 0), (2, 65, 0)]])
def test_a_run_whose_level_is_not_known_is_refused(tmp_path, kernels):
    path = write(tmp_path / "run" / "eval_results.json", {"65": [entry()]})
    for place in kernels:
        (path.parent / kernelbench_files.run_name(*place)).touch()
    with pytest.raises(UsageError, match="level is not known"):
        records.read_records(path)


@pytest.mark.parametrize(
    "value",
    [
        {"65": [{"sample_id": 0}]},
        {"65": {}},
        {"level1": {"65_x.py": {"mean": "fast"}}},
        {"level1": {"65_x.py": {"mean": 0}}},
        {},
    ],
)
def test_other_json_is_no_record(tmp_path, value):
    with pytest.raises(UsageError, match="not a record"):
        records.read_records(write(tmp_path / "level1" / "some.json", value))


def test_ours_compared_with_a_run_and_with_baseline_times(tmp_path):
    run = write(tmp_path / "level1" / "eval_results.json", {"65": [entry(runtime=4.0)]})
    times = write(tmp_path / "b.json", {"level1": {"65_x.py": {"mean": 8.0}}})
    ours = [record()]
    groups = [("ours", ours)]
    groups += [(p.name, records.read_records(p)) for p in (run, times)]
    result = comparison(groups)
    (row,) = result["rows"]
    assert row["entries"][0]["setting"]["device"] == "nvidia-h200"
    assert row["entries"][1]["setting"]["dtype"] is None  # not told, and so not claimed
    assert [part["ratio"] for part in row["entries"]] == [1.0, 0.5, 0.25]
    assert set(result["scores"]) == {"ours", "eval_results.json"}
    assert result["scores"]["eval_results.json"]["fast_p"]["1"] is None  # no baseline, no speedup
    assert result["imported"] == ["eval_results.json", "b.json"]


@pytest.mark.parametrize("place", [".", "level1"])
def test_there_and_back_on_the_command_line(place, tmp_path, capsys):
    folder, out = tmp_path / "records", tmp_path / "out"
    write(folder / "1_65.json", record())
    write(folder / "1_69.json", rejected("inaccurate: so", problem="1/69"))
    assert cli.main(["--export-kernelbench", str(folder), "--output", str(out)]) == 0
    assert "eval_results.json" in capsys.readouterr().out
    both = [str(folder), str(out / place)]
    assert cli.main(["--compare", *both, "--json", str(tmp_path / "c.json")]) == 0
    result = json.loads((tmp_path / "c.json").read_text())
    rows = {row["problem"]: [part["verdict"] for part in row["entries"]] for row in result["rows"]}
    assert rows == {"1/65": ["accepted"] * 2, "1/69": ["rejected"] * 2}
    assert [score["fast_p"]["1"] for score in result["scores"].values()] == [0.5, 0.5]
    assert records.read_records(out / place)[0]["speedup"] == {"eager": 3.0, "compile": 2.0}
