"""Gradients: those that the reference does not have, and those that a solution leaves out."""

import pytest

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
