"""The generator: committed files are what it writes, what it refuses, and that a refusal writes
nothing.
"""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

from generator.__main__ import main
from generator.emit import generate
from generator.errors import Refusal
from generator.explain import report
from generator.program import read_program
from generator.sources import KERNELS, resolve
from harness.errors import UsageError
from tests.solution_tools import PROBLEMS, ROOT, generated
from tests.sweeps import swept

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


@pytest.mark.sweep
def test_committed_solutions_are_what_would_be_generated():
    assert main(["--check"]) == 0


def test_every_problem_has_a_solution_of_the_same_name():
    for problem in PROBLEMS:
        assert (ROOT / "solutions" / problem.relative_to(ROOT / "harness" / "problems")).is_file()


@pytest.mark.sweep
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
    assert output.read_text() == generated(problem).replace(f"-o {relative}", f"-o {output.name}")
    assert str(tmp_path) not in output.read_text()
    assert [path.name for path in tmp_path.iterdir()] == ["solution.py"]


# What does not run in the kernel with the convolution, by what --explain says of it.
LEFT = {
    "softmax": (
        "return F.softmax(self.conv(x), 1)",
        ["softmax: left, but on Hopper a kernel of ours runs softmax where the tensor is large"],
    ),
    "log softmax": ("return F.log_softmax(self.conv(x), 1)", ["softmax: left, no kernel computes"]),
    "method": ("return self.conv(x).sinh()", ["sinh: left, no kernel computes it"]),
    "dropout": ("return F.dropout(self.conv(x), 0.5)", ["dropout: left, no kernel computes it"]),
    "read and returned": ("y = self.conv(x)\nreturn y, F.relu(y)", ["relu: left, .* read 2 times"]),
    "input twice": (
        "return self.conv(x)[:, :4, :5, :5] + x",
        ["slice: left", "add: left, no transposed convolution comes right before it"],
    ),
    "read by another": (
        "y = self.conv(x)\nreturn y * F.log_softmax(y, 1)",
        ["mul: left, .* read 2 times", "log_softmax: left, .* read 2 times"],
    ),
    "step first": ("return self.conv(F.relu(x))", ["relu: left, no transposed convolution"]),
    "after the norm": (
        "return F.relu(self.group(self.conv(x)))",
        ["group GroupNorm: in the kernel", "relu: left"],
    ),
    "two norms": (
        "return self.group(self.group(self.conv(x)))",
        ["group GroupNorm: in the kernel", "group GroupNorm: left"],
    ),
    "norm over slices": (
        "y = F.conv_transpose3d(x.unsqueeze(2), self.deep)\nreturn F.group_norm(y, 2)",
        ["conv_transpose3d: in the kernel", "group_norm: left, a group's moments are over all"],
    ),
    "batch norm last": ("return self.norm(self.conv(x))", ["norm BatchNorm2d: left"]),
    "step before batch norm": (
        "y = torch.tanh(self.norm(F.relu(self.conv(x))))\nreturn self.group(F.max_pool2d(y, 2))",
        ["relu: in the kernel", "norm BatchNorm2d: left", "tanh: left", "group GroupNorm: left"],
    ),
    "pool alone": ("return F.max_pool2d(self.conv(x), 2)", ["max_pool2d: left"]),
    "falling activation": (
        "y = F.gelu(self.norm(self.conv(x)))\nreturn self.group(F.max_pool2d(y, 2))",
        ["norm BatchNorm2d: left", "gelu: left", "max_pool2d: left", "group GroupNorm: left"],
    ),
    "pool before activation": (
        "y = torch.tanh(F.max_pool2d(self.norm(self.conv(x)), 2))\nreturn self.group(y)",
        ["norm BatchNorm2d: left", "tanh: left"],
    ),
    "indices": (
        "y = torch.tanh(self.norm(self.conv(x)))\nreturn self.group(F.max_pool2d(y, 2, "
        "return_indices=True)[0])",
        ["norm BatchNorm2d: left", "max_pool2d_with_indices: left"],
    ),
    "operand shape": (
        "return self.conv(x) + self.row[:9]",
        ["add: left, its operand is no parameter"],
    ),
    "wide operand": (
        "return self.conv(x) + self.row",
        [r"add: left, its operand of shape \(9,\) is neither one value nor one for each channel"],
    ),
    "alpha": ("return torch.add(self.conv(x), 1.0, alpha=2)", [r"add: left, .*\(alpha\)"]),
    "clamp by tensor": (
        "return torch.clamp(self.conv(x), min=self.weight)",
        ["clamp: left, no kernel computes it"],
    ),
    "nan": ("return self.conv(x) * float('nan')", ["mul: left, it needs a number"]),
    "many operands": (
        "y = self.conv(x)\n" + "y = y + self.weight\n" * 5 + "return y",
        ["add: in the kernel", "add: left, at most 4 operands fit"],
    ),
    "two results": ("y = self.conv(x)\nreturn y, 1", ["conv ConvTranspose2d: in the kernel"]),
    "computed operand": (
        "return self.conv(x) + self.weight.exp()",
        ["exp: left", "add: left, its operand is no parameter or buffer"],
    ),
    "training": (
        "y = self.conv(x)\nreturn F.relu(y) if self.training else y",
        ["relu: in kernel 0", r"\(in eval mode\)"],
    ),
    "two convolutions": (
        "return self.again(F.tanh(self.conv(x)))",
        ["tanh: in kernel 0", "again ConvTranspose2d: in kernel 1"],
    ),
    "output_size": ("return self.conv(x, output_size=(10, 10))", ["conv_transpose2d: in the ker"]),
    "divided number": ("return 1.0 / (self.conv(x).abs() + 1)", ["add: in the kernel"]),
    "layer": ("return self.soft(self.conv(x))", ["soft Softshrink: left, no kernel computes it"]),
    "weight norm": ("return self.normed(x)", ["normed ConvTranspose2d: in the kernel"]),
}
_INIT = """self.again = nn.ConvTranspose2d(8, 3, 2)
        self.soft = nn.Softshrink()
        self.row = nn.Parameter(torch.randn(9))
        self.deep = nn.Parameter(torch.randn(4, 8, 1, 3, 3))
        self.normed = torch.nn.utils.parametrizations.weight_norm(nn.ConvTranspose2d(4, 8, 3))"""


