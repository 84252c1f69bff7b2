"""The generator: committed files are what it writes, what it refuses, and that a refusal writes
nothing.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from generator.__main__ import main
from generator.emit import generate
from generator.errors import Refusal
from generator.runtime.gradient_kernels import _with_shared_lines
from generator.sources import KERNELS, gradient_cuda_source, resolve
from harness.errors import UsageError
from tests.solution_tools import PROBLEMS, ROOT

TEMPLATE = """
import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.ConvTranspose2d(4, 8, 3, stride=2, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.group = nn.GroupNorm(2, 8)
        self.weight = nn.Parameter(torch.randn(8, 1, 1))
        self.wide = nn.Parameter(torch.randn(8))
        self.step = 0
        {init}

    def forward(self, x{extra}):
        {body}


def get_inputs():
    return [torch.rand(2, 4, 5, 5)]


def get_init_inputs():
    return []
"""


def write_reference(
    folder: Path, body: str, init: str = "self.other = None", extra: str = ""
) -> Path:
    path = folder / "reference.py"
    indented = "\n        ".join(body.strip().splitlines())
    path.write_text(TEMPLATE.format(body=indented, init=init, extra=extra))
    return path


def test_committed_solutions_are_what_would_be_generated():
    assert main(["--check"]) == 0


def test_every_problem_has_a_solution_of_the_same_name():
    for problem in PROBLEMS:
        assert (ROOT / "solutions" / problem.relative_to(ROOT / "harness" / "problems")).is_file()


def test_generation_does_not_depend_on_the_working_directory_or_the_spelling_of_paths(tmp_path):
    problem = PROBLEMS[0]
    relative = problem.relative_to(ROOT)
    output = tmp_path / "solution.py"
    run = subprocess.run(
        [sys.executable, "-m", "generator", str(relative), "-o", str(output)],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stderr
    assert output.read_text() == generate(problem, tmp_path / "elsewhere" / "solution.py")
    assert str(tmp_path) not in output.read_text()
    assert [path.name for path in tmp_path.iterdir()] == ["solution.py"]


REFUSED = {
    "softmax": ("return torch.softmax(self.conv(x), 1)", "softmax is not an operation"),
    "method": ("return self.conv(x).sinh()", "Tensor.sinh is not an operation"),
    "dropout": ("return F.dropout(self.conv(x), 0.5)", "dropout is not an operation"),
    "training": ("y = self.conv(x)\nreturn F.relu(y) if self.training else y", "in eval mode"),
    "value branch": ("y = self.conv(x)\nreturn y if y.sum() > 0 else -y", "raised TraceError"),
    "residual": ("y = self.conv(x)\nreturn y + F.relu(y)", "a branch?"),
    "input twice": ("return self.conv(x) + x", "a branch?"),
    "square": ("y = self.conv(x)\nreturn y * y", "a branch?"),
    "unused": ("y = self.conv(x)\ny.relu_()\nreturn y", "a branch?"),
    "no convolution": ("return F.relu(x)", "not the ConvTranspose2d that a chain begins with"),
    "two convolutions": ("return self.conv(self.conv(x))", "ConvTranspose2d cannot follow here"),
    "step first": ("return self.conv(F.relu(x))", "relu is not the ConvTranspose2d"),
    "after the norm": ("return F.relu(self.group(self.conv(x)))", "relu comes after GroupNorm"),
    "two norms": ("return self.group(self.group(self.conv(x)))", "comes after GroupNorm"),
    "batch norm last": ("return self.norm(self.conv(x))", "BatchNorm2d cannot be the last"),
    "step before batch norm": (
        "y = torch.tanh(self.norm(F.relu(self.conv(x))))\nreturn self.group(F.max_pool2d(y, 2))",
        "relu stands between",
    ),
    "pool alone": ("return F.max_pool2d(self.conv(x), 2)", "max_pool2d cannot follow here"),
    "falling activation": (
        "y = F.gelu(self.norm(self.conv(x)))\nreturn self.group(F.max_pool2d(y, 2))",
        "gelu cannot follow here",
    ),
    "another falling activation": (
        "y = F.silu(self.norm(self.conv(x)))\nreturn self.group(F.max_pool2d(y, 2))",
        "silu cannot follow here",
    ),
    "pool before activation": (
        "y = torch.tanh(F.max_pool2d(self.norm(self.conv(x)), 2))\nreturn self.group(y)",
        "cannot follow here",
    ),
    "indices": (
        "y = torch.tanh(self.norm(self.conv(x)))\nreturn self.group(F.max_pool2d(y, 2, "
        "return_indices=True)[0])",
        "max_pool2d_with_indices is not an operation",
    ),
    "output_size": ("return self.conv(x, output_size=(10, 10))", "no output_size"),
    "operand shape": ("return self.conv(x) + self.wide", r"of shape \(8,\); allowed are"),
    "alpha": ("return torch.add(self.conv(x), 1.0, alpha=2)", "with alpha"),
    "clamp by tensor": ("return torch.clamp(self.conv(x), min=self.weight)", "needs a number"),
    "nan": ("return self.conv(x) * float('nan')", "needs a number"),
    "many operands": ("y = self.conv(x)\n" + "y = y + self.weight\n" * 5 + "return y", "at most 4"),
    "unknown gelu": ("return F.gelu(self.conv(x), approximate='fast')", "'none' and 'tanh'"),
    "side effect": ("self.step += 1\nreturn self.conv(x)", "assigns to `self.step`"),
    "two results": ("y = self.conv(x)\nreturn y, 1", "must be one tensor"),
    "computed operand": ("return self.conv(x) + self.weight.exp()", "a branch?"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refusals_name_the_operation_and_the_line_and_write_nothing(name, tmp_path, capsys):
    body, message = REFUSED[name]
    path = write_reference(tmp_path, body)
    output = tmp_path / "out" / "solution.py"
    assert main([str(path), "-o", str(output)]) == 2
    error = capsys.readouterr().err
    assert re.search(message, error), error
    line = re.search(r"reference\.py:(\d+)", error)
    assert line, error
    text = path.read_text().splitlines()
    start = text.index("    def forward(self, x):")
    assert start < int(line[1]) - 1 < start + 8, error
    assert error.count("\n") <= 5
    assert not output.parent.exists()


OTHER_REFUSALS = {
    "module": (
        {"body": "return self.soft(self.conv(x))", "init": "self.soft = nn.Softshrink()"},
        r"reference\.py:19: Softshrink is not an operation",
    ),
    "two inputs": ({"body": "return self.conv(x)", "extra": ", y"}, "exactly one tensor"),
    "keyword": ({"body": "return self.conv(x)", "extra": ", size=None"}, "exactly one tensor"),
    "padding mode": (
        {
            "body": "return self.conv(x)",
            "init": "self.conv = nn.ConvTranspose2d(4, 8, 3, padding_mode='reflect')",
        },
        r"reference\.py:16: .*padding",
    ),
    "weight norm": (
        {
            "body": "return self.conv(x)",
            "init": "self.conv = torch.nn.utils.parametrizations.weight_norm(self.conv)",
        },
        "ParametrizedConvTranspose2d",
    ),
    "hook": (
        {"body": "return self.conv(x)", "init": "self.conv.register_forward_hook(lambda *a: None)"},
        "forward hooks",
    ),
    "backward hook": (
        {
            "body": "return self.conv(x)",
            "init": "self.conv.register_full_backward_hook(lambda *a: None)",
        },
        r"conv \(ConvTranspose2d\) has backward hooks",
    ),
    "hook of a container": (
        {
            "body": "return self.up(x)",
            "init": "self.up = nn.Sequential(self.conv)\n"
            "        self.up.register_forward_hook(lambda *a: None)",
        },
        r"up \(Sequential\) has forward hooks",
    ),
}


@pytest.mark.parametrize("name", OTHER_REFUSALS)
def test_other_refusals(name, tmp_path):
    parts, message = OTHER_REFUSALS[name]
    with pytest.raises(Refusal, match=message):
        generate(write_reference(tmp_path, **parts), tmp_path / "solution.py")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("import torch\n", "must define Model"),
        ("x = (\n", "SyntaxError"),
        ("import torch\nraise OSError('no disk')\n", r"reference.py:2: .*OSError: no disk"),
    ],
)
def test_files_that_are_no_reference(tmp_path, text, message):
    path = tmp_path / "reference.py"
    path.write_text(text)
    with pytest.raises(Refusal, match=message):
        generate(path, tmp_path / "solution.py")


def test_a_name_of_ours_in_the_reference_is_refused(tmp_path):
    path = write_reference(tmp_path, "return self.conv(x)", init="self.a = 1")
    path.write_text(path.read_text() + "\n\n_tf32_allowed = 3\n")
    with pytest.raises(Refusal, match="the name _tf32_allowed is one that solutions use"):
        generate(path, tmp_path / "solution.py")


def test_usage_errors_exit_with_2():
    for arguments in (
        [],
        ["--all", "x.py"],
        ["x.py"],
        ["-o", "y.py"],
        ["missing.py", "-o", "y.py"],
    ):
        run = subprocess.run(
            [sys.executable, "-m", "generator", *arguments],
            cwd=ROOT,
            capture_output=True,
            text=True,
        )
        assert run.returncode == 2 and run.stderr


def test_check_notices_a_changed_file(tmp_path, capsys):
    reference = write_reference(tmp_path, "return self.conv(x)")
    output = tmp_path / "solution.py"
    assert main([str(reference), "-o", str(output)]) == 0
    assert main([str(reference), "-o", str(output), "--check"]) == 0
    output.write_text(output.read_text().replace("groups", "Groups", 1))
    assert main([str(reference), "-o", str(output), "--check"]) == 1
    assert "differs" in capsys.readouterr().err


def test_a_file_is_replaced_whole(tmp_path, monkeypatch):
    from generator import emit
    from harness import files

    target = tmp_path / "solution.py"
    target.write_text("old")

    def fail(*arguments):
        raise OSError("disk full")

    monkeypatch.setattr(files.os, "replace", fail)
    with pytest.raises(UsageError, match="disk full"):
        emit.write("new", target)
    assert target.read_text() == "old" and list(tmp_path.iterdir()) == [target]


def test_each_header_once_and_none_left(tmp_path):
    for entry in sorted(KERNELS.glob("*/entry_*.c*")):
        text = resolve(entry, {})
        assert '#include "' not in text and "#pragma once" not in text
        sections = re.findall(r"^// ---- (\S+)$", text, re.MULTILINE)
        assert len(sections) == len(set(sections)) > 3


def test_a_solution_holds_only_what_its_pattern_needs():
    texts = {path.stem[:2]: generate(path, path) for path in PROBLEMS}
    for number in ("65", "69"):
        for word in ("group_norm", "GroupNorm", "BatchNorm", "_Gelu", "pool"):
            assert not re.search(rf"^(class|def) \w*{word}", texts[number], re.MULTILINE)
    assert "_BatchNormPoolArgs" not in texts["19"] and "class _Tanh" not in texts["19"]
    assert "class _Gelu" not in texts["11"] and "class _Tanh" in texts["11"]


@pytest.mark.parametrize(
    "body",
    [
        "return F.conv_transpose2d(x, self.conv.weight, self.conv.bias, stride=2, padding=(1, 0))",
        "return torch.relu_(self.conv(x)).mul_(2).add_(self.weight)",
        "return F.group_norm(F.hardtanh(self.conv(x), -1, 1), 4, self.group.weight, "
        "self.group.bias)",
        "return F.relu6(self.conv(x))",
        "return self.group(F.max_pool2d(torch.sigmoid(self.norm(self.conv(x))), (2, 1)))",
        "y = self.conv(x)\ny -= 1\ny /= 3\nreturn 2 - y",
    ],
)
def test_other_spellings_are_understood(body, tmp_path):
    assert "class ModelNew" in generate(write_reference(tmp_path, body), tmp_path / "solution.py")


def _alias(kind: str, reference: Path) -> Path:
    """Another name of the reference."""
    folder = reference.parent
    if kind == "other spelling":
        (folder / "sub").mkdir()
        return folder / "sub" / ".." / reference.name
    if kind in ("symbolic link", "hard link"):
        link = folder / "link.py"
        link.symlink_to(reference) if kind == "symbolic link" else os.link(reference, link)
        return link
    if kind == "linked folder":
        (folder / "other").symlink_to(folder)
        return folder / "other" / reference.name
    return reference


@pytest.mark.parametrize(
    "kind", ["same path", "other spelling", "symbolic link", "hard link", "linked folder"]
)
def test_the_reference_is_not_overwritten_under_any_name(kind, tmp_path, capsys):
    reference = write_reference(tmp_path, "return self.conv(x)")
    before = reference.read_bytes()
    output = _alias(kind, reference)
    assert main([str(reference), "-o", str(output)]) == 2
    captured = capsys.readouterr()
    assert "would overwrite the input" in captured.err and len(captured.err.splitlines()) == 1
    assert reference.read_bytes() == before and captured.out == ""


def test_the_place_for_a_solution_must_be_one(tmp_path, capsys):
    reference = write_reference(tmp_path, "return self.conv(x)")
    (tmp_path / "file").write_text("kept")
    (tmp_path / "loop").symlink_to("loop")
    for output in (tmp_path, tmp_path / "file" / "s.py", tmp_path / "loop", "/proc/none/s.py"):
        left = sorted(tmp_path.rglob("*"))
        assert main([str(reference), "-o", str(output)]) == 2
        assert len(capsys.readouterr().err.splitlines()) == 1
        assert sorted(tmp_path.rglob("*")) == left
    assert (tmp_path / "file").read_text() == "kept"


def test_a_solution_is_written_through_a_link(tmp_path):
    reference = write_reference(tmp_path, "return self.conv(x)")
    link = tmp_path / "link.py"
    link.symlink_to(tmp_path / "folder" / "solution.py")
    assert main([str(reference), "-o", str(link)]) == 0
    assert link.is_symlink() and "class ModelNew" in link.read_text()


@pytest.mark.parametrize("content", [b"\xff\xfe\x00", b"raise SystemExit(0)\n"])
def test_what_is_no_python_and_what_exits_is_refused(content, tmp_path, capsys):
    path = tmp_path / "reference.py"
    path.write_bytes(content)
    assert main([str(path), "-o", str(tmp_path / "solution.py")]) == 2
    assert "refused" in capsys.readouterr().err and not (tmp_path / "solution.py").exists()


def test_an_internal_error_is_status_4_and_one_line(tmp_path, capsys, monkeypatch):
    import generator.__main__ as program

    def fail(*arguments):
        raise KeyError("lost")

    monkeypatch.setattr(program, "generate", fail)
    reference = write_reference(tmp_path, "return self.conv(x)")
    assert main([str(reference), "-o", str(tmp_path / "solution.py")]) == 4
    told = capsys.readouterr().err
    assert "internal error: KeyError: 'lost'" in told and len(told.splitlines()) == 1


@pytest.mark.parametrize("path", PROBLEMS, ids=lambda path: path.stem)
def test_the_gradients_source_is_whole_again(path):
    """A solution holds lines that two of its sources share once, and has the library's text."""
    solution = {
        name: re.search(rf'^{name} = r"""(.*?)"""', generate(path, path), re.DOTALL | re.MULTILINE)[
            1
        ]
        for name in ("CUDA_SOURCE", "GRADIENT_CUDA_SOURCE")
    }
    whole = _with_shared_lines(solution["GRADIENT_CUDA_SOURCE"], solution["CUDA_SOURCE"])
    assert whole == f"\n{gradient_cuda_source()}"
    assert len(solution["GRADIENT_CUDA_SOURCE"]) < len(whole) / 2
