"""Which solutions have the interleaved kernel, pairs of rows, joined columns or turns: those whose
reference has a layer for them, or none but such.
"""

import re

import pytest

from generator.kernels import sources
from generator.program import Program, ambient_kept, read_program
from tests.solution_tools import PROBLEMS, REFERENCES, program_of

MODEL = """
import torch
from torch import nn

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = {layer}

    def forward(self, x):
        return torch.relu(self.up(x))

def get_inputs():
    return [torch.randn({size})]

def get_init_inputs():
    return []
"""
KERNEL = "conv_transpose_interleaved_kernel"
PAIRS = "pair_rows_of_weights_kernel"
JOINED = "finish_joined_segment"
SHORT = "conv_transpose_hopper_short_pass.cuh"
TURNS = "conv_transpose_hopper_turns_kernel"


def program_of_text(text: str, folder) -> Program:
    path = folder / "own.py"
    path.write_text(text)
    with ambient_kept():
        return read_program(path)


def has_kernel(program, kernel: str = KERNEL) -> bool:
    return kernel in sources(program).sources["CUDA_SOURCE"]


@pytest.mark.parametrize(
    ("layer", "size", "wanted"),
    [
        ("nn.ConvTranspose2d(4, 6, 3, stride=(1, 3))", "1, 4, 5, 5", True),
        ("nn.ConvTranspose2d(4, 6, 3, stride=(3, 1))", "1, 4, 5, 5", False),
        ("nn.ConvTranspose1d(4, 6, 5, stride=4)", "1, 4, 9", True),
        ("nn.ConvTranspose3d(4, 6, 3, stride=2)", "1, 4, 3, 3, 3", False),
        ("nn.ConvTranspose3d(4, 6, 3, groups=2)", "1, 4, 3, 3, 3", True),
        (
            "nn.utils.parametrizations.weight_norm(nn.ConvTranspose2d(4, 6, 3, stride=3))",
            "1, 4, 5, 5",
            True,
        ),
    ],
)
def test_by_the_layer(layer, size, wanted, tmp_path):
    assert has_kernel(program_of_text(MODEL.format(layer=layer, size=size), tmp_path)) is wanted


@pytest.mark.parametrize("path", [*PROBLEMS, REFERENCES / "weight_normed.py"], ids=lambda p: p.stem)
def test_others_are_without_it(path):
    assert not has_kernel(program_of(path))


@pytest.mark.parametrize(
    ("layer", "size", "wanted"),
    [
        ("nn.ConvTranspose2d(8, 32, 3)", "1, 8, 5, 5", True),
        ("nn.ConvTranspose2d(8, 33, 3)", "1, 8, 5, 5", False),
        ("nn.ConvTranspose2d(8, 6, (1, 3))", "1, 8, 5, 5", False),
        ("nn.ConvTranspose2d(8, 6, 3, stride=(2, 1))", "1, 8, 5, 5", False),
        ("nn.ConvTranspose2d(8, 6, 3, stride=(1, 2))", "1, 8, 5, 5", False),
        ("nn.ConvTranspose3d(8, 6, 3, stride=(2, 1, 1))", "1, 8, 3, 3, 3", True),
        ("nn.ConvTranspose1d(8, 6, 3)", "1, 8, 9", False),
    ],
)
def test_pairs_by_the_layer(layer, size, wanted, tmp_path):
    program = program_of_text(MODEL.format(layer=layer, size=size), tmp_path)
    assert has_kernel(program, PAIRS) is wanted


@pytest.mark.parametrize("path", PROBLEMS, ids=lambda p: p.stem)
def test_problems_are_without_pairs(path):
    assert not has_kernel(program_of(path), PAIRS)


@pytest.mark.parametrize(
    ("layer", "size", "wanted"),
    [
        ("nn.ConvTranspose1d(16, 8, 16, stride=8, padding=4)", "1, 16, 9", True),
        ("nn.ConvTranspose1d(16, 8, 15, stride=8)", "1, 16, 9", False),
        ("nn.ConvTranspose1d(16, 8, 18, stride=9)", "1, 16, 9", False),
        ("nn.ConvTranspose1d(16, 32, 3, stride=2)", "1, 16, 9", True),
        ("nn.ConvTranspose1d(16, 33, 3, stride=2)", "1, 16, 9", False),
        ("nn.ConvTranspose1d(16, 8, 3)", "1, 16, 9", False),
        ("nn.ConvTranspose2d(16, 8, (3, 4), stride=(1, 4))", "1, 16, 5, 5", True),
        ("nn.ConvTranspose2d(16, 8, 4, stride=4, dilation=(1, 3))", "1, 16, 5, 5", False),
        ("nn.ConvTranspose3d(16, 8, 3, stride=3)", "1, 16, 3, 3, 3", True),
        (
            "nn.Sequential(nn.ConvTranspose1d(8, 8, 3), nn.ConvTranspose1d(8, 8, 8, stride=4))",
            "1, 8, 9",
            True,
        ),
    ],
)
def test_joined_columns_by_any_layer(layer, size, wanted, tmp_path):
    """Over two apart they share the interleaved kernel's rule, which such a file has, too."""
    program = program_of_text(MODEL.format(layer=layer, size=size), tmp_path)
    assert has_kernel(program, JOINED) is wanted
    assert has_kernel(program) or not wanted or "stride=2" in layer


