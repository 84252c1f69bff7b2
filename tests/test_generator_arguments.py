"""Positional and keyword arguments of calls mean to the generator what they mean to PyTorch."""

import re

import pytest
import torch

from generator.emit import generate, solution_text
from generator.errors import Refusal
from generator.explain import explained, report
from generator.program import read_program
from generator.prove import prove
from generator.reference import load_reference
from tests.solution_tools import load_text
from tests.sweeps import swept
from tests.test_generator import write_reference

# Wide enough that every bound cuts some values off.
_INIT = """self.low, self.high = -0.75, 0.5
        self.conv.weight.data.mul_(4)"""

_UNBOUNDED = "nn.Hardtanh(-2.0, float('inf'))"


def proved(path) -> str:
    """The solution of a reference, all of which runs in one kernel call: it is proved to compute
    what the reference does.
    """
    program = read_program(path)
    text = solution_text(program, path.with_name("solution.py"))
    prove(program, text)
    left = [line.text for line in explained(program) if line.is_left]
    assert not left and len(program.training.items) == 1, left
    return text


def truth(path, x: torch.Tensor) -> torch.Tensor:
    return load_reference(path).model.double()(x)


SPELLINGS = [
    "torch.clamp(y, -0.1, 0.2)",
    "torch.clamp(y, -0.1)",
    "torch.clamp(y, None, 0.2)",
    "torch.clamp(y, -0.1, max=0.2)",
    "torch.clamp(y, 0.3, -0.3)",
    "torch.clamp(y, -0.1, float('inf'))",
    "torch.clamp(max=0.2, input=y)",
    "torch.clamp_(y, -0.1, 0.2)",
    "torch.clip(y, -0.1, 0.2)",
    "torch.clip(y, self.low, self.high)",
    "y.clamp(-0.1, 0.2)",
    "y.clamp_(-0.1, 0.2)",
    "y.clip(-0.1, 0.2)",
    "y.clip(self.low)",
    "y.clamp_min(-0.1)",
    "torch.clamp_min(y, -0.1)",
    "torch.clamp_max(y, 0.2)",
    "y.clamp_max_(0.2)",
    "y.clamp_max(max=0.2)",
    "F.hardtanh(y, -0.1, 0.2)",
    "F.hardtanh(y, -0.1, 2, True)",
    "F.hardtanh(y, -0.1)",
    "F.hardtanh_(y, -0.1, 0.2)",
    "F.hardtanh_(y)",
    "F.relu(y, True)",
    "F.relu6(3 * y, True)",
    "torch.relu(y)",
    "F.gelu(y, approximate='tanh')",
    "torch.add(y, 0.25)",
    "torch.add(y, 0.25, alpha=1)",
    "torch.add(self.weight, y)",
    "torch.sub(y, 0.25)",
    "torch.sub(0.25 * y, other=0.25)",
    "torch.sub(self.weight, y)",
    "y.subtract(0.25)",
    "torch.mul(y, 0.25)",
    "torch.div(y, 4)",
    "y.true_divide(-3)",
    "(1.5 - y).neg()",
    "F.group_norm(y, 4)",
    "F.group_norm(y, 4, self.group.weight, self.group.bias, 0.5)",
    "torch.group_norm(y, 4, self.group.weight, self.group.bias, 0.5)",
    "torch.group_norm(y, 4, None, self.group.bias, 0.5, True)",
    "self.group(F.max_pool2d(torch.tanh(self.norm(y)), 3, 2, 1))",
    "self.group(F.max_pool2d(torch.tanh(self.norm(y)), (2, 1), (1, 2), (1, 0), (2, 1), True))",
    "self.group(torch.max_pool2d(torch.tanh(self.norm(y)), 2, [1, 2], 1, 1, True))",
    "F.relu(F.hardtanh_(y, -3, 2).clamp(-0.5, 1.75).add_(0.25))",
    "2 / y",
    "self.weight / y",
    "y ** 2",
    "torch.pow(y, 3)",
    "torch.pow(input=y, exponent=-1)",
    "y.abs().pow_(1.5)",
    "abs(y).sqrt_().square_() - 0.25",
    "torch.exp(y).log_().exp_()",
    "torch.rsqrt(torch.abs(y) + 1).reciprocal_()",
    "torch.min(y, self.weight)",
    "torch.maximum(self.weight, other=y)",
    "F.leaky_relu(y, 0.2)",
    "F.leaky_relu(y, inplace=True)",
    "F.leaky_relu_(y, 0.3)",
    "F.elu(y, 0.5, True)",
    "F.elu_(y, 0.5)",
    "torch.selu_(F.selu(y, True))",
    "F.celu(y, 2.0, inplace=True)",
    "torch.celu(y, 0.5)",
    "F.silu(y, True)",
    "F.mish(y, inplace=True)",
    "F.hardswish(F.hardsigmoid(y, True), True)",
    "F.softplus(y, 2)",
    "F.softplus(y, beta=0.5, threshold=1)",
    "F.softsign(y)",
    "F.threshold(y, 0.1, -0.2)",
    "torch.threshold(y, threshold=0.1, value=0)",
]


