"""--compare and --show: which records belong together, what the tables name, what fails."""

import io
import json
import shutil
import subprocess
from pathlib import Path

import pytest
from rich.console import Console

from harness.errors import UsageError
from harness.report import compare, compare_tables, records
from harness.report.commit import commit_of
from harness.report.compare import comparison
from harness.report.labels import shortened
from harness.run import cli

ROOT = Path(__file__).resolve().parent.parent
H200 = str(ROOT / "results" / "nvidia-h200")


def record(problem: str = "1/65", ms: float | None = 2.0, **changes) -> dict:
    made = {
        "problem": problem,
        "solution": "solutions/x.py",
        "device": "nvidia-h200",
        "dtype": "float32",
        "tf32": "allow",
        "batch": 8,
        "problem_batch": 8,
        "backward": False,
        "eval": False,
        "kernel": "auto",
        "verdict": "accepted",
        "ms": {"solution": {"median": ms, "iqr": 0.1}} if ms else {},
        "fastest": {"baseline": "eager", "speedup": 3.0 / ms} if ms else None,
    }
    return {**made, **changes}


def timing_file(folder: Path, mean: float, hardware: str) -> Path:
    folder.mkdir(parents=True)
    entry = {"mean": mean, "hardware": hardware, "device": "cuda:0"}
    path = folder / "baseline_time_torch.json"
    path.write_text(json.dumps({"level1": {"65_x.py": entry}}))
    return path


def printed(result: dict, width: int = 80) -> str:
    stream = io.StringIO()
    console = Console(file=stream, width=width, highlight=False)
    compare_tables.print_comparison(console, result)
    return stream.getvalue()


def ratios(result: dict) -> list[list]:
    return [[entry["ratio"] for entry in row["entries"]] for row in result["rows"]]


# Which belong together -------------------------------------------------------------------------


def test_ratios_are_of_shared_problems():
    old = [record(), record("1/69"), record("2/11")]
    new = [record(ms=1.0), record("1/69", ms=None, verdict="rejected")]
    result = comparison([("old", old), ("new", new)])
    assert ratios(result) == [[1.0, 2.0], [1.0, None]]
    assert [key.split()[0] for key in result["left_out"]["old"]] == ["2/11"]
    with pytest.raises(UsageError, match="no problem was evaluated"):
        comparison([("old", old), ("other", [record("3/1")])])


@pytest.mark.parametrize(
    ("changes", "differs", "shown"),
    [
        ({"device": "nvidia-h100"}, ["device"], "│ h100 "),
        ({"dtype": "bfloat16", "tf32": "allow"}, ["dtype", "tf32"], "│ bf16 "),
        ({"tf32": "forbid"}, ["tf32"], "│ forbid "),
        ({"kernel": "portable"}, ["kernel"], "│ portable "),
        ({"device": "cpu", "tf32": "forbid"}, ["device", "tf32"], "│ cpu "),
    ],
)
def test_what_people_compare_is_named_in_the_columns(changes, differs, shown):
    result = comparison([("a", [record()]), ("b", [record(ms=1.0, **changes)])])
    assert result["differs"] == differs and ratios(result) == [[1.0, 2.0]]
    text = printed(result)
    head = text.splitlines()[1:3]
    assert all(name in head[1] for name in differs)
    assert shown in text
    assert set(result["common"]).isdisjoint(differs) and "passes forward" in text


def test_what_differs_between_problems_alone_has_no_column():
    """Their batches; and verdicts have one only where they are not all the same."""
    made = [record(), record("1/69", batch=64, problem_batch=64)]
    result = comparison([("a", made), ("b", made)])
    assert result["differs"] == [] and "batch" not in result["common"]
    assert "verdict accepted" in printed(result).splitlines()[0]
    rejected = record(ms=None, verdict="rejected")
    lines = printed(comparison([("a", [record()]), ("b", [rejected])])).splitlines()
    assert "verdict" not in lines[0] and " verdict " in lines[2]
    assert sum("rejected" in line for line in lines) == 1


def test_another_batch_has_no_ratio():
    result = comparison([("a", [record()]), ("b", [record(batch=4)])])
    assert result["differs"] == ["batch"] and ratios(result) == [[1.0, None]]
    assert "another amount of work" in printed(result)


def test_modes_are_not_set_against_each_other():
    older = record()  # from before there was a choice: training mode
    del older["eval"]
    assert comparison([("a", [older]), ("b", [record()])])["rows"]
    for other in ("eval", "backward"):
        with pytest.raises(UsageError, match=f"the same settings.*{other}: False; True"):
            comparison([("a", [older]), ("b", [record(**{other: True})])])


def test_where_a_set_has_several_dtypes_equal_ones_belong_together():
    both = [record(), record(dtype="float16", ms=1.0)]
    result = comparison([("a", both), ("b", [record(dtype="float16", ms=0.5)])])
    assert ratios(result) == [[1.0, 2.0]]
    assert result["rows"][0]["entries"][0]["setting"]["dtype"] == "float16"
    assert result["left_out"] == {"a": ["1/65 float32 allow"]}


