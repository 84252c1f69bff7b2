"""Parameters that forward shapes anew before a chain reads them, as users write per-channel ones:
the kernels read them from where they lie.
"""

from pathlib import Path

import pytest

from generator.explain import explained
from generator.ir import Node
from tests.solution_tools import generated, program_of

MODEL = """\
import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self, channels=4):
        super().__init__()
        self.up = nn.ConvTranspose{dimensions}d(3, channels, 3)
        self.shift = nn.Parameter(torch.randn(channels))
        self.scale = nn.Parameter(torch.randn(1))
        self.register_buffer("mask", torch.rand(channels, 1))

    def forward(self, x):
        return {returned}


def get_inputs():
    return [torch.rand(2, 3, {sizes})]


def get_init_inputs():
    return []
"""


def model(folder: Path, returned: str, dimensions: int = 2) -> Path:
    path, sizes = folder / "views.py", ", ".join(["5"] * dimensions)
    path.write_text(MODEL.format(returned=returned, dimensions=dimensions, sizes=sizes))
    return path


@pytest.mark.parametrize(
    ("view", "dimensions"),
    [
        ("self.shift.view(1, -1, 1, 1)", 2),
        ("self.shift.view(-1, 1, 1)", 2),
        ("self.shift.reshape(1, -1, 1, 1)", 2),
        ("self.shift[:, None, None]", 2),
        ("self.shift.unsqueeze(1).unsqueeze(2).view(1, -1, 1, 1)", 2),
        ("self.mask.unsqueeze(-1)", 2),
        ("self.scale.view(1, 1, 1, 1)", 2),
        ("self.shift.view(1, -1, 1)", 1),
        ("self.shift.view(1, -1, 1, 1, 1)", 3),
    ],
)
def test_read_where_they_lie(tmp_path, view, dimensions):
    """Generating proves the result and its gradients."""
    path = model(tmp_path, f"torch.relu(self.up(x) + {view})", dimensions)
    text, program = generated(path), program_of(path)
    (fused,) = program.training.fused
    assert len(fused.steps) == 2 and len(fused.vectors) == 1
    assert program.training.items == [fused]
    body = text[text.index("class ModelNew") :]
    assert "aten.view" not in body and ".reshape(-1)" in body
    said = [line.text for line in explained(program)]
    assert sum("read the parameter where it lies" in line for line in said) >= 1


def test_a_view_that_others_read_stays(tmp_path):
    path = model(tmp_path, "self.up(x) + (v := self.shift.view(1, -1, 1, 1)), v")
    program = program_of(path)
    left = [item for item in program.training.items if isinstance(item, Node)]
    assert [node.op for node in left] == ["aten.view.default"]
    assert len(program.training.fused[0].steps) == 1
    assert "aten.view.default(self.shift, [1, -1, 1, 1])" in generated(path)


@pytest.mark.parametrize(
    "operand",
    [
        "self.shift.view(1, 1, 1, -1).expand(1, 1, 1, 4).mean(-1, keepdim=True)",
        "self.shift.view(2, 2).t().reshape(1, -1, 1, 1)",
        "(2 * self.shift).view(1, -1, 1, 1)",
    ],
)
def test_what_is_computed_of_them_is_no_view(tmp_path, operand):
    program = program_of(model(tmp_path, f"self.up(x) + {operand}"))
    assert program.training.fused[0].steps == []


def test_a_view_without_a_gradient_stays(tmp_path):
    """The parameter itself would get one, as the proof finds."""
    path = model(tmp_path, "self.up(x) + v")
    text = path.read_text()
    shaped = "with torch.no_grad():\n            v = self.shift.view(1, -1, 1, 1)\n        return"
    path.write_text(text.replace("return self.up", f"{shaped} self.up"))
    assert program_of(path).training.fused[0].steps == []
    assert "aten.view.default(self.shift" in generated(path)


def test_a_buffer_that_is_written_in_between_stays(tmp_path):
    path = model(tmp_path, "y + v")
    text = path.read_text()
    steps = "v = self.mask.unsqueeze(-1)\n        y = self.up(x)\n        self.mask.add_(1)"
    path.write_text(text.replace("return y", f"{steps}\n        return y"))
    assert program_of(path).training.fused[0].steps == []
    assert "aten.add_" in generated(path)
