"""BatchNorm with the mean of each plane taken away: which graphs have such a tail, what a solution
says, and that it computes what its reference does, in training and in eval mode.
"""

import re

import pytest
import torch

from generator import static_rules
from generator.emit import solution_text
from generator.explain import explained
from generator.prove import with_formulas
from generator.sources import gradient_cuda_source, gradient_operator_source
from tests.folded_norm_tools import watched
from tests.solution_tools import REFERENCES, generated, program_of
from tests.sweeps import swept

_WRITTEN = """
import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = nn.ConvTranspose{dimensions}d(3, 4, 3)
        self.norm = {norm}
        self.act = nn.LeakyReLU(0.2)
        self.gain = nn.Parameter(torch.randn(4, *[1] * {dimensions}))

    def forward(self, x):
        y = self.norm(self.up(x))
        {body}


def get_inputs():
    return [torch.rand(2, 3, *range(4, 4 + {dimensions}))]


def get_init_inputs():
    return []
"""
SUBTRACTED = "y = y - torch.mean(y, dim=(2, 3, 4), keepdim=True)\n        "


def written(tmp_path, body, norm="nn.BatchNorm3d(4)", dimensions=3):
    path = tmp_path / "centred.py"
    path.write_text(_WRITTEN.format(body=body, norm=norm, dimensions=dimensions))
    return path


TAKEN = [
    (f"{SUBTRACTED}return y", 0),
    (f"{SUBTRACTED}return self.act(y) * 2", 2),
    (f"{SUBTRACTED}return torch.sigmoid(y) * y * self.gain", 1),  # the operand's is PyTorch's
    ("return F.relu(torch.sub(y, y.mean((-1, 2, -2), True), alpha=1), inplace=True)", 1),
    ("m = torch.mean(y, keepdim=True, dim=[4, 3, 2])\n        return (y - m).cumsum(1)", 0),
    ("z = x.cos()\n        return y - y.mean((2, 3, 4), keepdim=True) + z.sum()", 0),
    (f"{SUBTRACTED}return torch.tanh(y.view(y.shape[0], 4, -1))", 1),
]
LEFT = [
    "return y - y.mean((2, 3), keepdim=True)",
    "return y - y.mean((0, 2, 3, 4), keepdim=True)",
    "return y - y.mean((1, 2, 3, 4), keepdim=True)",
    "return y - y.mean((2, 3, 4), keepdim=True, dtype=torch.float32)",
    "return y - y.mean()",
    "return y.mean((2, 3, 4), keepdim=True) - y",
    "return torch.sub(y, y.mean((2, 3, 4), keepdim=True), alpha=2)",
    "return y + y.mean((2, 3, 4), keepdim=True)",
    "m = y.mean((2, 3, 4), keepdim=True)\n        return y - m, m",
    "m = y.mean((2, 3, 4), keepdim=True)\n        return y - m.sqrt()",
    "return y - y.mean((2, 3, 4), keepdim=True), y",
    "return y - torch.amax(y, (2, 3, 4), keepdim=True)",
    "y -= y.mean((2, 3, 4), keepdim=True)\n        return y",
    "return y.cos() - y.mean((2, 3, 4), keepdim=True)",
    "with torch.no_grad():\n            m = y.mean((2, 3, 4), keepdim=True)\n        return y - m",
    "m = y.mean((2, 3, 4), keepdim=True)\n        x.add_(1)\n        return y - m",
]


@pytest.mark.parametrize(("body", "steps"), TAKEN)
def test_what_is_a_tail(tmp_path, body, steps):
    program = program_of(written(tmp_path, body))
    for plan in program.plans:
        (tail,) = plan.tails
        assert (tail.entry, len(tail.steps), tail.vectors) == ("kCentredBatchNorm", steps, [])
        assert [node.op for node in tail.nodes[1:3]] == ["aten.mean.dim", "aten.sub.Tensor"]
    assert program.norms == frozenset()


@pytest.mark.parametrize("body", LEFT)
def test_what_is_none(tmp_path, body):
    program = program_of(written(tmp_path, body))
    assert not any(tail.entry == "kCentredBatchNorm" for tail in program.training.tails)


