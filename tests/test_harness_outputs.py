"""Where the harness writes, what it leaves alone, and how it ends when it cannot."""

import json
import os
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from harness import files, shapes
from harness.errors import EnvironmentUnfit, UsageError
from harness.report import kernelbench_export, page_writer
from harness.run import cli, evaluate
from tests.test_harness_cli import HONEST, ROOT, TINY

CHECK = ["--reference", TINY, "--solution", HONEST, "--device", "cpu", "--batch", "2"]
CHECK += ["--check-only"]
needs_proc = pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="needs /proc")


@pytest.fixture
def never(monkeypatch):
    """No evaluation may begin."""

    def begin(*arguments, **named):
        raise AssertionError("the evaluation began")

    monkeypatch.setattr(cli, "Evaluation", begin)
    monkeypatch.setattr(cli, "run_suite", begin)
    monkeypatch.setattr(shapes, "load_solution", begin)
    monkeypatch.setattr(kernelbench_export, "export", begin)


def tree(folder: Path) -> dict:
    """Everything below a folder, links not followed."""
    return {
        str(path.relative_to(folder)): (
            os.readlink(path)
            if path.is_symlink()
            else path.read_bytes()
            if path.is_file()
            else path.lstat().st_mode
        )
        for path in folder.rglob("*")
    }


# The helper -------------------------------------------------------------------------------------


def test_links_stay_and_what_they_point_to_is_replaced(tmp_path):
    (tmp_path / "there").mkdir()
    target, link = tmp_path / "there" / "real.json", tmp_path / "a" / "link.json"
    link.parent.mkdir()
    link.symlink_to("../there/real.json")
    (tmp_path / "second").symlink_to(link)
    for content in (b"first", b"second"):  # through a link to nothing, then to a file
        files.require_file(tmp_path / "second", "--json")
        files.write_files({tmp_path / "second": content})
        assert target.read_bytes() == content and not target.is_symlink()
    assert os.readlink(link) == "../there/real.json" and (tmp_path / "second").is_symlink()
    assert sorted(p.name for p in target.parent.iterdir()) == ["real.json"]
    assert sorted(p.name for p in link.parent.iterdir()) == ["link.json"]


def test_a_replaced_file_is_another_with_the_same_mode(tmp_path):
    path = tmp_path / "a.json"
    path.write_text("old")
    path.chmod(0o600)
    with open(path) as reader:  # who reads the old one goes on reading it
        files.write_files({path: b"new"})
        assert reader.read() == "old" and path.read_text() == "new"
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_pipe_is_written_to(tmp_path):
    pipe, got = tmp_path / "pipe", []
    os.mkfifo(pipe)
    files.require_file(pipe, "--json")
    reader = threading.Thread(target=lambda: got.append(pipe.read_bytes()), daemon=True)
    reader.start()
    files.write_files({pipe: b"through", tmp_path / "file": b"beside"})
    reader.join(10)
    assert got == [b"through"] and pipe.is_fifo()
    assert (tmp_path / "file").read_bytes() == b"beside"


@pytest.mark.skipif(not Path("/dev/null").is_char_device(), reason="needs /dev/null")
def test_devices_stay_devices(tmp_path):
    (tmp_path / "link").symlink_to("/dev/null")
    for path in (Path("/dev/null"), tmp_path / "link"):
        files.require_file(path, "--json")
        files.write_files({path: b"gone"})
        assert path.is_char_device()
    if Path("/dev/full").is_char_device():
        with pytest.raises(EnvironmentUnfit, match="/dev/full: No space left"):
            files.write_files({Path("/dev/full"): b"too much"})


@needs_proc
def test_an_open_file_by_its_number_is_added_to(tmp_path):
    path = tmp_path / "log"
    with open(path, "ab") as log:
        log.write(b"before ")
        log.flush()
        for name in (f"/dev/fd/{log.fileno()}", f"/proc/self/fd/{log.fileno()}"):
            files.require_file(Path(name), "--json")
            files.write_files({Path(name): b"added "})
        log.write(b"after")
    assert path.read_bytes() == b"before added added after"


def wrong_places(folder: Path) -> dict[str, Path]:
    (folder / "folder").mkdir()
    (folder / "file").write_text("kept")
    (folder / "loop").symlink_to("loop")
    (folder / "to_folder").symlink_to("folder")
    places = ["folder", "to_folder", "loop", "file/below", "loop/below", "x" * 300]
    return {place: folder / place for place in places} | {"/proc": Path("/proc/nowhere/a.json")}


def test_what_is_no_place_for_a_file_is_refused_before_and_when_it_is_written(tmp_path):
    places = wrong_places(tmp_path)
    before = tree(tmp_path)
    for name, place in places.items():
        with pytest.raises(UsageError, match=r"^--json .*: cannot be written: ."):
            files.require_file(place, "--json")
        with pytest.raises(UsageError, match="^cannot write "):
            files.write_files({tmp_path / "good": b"x", place: b"x"})
        assert tree(tmp_path) == before, name


