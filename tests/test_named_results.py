"""Results that are named tuples: the solution's class has their name and fields, in their order."""

import collections

import pytest
import torch

from generator import prove
from generator.emit import solution_text
from generator.errors import Refusal
from generator.program import ambient_kept, read_program

MODEL = """
{module}
import torch
from torch import nn

{classes}

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = nn.ConvTranspose2d(4, 6, 3, stride=2)

    def forward(self, x):
        y = torch.relu(self.up(x))
        return {result}

def get_inputs():
    return [torch.randn(2, 4, 5, 6)]

def get_init_inputs():
    return []
"""
TYPED = "class Out(NamedTuple):\n    image: torch.Tensor\n    mean: torch.Tensor"
MADE = 'Out = collections.namedtuple("Out", "image mean")'


@pytest.mark.parametrize(
    ("module", "classes", "result"),
    [
        ("from typing import NamedTuple", TYPED, "Out(y, y.mean((2, 3)))"),
        ("import collections", MADE, "Out(mean=y.mean((2, 3)), image=y)"),
        ("import collections", MADE, '{"a": [Out(y, (y.mean((2, 3)), 3))], "b": y * 2}'),
    ],
)
def test_of_a_reference(module, classes, result, tmp_path):
    path = tmp_path / "named.py"
    path.write_text(MODEL.format(module=module, classes=classes, result=result))
    with ambient_kept():
        program = read_program(path)
        text = solution_text(program, path)
        prove.prove(program, text)
        model = prove.with_formulas(program, text)["ModelNew"]()
        found = model(torch.randn(2, 4, 5, 6))
        out = found["a"][0] if isinstance(found, dict) else found
        assert type(out).__name__ == "Out" and out._fields == ("image", "mean")
        assert out.image.shape == (2, 6, 11, 13)
        wrong = text.replace('"image mean"', '"mean image"').replace(
            "image: torch.Tensor\n    mean", "mean: torch.Tensor\n    image"
        )
        assert wrong != text
        with pytest.raises(Refusal, match="another structure"):
            prove.prove(program, wrong)


def test_other_structures_differ():
    one, other = (collections.namedtuple("Out", fields) for fields in ("a b", "a c"))
    values = [(1.0, 2.0), [1.0, 2.0], one(1.0, 2.0), other(1.0, 2.0), {"a": 1.0, "b": 2.0}]
    values += [{"b": 1.0, "a": 2.0}, (1.0, 2), (1.0, (2.0,)), torch.ones(2), None]
    found = [prove._structure(value) for value in values]
    assert all(a != b for i, a in enumerate(found) for b in found[:i])