def test_samples_are_rows_of_their_own(tmp_path, capsys):
    made = [record(ms=1.5 * (sample + 1), sample=sample) for sample in (0, 1)]
    paths = [tmp_path / "a.json", tmp_path / "b.json"]
    for path in paths:
        path.write_text(json.dumps(made))
    out = tmp_path / "out.json"
    assert cli.main(["--compare", *map(str, paths), "--json", str(out)]) == 0
    assert "fast_p" in capsys.readouterr().out
    result = json.loads(out.read_text())
    assert [row["problem"] for row in result["rows"]] == ["1/65 sample 0", "1/65 sample 1"]
    score = result["scores"][str(paths[0])]
    assert score["fast_p"]["1"] == 0.5 and score["geometric_mean"] == pytest.approx(2**0.5)


# KernelBench's own -----------------------------------------------------------------------------


def test_timing_files_of_two_machines(tmp_path):
    paths = [
        timing_file(tmp_path / "timing" / "H100", 4.0, "NVIDIA H100 PCIe"),
        timing_file(tmp_path / "timing" / "L40S", 8.0, "NVIDIA L40S"),
    ]
    for given in (paths, [path.parent for path in paths]):
        result = comparison([(str(path), records.read_records(path)) for path in given])
        assert result["differs"] == ["device"] and ratios(result) == [[1.0, 0.5]]
        text = printed(result)
        assert "h100" in text and "l40s" in text and "dtype ?" in text
    with pytest.raises(UsageError, match="several machines; name one of .*H100.*L40S"):
        records.read_records(tmp_path / "timing")
    shutil.rmtree(paths[1].parent)
    for root in (tmp_path, tmp_path / "timing"):
        assert [found["verdict"] for found in records.read_records(root)] == ["baseline"]


def test_two_files_of_one_machine_are_rows_of_their_own(tmp_path):
    path = timing_file(tmp_path / "m", 4.0, "NVIDIA L40S")
    shutil.copy(path, path.with_name("baseline_time_torch_compile_inductor_default.json"))
    found = records.read_records(path.parent)
    result = comparison([("a", found), ("b", found)])
    names = ["1/65 torch", "1/65 torch_compile_inductor_default"]
    assert [row["problem"] for row in result["rows"]] == names


def test_a_cut_batch_is_not_set_against_kernelbenchs(tmp_path):
    path = timing_file(tmp_path / "m", 4.0, "NVIDIA L40S")
    for batch, expected in ((8, 0.5), (4, None)):
        groups = [("a", [record(batch=batch)]), ("b", records.read_records(path))]
        assert ratios(comparison(groups)) == [[1.0, expected]]


def test_a_root_of_runs_holds_all_levels(tmp_path):
    entry = {"sample_id": 0, "compiled": True, "correctness": True, "runtime": 2.0}
    for level in (1, 2):
        (tmp_path / f"level{level}").mkdir()
        results = tmp_path / f"level{level}" / "eval_results.json"
        results.write_text(json.dumps({"7": [{**entry, "metadata": {}, "runtime_stats": {}}]}))
    assert [found["problem"] for found in records.read_records(tmp_path)] == ["1/7", "2/7"]


# Order, and what fails -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sort", "problems"),
    [
        ("problem", ["1/65", "1/69", "2/11"]),
        ("ratio", ["1/69", "1/65", "2/11"]),
        ("ms", ["1/69", "1/65", "2/11"]),
        ("speedup", ["1/69", "1/65", "2/11"]),
    ],
)
def test_sort(sort, problems, tmp_path):
    sets = {
        "old.json": [record(), record("1/69"), record("2/11")],
        "new.json": [record(), record("1/69", ms=4.0), record("2/11", ms=None)],
    }
    for name, part in sets.items():
        (tmp_path / name).write_text(json.dumps(part))
    out = tmp_path / "out.json"
    words = ["--compare", *(str(tmp_path / name) for name in sets), "--json", str(out)]
    assert cli.main([*words, "--sort", sort]) == 0
    assert [row["problem"] for row in json.loads(out.read_text())["rows"]] == problems


@pytest.mark.parametrize(
    ("new", "told"),
    [
        ([record(ms=2.1), record("1/69", ms=1.0)], []),
        ([record(ms=2.3), record("1/69", ms=1.0)], ["1/65 in {new}: 0.870"]),
        (
            [record(ms=2.0), record("1/69", ms=None, verdict="rejected")],
            ["1/69 in {new}: rejected"],
        ),
        ([record(ms=2.0), record("1/69", ms=None)], ["1/69 in {new}: no ratio"]),
        ([record(ms=2.0), record("1/69", batch=4)], ["1/69 in {new}: no ratio"]),
        ([record(ms=2.0)], ["1/69: in {old} alone"]),
    ],
)
def test_fail_below_is_status_1(new, told, tmp_path, capsys):
    paths = {"old": tmp_path / "old.json", "new": tmp_path / "new.json"}
    paths["old"].write_text(json.dumps([record(), record("1/69")]))
    paths["new"].write_text(json.dumps(new))
    out = tmp_path / "out.json"
    words = ["--compare", *map(str, paths.values()), "--json", str(out)]
    assert cli.main([*words, "--fail-below", "0.9"]) == (1 if told else 0)
    assert json.loads(out.read_text())["below"] == [text.format(**paths) for text in told]
    shown = capsys.readouterr().out
    assert shown.count("below 0.9: ") == len(told)
    assert cli.main(words) == 0