@pytest.mark.parametrize("spelling", swept(SPELLINGS, range(0, len(SPELLINGS), 8)))
def test_arguments_mean_what_pytorch_takes_them_for(spelling, tmp_path):
    proved(write_reference(tmp_path, f"y = self.conv(x)\nreturn {spelling}", init=_INIT))


CONVOLUTIONS = [
    "x, self.w, self.b, 2, 1, 1, 2, 1",
    "x, self.w, self.b, (3, 2), (1, 2), (2, 0), 2, (1, 3)",
    "x, self.w, None, 3, 0, [1, 2], 2",
    "x, self.w, self.b, 2, groups=2, dilation=(2, 1)",
    "weight=self.w, input=x, groups=2, output_padding=1, stride=2",
]


@pytest.mark.parametrize("arguments", CONVOLUTIONS)
def test_arguments_of_the_convolution_mean_what_pytorch_takes_them_for(arguments, tmp_path):
    init = "self.w = nn.Parameter(torch.randn(4, 3, 3, 2))\n"
    init += "        self.b = nn.Parameter(torch.randn(6))"
    body = f"return F.conv_transpose2d({arguments}).clamp(-1.5, 1)"
    proved(write_reference(tmp_path, body, init=init))


@pytest.mark.parametrize(
    ("spelling", "message"),
    [
        ("y.clamp_min(0, True)", "TypeError"),
        ("F.hardtanh(y, 1, -1)", "min_val"),
        ("F.leaky_relu(y, 'a')", "leaky_relu"),
        ("F.softplus(y, threshold=self.weight)", "softplus"),
        ("F.max_pool2d(y, 1.5)", "max_pool2d"),
        ("F.group_norm(y, 2.0)", "group_norm"),
        ("y * 10**400", "Overflow"),
    ],
)
def test_arguments_that_pytorch_does_not_take_are_refused(spelling, message, tmp_path):
    path = write_reference(tmp_path, f"y = self.conv(x)\nreturn {spelling}")
    with pytest.raises(Refusal, match=rf"reference.py:\d+: tracing forward raised .*{message}"):
        generate(path, tmp_path / "solution.py")


@pytest.mark.parametrize(
    ("spelling", "message"),
    [
        ("torch.sub(y, 2, alpha=3)", "sub: left, .*alpha"),
        ("y.add(2, alpha=0)", "add: left, .*alpha"),
        ("torch.div(y, 2, rounding_mode='floor')", "div: left"),
        ("torch.div(y, self.weight, rounding_mode=None)", "div: left"),
        ("2 ** y", "pow: left"),
        ("y ** self.weight", "pow: left"),
        ("torch.max(y, 1)", "max: left"),
        ("F.softmin(y, 1)", "softmax: left"),
    ],
)
def test_arguments_that_no_kernel_takes_stay_pytorchs(spelling, message, tmp_path):
    path = write_reference(tmp_path, f"y = self.conv(x)\nreturn {spelling}")
    generate(path, tmp_path / "solution.py")
    assert re.search(message, report(read_program(path)))


def test_a_built_solution_clamps_between_positional_bounds(tmp_path, monkeypatch):
    body = "y = torch.clamp(self.conv(x), -0.1, float('inf'))\nreturn self.cut(y).clip(-1, 0.2)"
    path = write_reference(tmp_path, body, f"{_INIT}\n        self.cut = {_UNBOUNDED}")
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path / "build"))
    solution = load_text(generate(path, tmp_path / "solution.py"), "clamped")
    x = torch.randn(2, 4, 5, 5, dtype=torch.float64)
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(0)
        ours = solution["ModelNew"]().double()(x)
        torch.manual_seed(0)
        exact = truth(path, x)
    assert exact.min() == -0.1 and exact.max() == 0.2
    torch.testing.assert_close(ours, exact, rtol=1e-12, atol=1e-12)