@pytest.mark.parametrize("name", swept(LEFT, range(0, len(LEFT), 4)))
def test_what_no_kernel_takes_stays_pytorchs_and_is_explained(name, tmp_path):
    """The solution is proved: outputs and gradients are the reference's, in both modes."""
    body, words = LEFT[name]
    path = write_reference(tmp_path, body, _INIT)
    text = generate(path, tmp_path / "solution.py")
    told = report(read_program(path))
    for word in words:
        assert re.search(word, told), told
    lines = [line.strip() for line in told.splitlines() if " left, " in line]
    docstring = " ".join(ast.get_docstring(ast.parse(text)).split())
    assert all(line.replace('"', "'") in docstring for line in lines)


@pytest.mark.parametrize(
    ("dimensions", "image", "word"),
    [
        (1, "x.flatten(2)", "GroupNorm: in the"),
        (3, "x[:, :, None]", "GroupNorm: left, a group's moments"),
    ],
)
def test_group_norm_is_fused_in_one_dimension_and_left_in_three(dimensions, image, word, tmp_path):
    init = f"self.other = nn.ConvTranspose{dimensions}d(4, 8, 3, stride=2)"
    path = write_reference(tmp_path, f"return self.group(F.relu(self.other({image})))", init)
    assert "_operator" in generate(path, tmp_path / "solution.py")  # proved, with gradients
    assert word in report(read_program(path))


REFUSED = {
    "value branch": (
        "y = self.conv(x)\nreturn y if y.sum() > 0 else -y",
        "condition on the values of a tensor",
    ),
    "no convolution": ("return F.relu(x)", "no transposed convolution"),
    "unknown gelu": ("return F.gelu(self.conv(x), approximate='fast')", "raised RuntimeError"),
    "side effect": ("self.step += 1\nreturn self.conv(x)", "changes `step`"),
    "list": ("self.log.append(x.size(0))\nreturn self.conv(x)", "changes `log`"),
    "exit": ("raise SystemExit(0)", "raised SystemExit: 0"),
    "inference": ("with torch.inference_mode():\n    return self.conv(x)", "inference_mode"),
    "foreign autocast": (
        "with torch.autocast('cuda', torch.bfloat16):\n    return self.conv(x)",
        "cannot be traced on a machine without that device",
    ),
    "data": ("return self.conv(x).data", "PyTorch cannot follow"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refusals_name_the_line_and_write_nothing(name, tmp_path, capsys):
    body, message = REFUSED[name]
    path = write_reference(tmp_path, body, "self.log = []")
    output = tmp_path / "out" / "solution.py"
    assert main([str(path), "-o", str(output)]) == 2
    error = capsys.readouterr().err
    assert re.search(message, error), error
    if name != "data":  # raised behind forward
        line = re.search(r"reference\.py:(\d+)", error)
        assert line, error
        text = path.read_text().splitlines()
        start = text.index("    def forward(self, x):")
        assert start <= int(line[1]) - 1 < start + 8, error
    assert len(error.splitlines()) == 1
    assert not output.parent.exists()


OTHER_REFUSALS = {
    "padding mode": (
        {
            "body": "return self.conv(x)",
            "init": "self.conv = nn.ConvTranspose2d(4, 8, 3, padding_mode='reflect')",
        },
        r"reference\.py:16: .*padding",
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
        r"conv \(ConvTranspose2d\): it has backward hooks",
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


def test_explain_prints_every_operator_and_writes_nothing(tmp_path, capsys):
    path = write_reference(tmp_path, "return torch.softmax(self.conv(x) * 2, 1)")
    assert main([str(path), "--explain"]) == 0
    told = capsys.readouterr().out.splitlines()
    assert "1 fused calls, one kernel" in told[0] and len(told) == 4
    assert [line.split(":")[2].split(",")[0].strip() for line in told[1:]] == [
        *["in the kernel of ConvTranspose2d -> mul"] * 2,
        "left",
    ]
    assert [item.name for item in tmp_path.iterdir()] == ["reference.py"]
    assert main([str(path.with_name("missing.py")), "--explain"]) == 2


def test_no_convolution_is_left_out_and_explain_says_so(tmp_path):
    path = write_reference(tmp_path, "return (self.conv(x) * 0.5).mean((2, 3), keepdim=True)")
    assert "could be had from sums of the input" in report(read_program(path))
    text = generate(path, tmp_path / "solution.py")
    assert "_operator(" in text and "aten.mean.dim" in text


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


def test_usage_errors_exit_with_2(capsys):
    for arguments in (
        [],
        ["--all", "x.py"],
        ["x.py"],
        ["-o", "y.py"],
        ["missing.py", "-o", "y.py"],
    ):
        try:
            status = main(arguments)
        except SystemExit as ended:
            status = ended.code
        assert status == 2 and capsys.readouterr().err


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
    texts = {path.stem[:2]: generated(path) for path in PROBLEMS}
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