# Labels ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("labels", "width", "expected"),
    [
        (["results/cpu", "old.json"], 20, ["results/cpu", "old.json"]),
        (["a/b/old.json", "a/b/new.json"], 20, ["old.json", "new.json"]),
        (["results/nvidia-h200", "results/nvidia-h200-float16"], 10, ["…idia-h200", "…0-float16"]),
        (["one/far/1_65.json", "two/far/1_65.json"], 12, ["1:…1_65.json", "2:…1_65.json"]),
        (["same", "same"], 20, ["1:same", "2:same"]),
        (["only/one.json"], 8, ["…ne.json"]),
    ],
)
def test_labels_are_cut_from_the_left_and_differ(labels, width, expected):
    assert shortened(labels, width) == expected


def test_rows_differ_at_80_columns():
    names = [f"somewhere/with/a/long/name/run{i}/results/nvidia-h200/1_65.json" for i in (1, 2)]
    made = [record(), record(ms=1.0, device="nvidia-h100-80gb-hbm3", dtype="float16")]
    text = printed(comparison([(n, [r]) for n, r in zip(names, made, strict=True)]))
    lines = text.splitlines()
    assert all(len(line) <= 80 for line in lines if line[:1] in "┏┃┡│└")
    rows = [line for line in lines if line.startswith("│") and "1_65.json" in line][:2]
    assert len(rows) == 2 and "1:…" in rows[0] and "2:…" in rows[1]
    assert "2.00x" in rows[1]
    assert f"1_65.json is {names[1]}" in lines[-1]


# Records ---------------------------------------------------------------------------------------


def test_show_prints_records_as_an_evaluation_does(tmp_path, capsys):
    out = tmp_path / "out.json"
    assert cli.main(["--show", H200, "--json", str(out)]) == 0
    text = capsys.readouterr().out
    found = json.loads(out.read_text())
    assert len(found) == 4
    for one in found:
        assert f"{one['problem']} {one['name']} on NVIDIA H200" in text
        assert f"{one['fastest']['speedup']:.2f}x over the fastest baseline" in text
        assert one["command"] in text
    path = tmp_path / "rejected.json"
    errors = {"precision": "tf32", "cases": {}}
    bare = {"name": "x", "device_name": "X", "input_shape": [1], "error": errors}
    bare |= {"kernelbench": None, "build_s": None, "peak_bytes": None}
    path.write_text(json.dumps(record(ms=None, verdict="rejected", reasons=["crash: x"], **bare)))
    assert cli.main(["--show", str(path)]) == 1
    assert "crash: x" in capsys.readouterr().out


def test_show_names_what_a_record_lacks(tmp_path, capsys):
    path = tmp_path / "a.json"
    path.write_text(json.dumps(record()))
    assert cli.main(["--show", str(path)]) == 2
    assert "record of problem '1/65': no entry 'input_shape'" in capsys.readouterr().err


def test_show_of_kernelbenchs_files_tells_times(tmp_path, capsys):
    path = timing_file(tmp_path / "m", 4.0, "NVIDIA L40S")
    assert cli.main(["--show", str(path)]) == 0
    assert "1/65 on nvidia-l40s: baseline, 4 ms (imported)" in capsys.readouterr().out


def git(folder: Path, *words: str) -> str:
    names = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
    command = ["git", "-C", str(folder), *names, *words]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def test_records_hold_the_commit(tmp_path):
    assert commit_of(tmp_path) is None
    top = tmp_path / "top"
    (top / "inner").mkdir(parents=True)
    git(top, "init", "--quiet")
    (top / "file").write_text("one")
    git(top, "add", "file")
    git(top, "commit", "--quiet", "-m", "one")
    commit_of.cache_clear()
    sha = git(top, "rev-parse", "HEAD")
    assert commit_of(top) == {"sha": sha, "dirty": False}
    assert commit_of(top / "inner") is None  # of something that lies in another project
    (top / "file").write_text("two")
    commit_of.cache_clear()
    assert commit_of(top) == {"sha": sha, "dirty": True}
    made = compare.told_commit(commit_of(top))
    assert made == f"{sha[:9]}+changes"
    groups = [("a", [record(commit=commit_of(top))]), ("b", [record()])]
    assert f"commit: a: {made}; b: not told" in printed(comparison(groups))