def test_a_socket_is_refused(tmp_path):
    with socket.socket(socket.AF_UNIX) as server:
        here = os.getcwd()
        os.chdir(tmp_path)  # a socket's whole path must be short
        try:
            server.bind("s")
        finally:
            os.chdir(here)
        with pytest.raises(UsageError, match="no regular file"):
            files.require_file(tmp_path / "s", "--json")
        with pytest.raises(UsageError, match="no regular file"):
            files.write_files({tmp_path / "s": b"x"})


def test_folders_are_tried_and_not_made(tmp_path):
    (tmp_path / "file").write_text("kept")
    (tmp_path / "filled").mkdir()
    (tmp_path / "filled" / "build.so").write_text("built")
    before = tree(tmp_path)
    files.require_folder(tmp_path / "new" / "deep", "--output")
    files.require_folder(tmp_path / "filled", "--output")
    for place in (tmp_path / "file", tmp_path / "file" / "below", Path("/proc/none")):
        with pytest.raises(UsageError, match=r"^--output .*: cannot be written to: ."):
            files.require_folder(place, "--output")
    assert tree(tmp_path) == before


def test_a_filled_folder_may_be_read_only_where_that_is_enough(tmp_path, monkeypatch):
    (tmp_path / "build.so").write_text("built")

    def refuse(*arguments, **named):
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(files.tempfile, "TemporaryFile", refuse)
    files.require_folder(tmp_path, "--build-dir", filled_is_enough=True)
    with pytest.raises(UsageError, match="Read-only file system"):
        files.require_folder(tmp_path, "--output")


def test_removing_takes_files_alone(tmp_path):
    (tmp_path / "file").write_text("old")
    (tmp_path / "link").symlink_to("file")
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    for name in ("link", "folder", "pipe", "missing"):
        files.remove_file(tmp_path / name)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["folder", "link", "pipe"]


# The commands -----------------------------------------------------------------------------------


def test_an_output_in_the_way_is_told_before_anything_is_evaluated(tmp_path, never, capsys):
    file = tmp_path / "file"
    file.write_text("kept")
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "cpu").write_text("in the way")
    (tmp_path / "records" / "cpu" / "1_65.json").mkdir(parents=True)
    (tmp_path / "suite" / "65.json").mkdir(parents=True)
    (tmp_path / "candidates").mkdir()
    (tmp_path / "candidates" / "65.py").write_text("x = 1\n")
    problem = ["--problem", "65", "--device", "cpu"]
    suite = ["--suite", str(tmp_path / "candidates"), "--device", "cpu"]
    export = ["--export-kernelbench", str(ROOT / "results" / "cpu")]
    before = tree(tmp_path)
    for arguments, option in (
        ([*CHECK, "--json", str(tmp_path)], "--json"),
        ([*CHECK, "--json", "/proc/none/a.json"], "--json"),
        ([*CHECK, "--json", str(file / "a.json")], "--json"),
        ([*CHECK, "--build-dir", str(file)], "--build-dir"),
        ([*CHECK, "--build-dir", "/proc/none"], "--build-dir"),
        ([*problem, "--record", str(file)], "--record"),
        ([*problem, "--record", str(tmp_path / "results")], "--record"),
        ([*problem, "--record", str(tmp_path / "records")], "--record"),
        ([*suite, "--output", str(file)], "--output"),
        ([*suite, "--output", "/proc/none"], "--output"),
        ([*suite, "--json", str(tmp_path)], "--json"),
        ([*export, "--output", str(file)], "--output"),
        (["--list", "--json", str(tmp_path)], "--json"),
    ):
        assert cli.main(arguments) == 2, arguments
        captured = capsys.readouterr()
        assert captured.err.startswith(f"run_eval.py: error: {option} "), captured.err
        assert captured.err.count("\n") == 1 and tree(tmp_path) == before


def test_a_record_in_the_way_is_told_before_a_suite_starts(tmp_path, capsys):
    (tmp_path / "candidates").mkdir()
    (tmp_path / "candidates" / "65.py").write_text("x = 1\n")
    (tmp_path / "out" / "65.json").mkdir(parents=True)
    arguments = ["--suite", str(tmp_path / "candidates"), "--device", "cpu"]
    assert cli.main([*arguments, "--output", str(tmp_path / "out")]) == 2
    told = capsys.readouterr().err
    assert "65.json: cannot be written: is a folder" in told and told.count("\n") == 1


def test_other_commands_tell_it_before_they_work(tmp_path, never, capsys):
    for arguments in (["--json", str(tmp_path)], ["--build-dir", "/proc/none"]):
        assert shapes.main(["--device", "cpu", *arguments]) == 2
        told = capsys.readouterr().err
        assert told.startswith(f"harness.shapes: error: {arguments[0]} ") and told.count("\n") == 1
    for arguments in (["--html", str(tmp_path)], ["--pictures", "/proc/none"]):
        assert page_writer.main(arguments) == 2
        told = capsys.readouterr().err
        assert told.startswith(f"harness.report: error: {arguments[0]} ") and told.count("\n") == 1


