"""Gradients: those that the reference does not have, and those that a solution leaves out."""

import math
from types import SimpleNamespace

import pytest
import torch

from harness.errors import Rejected
from harness.judge import bounds, gradient_check, jumps, truth
from harness.judge.cases import Case
from tests.fixture_judge import FIXTURES, evaluate

REFERENCE = (FIXTURES / "tiny_unused.py").read_text().replace("class Model(", "class ModelNew(")
RETURN = "return self.conv(x)"


def judged(folder, returned: str):
    solution = folder / "solution.py"
    assert RETURN in REFERENCE
    solution.write_text(REFERENCE.replace(RETURN, f"return {returned}"))
    return evaluate("tiny_unused", solution, batch=2, backward=True)


@pytest.mark.parametrize("returned", ["self.conv(x)", "self.conv(x) + 0 * self.bias"])
def test_where_the_reference_has_no_gradient_none_and_zero_are_right(tmp_path, returned):
    outcome = judged(tmp_path, returned)
    assert outcome.reasons == []
    found = outcome.errors["own"]["gradients"]
    assert list(found) == ["input 0", "conv.weight", "conv.bias"]


def test_any_other_gradient_in_its_place_is_wrong(tmp_path):
    outcome = judged(tmp_path, "self.conv(x) + (self.bias - self.bias.detach())")
    assert [reason.partition(":")[0] for reason in outcome.reasons] == ["wrong_gradient"]
    assert "gradient of bias: it is not zero" in outcome.reasons[0]


def test_one_that_the_reference_has_must_be_there(tmp_path):
    held = "torch.conv_transpose2d(x, self.conv.weight, self.conv.bias.detach())"
    outcome = judged(tmp_path, held)
    assert [reason.partition(":")[0] for reason in outcome.reasons] == ["missing_gradient"]
    assert "['conv.bias']" in outcome.reasons[0]


# Beyond the dtype's range -----------------------------------------------------------------------


BEYOND = [
    ([5e4, torch.inf], True),
    ([5e4, 7e4], True),
    ([5e4, 8.0], False),
    ([8.0, torch.inf], False),
    ([torch.inf, torch.inf], False),
]


@pytest.mark.parametrize(("ours", "right"), BEYOND)
def test_where_pytorchs_overflows_ours_may_and_the_rest_is_compared(monkeypatch, ours, right):
    monkeypatch.setattr(jumps, "allowed_by_jumps", lambda *_: 0.0)
    expected = SimpleNamespace(
        gradients=[torch.tensor([5e4, 7e4], dtype=torch.float64)],
        own_gradients=[torch.tensor([5e4, torch.inf], dtype=torch.float16)],
        gradient_names=["bias"],
    )
    args = torch.tensor(ours), expected, 0, "float16", 4, 0.0, "own"
    if right:
        made = gradient_check.require_right_gradient(*args)
        assert all(math.isfinite(size) for size in made.values())
    else:
        with pytest.raises(Rejected, match="gradient of bias"):
            gradient_check.require_right_gradient(*args)


# Where a gradient jumps --------------------------------------------------------------------------


class Larger(torch.nn.Module):
    def forward(self, x):
        return torch.maximum(x[:, 0], x[:, 1])


class Product(torch.nn.Module):
    def forward(self, x):
        return x[:, 0] * x[:, 1]


def answer_at(model, second: float):
    """Of one pair of numbers that only rounding tells apart, and others that are far apart."""
    x = torch.tensor([[1.0, second], [1.0, 5.0], [3.0, 2.0]])
    case = Case("wide", [x], {}, 5)
    return truth.expected(model, case, torch.device("cpu"), backward=True)


def other_way(answer) -> float:
    """The rms error of a gradient that goes to the other one of the first pair."""
    swapped = answer.gradients[0].clone()
    swapped[0] = swapped[0].flip(0)
    return float((swapped - answer.gradients[0]).square().mean().sqrt())


@pytest.mark.parametrize(
    ("model", "second", "jumps_there"),
    [(Larger(), 1.0 + 2.0**-23, True), (Larger(), 1.01, False), (Product(), 1.0 + 2.0**-23, False)],
)
def test_a_decision_that_rounding_makes_may_go_either_way(model, second, jumps_there):
    answer = answer_at(model, second)
    relative = bounds.relative_bound("float32", 1)
    size = float(answer.gradients[0].square().mean().sqrt())
    error = other_way(answer) if isinstance(model, Larger) else 0.1 * size
    allowed = jumps.allowed_by_jumps(answer, 0, error, relative, size)
    assert (allowed >= error) == jumps_there
    assert jumps_there or allowed == 0.0