@pytest.mark.parametrize(
    ("norm", "dimensions", "taken"),
    [
        ("nn.BatchNorm1d(4)", 1, True),
        ("nn.BatchNorm2d(4, affine=False)", 2, True),
        ("nn.GroupNorm(2, 4)", 2, False),
        ("nn.Identity()", 2, False),
    ],
)
def test_norms_of_other_dimensions_and_kinds(tmp_path, norm, dimensions, taken):
    dims = tuple(range(2, 2 + dimensions))
    body = f"return y - y.mean({dims}, keepdim=True)"
    tails = program_of(written(tmp_path, body, norm, dimensions)).training.tails
    assert [tail.entry for tail in tails] == ["kCentredBatchNorm"] * taken


def test_a_solution_asks_for_it(tmp_path):
    path = written(tmp_path, TAKEN[1][0])
    text = generated(path)
    act = r"\(\(self\.act, 'LeakyReLU\(negative_slope=0\.2\)'\),\)"
    body = text[text.index("def forward(self, x") :]
    call = re.search(rf"\n {{12}}done, (\w+) = _tail\(0, (\w+), self\.norm, \(\), {act}\)\n", body)
    inside = body[call.end() : body.index("        else:")]
    assert re.match(r" {12}if not done:\n {16}\w+ = self\.norm\(\w+\)\n", inside)
    # Behind eval mode's kernel PyTorch runs what stands behind the norm, as where no kernel runs.
    behind = body[body.index("        else:") :].splitlines()[1:5]
    assert [line.strip() for line in behind] == [line.strip() for line in inside.splitlines()[2:]]
    assert "BATCH_NORM_CUDA_SOURCE" not in text and "TCONV_" not in "".join(behind)
    assert "centred_batch_norm_finalise_kernel" in text and "TCONV_CENTRED_TAILS" not in text
    found = static_rules.findings(text, "float32")
    assert found.errors == found.warnings == []
    said = [line.text for line in explained(program_of(path))]
    assert any("BatchNorm3d -> mean -> sub -> LeakyReLU -> mul where" in line for line in said)
    assert sum("in training mode" in line for line in said) == 5


def test_pytorchs_gradients_come_without_it(tmp_path):
    path = written(tmp_path, TAKEN[0][0])
    text = solution_text(program_of(path), path, own_gradients=False)
    assert "_tail(" not in text and "centred_batch_norm" not in text


def test_other_solutions_come_without_it():
    for name in ("volume_only", "grouped_volumes", "normed_volumes"):
        text = generated(REFERENCES / f"{name}.py")
        sources = re.findall(r'_SOURCE = r"""(.*?)"""', text, re.DOTALL)
        assert len(sources) > 6 and not any(re.search("centred|CENTRED", s) for s in sources)
    for entry in ("tail", "tail_gradient"):
        assert "entred" not in gradient_cuda_source(entry) + gradient_operator_source(entry)


@pytest.mark.parametrize("case", swept(TAKEN, (1, 3), names=1), ids=str)
def test_it_computes_what_the_reference_does(tmp_path, case):
    """With formulas in the place of eval mode's kernel: one body serves both modes and a frozen
    norm in a model that trains.
    """
    path = written(tmp_path, case[0])
    solution, reference = with_formulas(program_of(path), generated(path)), {}
    ran = watched(solution)
    exec(compile(path.read_text(), str(path), "exec"), reference)
    ours, theirs = solution["ModelNew"]().double(), reference["Model"]().double()
    theirs.load_state_dict(ours.state_dict())
    x = torch.rand(2, 3, 4, 5, 6, dtype=torch.float64)
    for frozen in (False, True):
        for model in (ours, theirs):
            model.train()
            model.norm.train(not frozen)
        for wanted in (True, False):
            leaf = x.clone().requires_grad_(wanted)
            with torch.set_grad_enabled(wanted):
                mine, its = ours(leaf), theirs(leaf)
            torch.testing.assert_close(mine, its)
            if wanted:
                grad = torch.randn_like(mine)
                pairs = zip(
                    torch.autograd.grad(mine, [leaf, *ours.up.parameters()], grad),
                    torch.autograd.grad(its, [leaf, *theirs.up.parameters()], grad),
                    strict=True,
                )
                for a, b in pairs:
                    torch.testing.assert_close(a, b)
    assert ran == [False, False, False, True]
    for mine, its in zip(ours.buffers(), theirs.buffers(), strict=True):
        torch.testing.assert_close(mine, its)