def test_inputs_are_not_overwritten(tmp_path, never, capsys):
    copy = tmp_path / "solution.py"
    copy.write_text(Path(HONEST).read_text())
    (tmp_path / "link").symlink_to(copy)
    arguments = ["--reference", TINY, "--solution", str(copy), "--json", str(tmp_path / "link")]
    assert cli.main(arguments) == 2
    assert "would overwrite the input" in capsys.readouterr().err
    assert copy.read_text() == Path(HONEST).read_text()


def test_the_record_goes_through_a_link_and_into_a_device(tmp_path, capsys):
    link, target = tmp_path / "link.json", tmp_path / "far" / "record.json"
    link.symlink_to(target)
    assert cli.main([*CHECK, "--json", str(link)]) == 0
    assert link.is_symlink() and json.loads(target.read_text())["verdict"] == "accepted"
    assert cli.main(["--list", "--json", "/dev/null"]) == 0
    assert Path("/dev/null").is_char_device()


def test_an_export_is_written_whole_or_not_at_all(tmp_path, capsys):
    (tmp_path / "out" / "timing").mkdir(parents=True)
    (tmp_path / "out" / "timing" / "cpu").write_text("in the way")
    before = tree(tmp_path)
    arguments = ["--export-kernelbench", str(ROOT / "results" / "cpu")]
    assert cli.main([*arguments, "--output", str(tmp_path / "out")]) == 2
    assert {name for name in tree(tmp_path) if "." in name} == {n for n in before if "." in n}


# How it ends ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("notes.md", "# no Python\n"),
        ("bytes.py", "\x00\x01"),
        ("exits.py", "raise SystemExit(0)\n"),
        (
            "model.py",
            "def Model(): return 1\ndef get_inputs(): return []\nget_init_inputs = list\n",
        ),
        ("raises.py", "Model = get_inputs = None\ndef get_init_inputs(): raise OSError('disk')\n"),
    ],
)
def test_a_reference_that_is_none_is_status_2_and_one_line(tmp_path, capsys, name, content):
    path = tmp_path / name
    path.write_text(content)
    arguments = ["--reference", str(path), "--solution", HONEST, "--device", "cpu"]
    assert cli.main(arguments) == 2
    told = [line for line in capsys.readouterr().err.splitlines() if "error:" in line]
    assert len(told) == 1 and told[0].startswith(f"run_eval.py: error: reference {path}: ")


def test_an_internal_error_is_status_4_and_one_line(monkeypatch, capsys):
    def fail(self):
        raise ZeroDivisionError("of the harness\nin two lines")

    monkeypatch.setattr(evaluate.Evaluation, "run", fail)
    assert cli.main(CHECK) == 4
    told = capsys.readouterr().err
    assert "Traceback" not in told and told.splitlines()[-1] == (
        "run_eval.py: internal error: ZeroDivisionError: of the harness "
        "(TCONV_TRACEBACK=1 shows where)"
    )
    monkeypatch.setenv("TCONV_TRACEBACK", "1")
    assert cli.main(CHECK) == 4
    assert "Traceback" in capsys.readouterr().err


def test_an_internal_error_after_an_accepted_evaluation_is_not_a_rejection(monkeypatch, capsys):
    def fail(*arguments):
        raise RuntimeError("lost on the way")

    monkeypatch.setattr(cli.tables, "print_record", fail)
    assert cli.main(CHECK) == 4
    assert "internal error: RuntimeError: lost on the way" in capsys.readouterr().err


def test_a_file_that_cannot_be_written_in_the_end_is_not_a_rejection(tmp_path, capsys, monkeypatch):
    def disk_full(*arguments):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files.os, "replace", disk_full)
    assert cli.main(["--list", "--json", str(tmp_path / "a.json")]) == 3
    assert "No space left" in capsys.readouterr().err and not list(tmp_path.iterdir())


def test_status_4_of_a_candidate_is_the_suites(tmp_path):
    from harness.run import suite_records
    from harness.run.suite_files import find_items

    (tmp_path / "65.py").write_text("x = 1\n")
    item = find_items(tmp_path)[0]
    plan = suite_records.Plan(tmp_path, [], {}, 1.0, "")
    assert suite_records.written(item, plan, None, 4, "internal error: x", {}).status == 4
    assert suite_records.written(item, plan, None, 1, "", {}).status == 3


def test_help_and_page_tell_status_4():
    shown = subprocess.run(
        [sys.executable, "run_eval.py", "--help"], cwd=ROOT, capture_output=True, text=True
    ).stdout
    assert "4 an internal error" in " ".join(shown.split())
    assert "TCONV_TRACEBACK=1" in (ROOT / "docs" / "measuring.md").read_text()
