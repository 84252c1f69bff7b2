"""--family: which references it finds, that a refused or broken one stops no other, resuming."""

import json
import os
from pathlib import Path

import pytest

from harness.errors import UsageError
from harness.run import cli, family, generating
from tests.fixture_judge import FIXTURES

# PyTorch's operators alone become of it, so that nothing is built.
WITHOUT_KERNEL = """
import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.conv = nn.ConvTranspose1d(channels, 5, 3)

    def forward(self, x):
        return self.conv(x)


batch_size = 3


def get_inputs():
    return [torch.rand(batch_size, 4, 12)]


def get_init_inputs():
    return [4]
"""
DATA_DECIDES = WITHOUT_KERNEL.replace(
    "return self.conv(x)", "return self.conv(x) if x.sum() > 0 else self.conv(-x)"
)
NO_CONVOLUTION = WITHOUT_KERNEL.replace("ConvTranspose1d", "Conv1d")
EXITS = WITHOUT_KERNEL + "\nimport os\nos._exit(7)\n"
HANGS = WITHOUT_KERNEL + "\nimport time\ntime.sleep(60)\n"


def write(folder: Path, **texts: str) -> Path:
    """References `level<L>/<N>_<name>.py`, by L_N_name."""
    for key, text in texts.items():
        level, name = key.removeprefix("l").split("_", 1)
        path = folder / f"level{level}" / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


@pytest.mark.parametrize("inside", ["", "KernelBench"])
def test_references_are_found_in_the_order_of_their_problems(tmp_path, inside):
    texts = {"l1_10_one": WITHOUT_KERNEL, "l1_9_two": WITHOUT_KERNEL, "l2_1_three": WITHOUT_KERNEL}
    write(tmp_path / inside, **texts, l1_3_none=NO_CONVOLUTION, l1__2_hidden=WITHOUT_KERNEL)
    if inside:  # of a checkout only the problems
        (tmp_path / "example.py").write_text(WITHOUT_KERNEL)
    found = family.find_references(tmp_path)
    assert [path.name for path in found] == ["9_two.py", "10_one.py", "1_three.py"]


def test_a_folder_without_any_is_refused(tmp_path, capsys):
    write(tmp_path, l1_3_none=NO_CONVOLUTION)
    for folder, told in ((tmp_path, "transposed convolution"), (tmp_path / "x", "no such folder")):
        assert cli.main(["--family", str(folder), "--device", "cpu"]) == UsageError.exit_status
        error = capsys.readouterr().err
        assert f"--family {folder}" in error and told in error


@pytest.mark.sweep
def test_refused_and_broken_ones_stop_no_other_and_a_second_run_keeps_records(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr(family, "ROOT", tmp_path)
    folder = write(tmp_path / "problems", l1_1_decides=DATA_DECIDES, l1_2_exits=EXITS)
    write(folder, l2_3_plain=WITHOUT_KERNEL)
    out = tmp_path / "out.json"
    arguments = ["--family", str(folder), "--device", "cpu", "--check-only"]
    arguments += ["--keep", str(tmp_path / "kept"), "--json", str(out)]
    assert cli.main(arguments) == UsageError.exit_status  # some have no solution
    said = capsys.readouterr()
    assert "3_plain: accepted" in said.err and "fast_p" in said.out
    whole = json.loads(out.read_text())
    assert [record["problem"] for record in whole["records"]] == ["2/3"]
    assert whole["scores"]["accepted"] == 1 and whole["scores"]["all"] == 3
    reasons = {entry["candidate"]: entry["reason"] for entry in whole["not_evaluated"]}
    assert set(reasons) == {"1_decides", "2_exits"}
    assert "ended with status 7" in reasons["2_exits"] and "1_decides.py" in reasons["1_decides"]
    assert [path.name for path in (tmp_path / "kept").iterdir()] == ["3_plain.py"]

    record = tmp_path / "results" / "cpu" / "family" / "2_3.json"
    os.utime(record, (1, 1))
    arguments[1] = str(write(tmp_path / "alone", l2_3_plain=WITHOUT_KERNEL))
    assert cli.main(arguments) == 0
    assert "3_plain: kept from an earlier run" in capsys.readouterr().err
    assert record.stat().st_mtime == 1
    assert cli.main([*arguments, "--again"]) == 0
    assert "3_plain: accepted" in capsys.readouterr().err
    assert record.stat().st_mtime > 1


def test_a_reference_that_hangs_is_given_up(tmp_path):
    write(tmp_path, l1_1_hangs=HANGS)
    reference, output = tmp_path / "level1" / "1_hangs.py", tmp_path / "solution.py"
    assert "within 0.5 s" in generating.generate_file(reference, output, seconds=0.5)
    assert not output.exists()


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--family", ".", "--suite", "."], "exclude each other"),
        (["--family", ".", "--solution", "x.py"], "--solution does not go with --family"),
        (["--family", ".", "--build-dir", "x"], "--build-dir does not go"),
        (["--problem", "65", "--again"], "--again goes with --family"),
        (["--family", ".", "--record"], "--record goes with --problem and --all"),
        (["--family", ".", "--resume"], "go with --suite"),
    ],
)
def test_options_that_do_not_go_together(options, told, capsys):
    assert cli.main([*options, "--device", "cpu"]) == UsageError.exit_status
    assert told in capsys.readouterr().err


@pytest.mark.sweep
def test_a_solution_is_generated_for_one_reference_as_before(tmp_path, capsys):
    kept = tmp_path / "solution.py"
    reference = str(FIXTURES / "tiny.py")
    (tmp_path / "decides.py").write_text(DATA_DECIDES)
    refused = ["--reference", str(tmp_path / "decides.py"), "--device", "cpu"]
    assert cli.main([*refused, "--keep", str(kept)]) == UsageError.exit_status
    assert "no solution could be generated" in capsys.readouterr().err and not kept.exists()
    assert generating.generate_file(Path(reference), kept) is None
    assert "class ModelNew" in kept.read_text()