@pytest.mark.parametrize("path", PROBLEMS, ids=lambda p: p.stem)
def test_problems_have_no_joined_columns(path):
    assert not has_kernel(program_of(path), JOINED)


@pytest.mark.parametrize(
    ("layer", "size", "wanted"),
    [
        ("nn.ConvTranspose2d(8, 8, 3, stride=2)", "1, 8, 5, 5", True),
        ("nn.ConvTranspose2d(8, 8, 3, stride=(1, 2))", "1, 8, 5, 5", True),
        ("nn.ConvTranspose2d(8, 8, 3, stride=(2, 1))", "1, 8, 5, 5", False),
        ("nn.ConvTranspose1d(8, 8, 3, stride=3)", "1, 8, 9", False),
        ("nn.ConvTranspose3d(8, 8, 3)", "1, 8, 3, 4, 5", True),
    ],
)
def test_short_passes_by_any_layer(layer, size, wanted, tmp_path):
    program = program_of_text(MODEL.format(layer=layer, size=size), tmp_path)
    assert has_kernel(program, SHORT) is wanted


@pytest.mark.parametrize("path", PROBLEMS, ids=lambda p: p.stem)
def test_problems_have_no_short_passes(path):
    assert not has_kernel(program_of(path), SHORT)


IDENTITY = "nn.Identity()"


@pytest.mark.parametrize(
    ("layer", "behind", "wanted"),
    [
        ("nn.ConvTranspose2d(40, 64, 3)", IDENTITY, True),
        ("nn.ConvTranspose2d(64, 33, (2, 8), padding=1)", IDENTITY, True),
        ("nn.ConvTranspose2d(40, 64, 3)", "nn.MaxPool2d(2)", True),
        ("nn.ConvTranspose2d(40, 64, 3)", "nn.ReLU()", False),
        ("nn.ConvTranspose2d(40, 64, 3)", "nn.ConvTranspose2d(64, 40, 3)", True),
        # Its rows are taken in pairs, its columns are joined: forms that turns do not know.
        ("nn.ConvTranspose2d(40, 64, 3)", "nn.ConvTranspose2d(64, 32, 3)", False),
        ("nn.ConvTranspose2d(40, 64, 3)", "nn.ConvTranspose2d(64, 40, 4, stride=4)", False),
        ("nn.ConvTranspose2d(40, 64, 3)", "nn.ConvTranspose3d(1, 1, (1, 3, 3))", False),
        ("nn.ConvTranspose2d(40, 64, (3, 7))", IDENTITY, False),
        ("nn.ConvTranspose2d(40, 64, 3, stride=(1, 2))", IDENTITY, False),
        ("nn.ConvTranspose2d(40, 66, 3, groups=2)", IDENTITY, False),
        ("nn.ConvTranspose2d(40, 65, 3)", IDENTITY, False),
        ("nn.ConvTranspose2d(32, 64, 3)", IDENTITY, False),
    ],
)
def test_turns_where_every_layer_may_take_them(layer, behind, wanted, tmp_path):
    channels = re.match(r"nn.ConvTranspose2d\((\d+)", layer)[1]
    text = MODEL.format(layer=f"nn.ModuleList([{layer}, {behind}])", size=f"1, {channels}, 5, 6")
    shaped = "y.unsqueeze(1)" if "3d" in behind else "y"
    text = text.replace(
        "return torch.relu(self.up(x))", f"y = self.up[0](x)\n        return self.up[1]({shaped})"
    )
    program = program_of_text(text, tmp_path)
    assert has_kernel(program, TURNS) is wanted


@pytest.mark.parametrize("path", PROBLEMS, ids=lambda p: p.stem)
def test_problems_take_no_turns(path):
    assert not has_kernel(program_of(path), TURNS)


@pytest.mark.parametrize("order", ["flat, deep", "deep, flat"])
def test_a_kernel_of_two_dimensions_and_three_walks_in_depth(order, tmp_path):
    """Whichever comes first: both are calls of one kernel."""
    layers = "nn.ModuleList([nn.ConvTranspose2d(4, 6, 3), nn.ConvTranspose3d(4, 6, 3)])"
    text = MODEL.format(layer=layers, size="1, 4, 5, 5").replace(
        "return torch.relu(self.up(x))",
        "return "
        + order.replace("flat", "self.up[0](x)").replace("deep", "self.up[1](x.unsqueeze(2))"),
    )
    program = program_of_text(text, tmp_path)
    assert [fused.dimensions for fused in program.training.fused] == (
        [2, 3] if order.startswith("flat") else [3, 2]
    )
    made = sources(program)
    assert len(made.all) == 1 and made.volumes
    assert "run_depth" in made.sources["OPERATOR_SOURCE"]
