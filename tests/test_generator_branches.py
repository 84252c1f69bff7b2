"""Values of a chain that are read more than once: operators that read one another's results run in
the kernel, where nothing else reads what lies between.
"""

import re

import pytest

from generator.emit import generate
from generator.explain import report
from generator.program import read_program
from generator.sources import MAX_CHANNEL_VECTORS
from generator.step_table import Step, branches
from tests.test_generator import write_reference

INIT = "self.one = nn.Parameter(torch.rand(8, 1, 1) + 0.5)"
KEPT = {
    "square": "return y * y",
    "swish": "return y * torch.sigmoid(y)",
    "residual": "return y + F.relu(y)",
    "layers": "return nn.Tanh()(y) * nn.Softplus()(y)",
    "twice": "y = y * torch.sigmoid(y)\nreturn y * torch.tanh(F.softplus(y))",
    "behind a step": "y = F.gelu(y)\nreturn 1 - y * y",
    "reversed": "return torch.rsub(y, y.exp()) / (y * y + 1)",
    "own operands": "return (y + self.one) * (y - self.one)",
    "detached": "z = y.clone().detach()\nreturn (y + self.one + z) * z + z",
    "bounds": "return torch.maximum(y, 0.1 * y) + torch.minimum(y, y.tanh())",
    "before a norm": "return self.group(y * torch.sigmoid(y))",
    "read by what nobody reads": "torch.sigmoid(y)\nreturn y * y",
    "read in one line": "return (y + 1) * (y + 2) * (y + 3)",
}


@pytest.mark.parametrize("name", KEPT)
def test_all_of_it_runs_in_the_kernel(name, tmp_path):
    """Outputs and gradients are the reference's: generate proves it."""
    path = write_reference(tmp_path, "y = self.conv(x)\n" + KEPT[name], INIT)
    text = generate(path, tmp_path / "solution.py")
    assert "_Branches(" in text
    assert " left, " not in report(read_program(path))


LEFT = {
    "written in between": "z = torch.sigmoid(y)\ny.mul_(2)\nreturn y * z",
    "returned as well": "return y * torch.sigmoid(y), y",
    "not all of them known": "return y * torch.sigmoid(y) + torch.cumsum(y, 1)",
    "an operand that is only read detached": "return (y + self.one).detach() * y",
    "all detached": "return y.detach() * y.detach()",
    "too many operands": "return " + " + ".join(["y * self.one"] * (MAX_CHANNEL_VECTORS + 1)),
    "under a switch": "with torch.no_grad():\n    z = torch.sigmoid(y)\nreturn y * z",
    "of another shape": "return y * y.mean(1, keepdim=True)",
}


@pytest.mark.parametrize("name", LEFT)
def test_what_others_read_or_write_stays_pytorchs(name, tmp_path):
    """And is right, which generate proves."""
    path = write_reference(tmp_path, "y = self.conv(x)\n" + LEFT[name], INIT)
    assert "_Branches(" not in generate(path, tmp_path / "solution.py")
    assert " left, " in report(read_program(path))


def test_known_ones_run_in_the_kernel_before_others_are_left(tmp_path):
    path = write_reference(tmp_path, "y = self.conv(x)\ny = y * y\nreturn y * torch.cumsum(y, 1)")
    assert "_Branches((0, _Multiply(_Earlier(0))))" in generate(path, tmp_path / "solution.py")


def test_no_gradient_of_what_is_only_read_detached():
    """Its slope may be infinite, and zero times that NaN."""
    log = Step("log", "v = LOG;", "_Log()", "LOG_SLOPE")
    detach = Step("detach", "", "_Detach()", "")
    multiply = Step("mul", "v = v * w2;", "_Multiply(_Earlier(2))", "e2 += grad; MULTIPLY_SLOPE")
    step = branches([(0, log), (1, detach), (0, multiply)], {0, 2, 3})
    assert "LOG;" in step.device and "MULTIPLY_SLOPE" in step.gradient
    assert "LOG_SLOPE" not in step.gradient
    assert sorted(re.findall(r"\be(\d) = ", step.gradient)) == ["0", "2", "3"]


def test_a_value_that_is_infinite_detached(tmp_path):
    """log(0), detached, beside what has a gradient."""
    path = write_reference(tmp_path, "y = F.relu(self.conv(x))\nreturn (-y.log().detach()) + y")
    text = generate(path, tmp_path / "solution.py")
    assert "_Detach()" in text
