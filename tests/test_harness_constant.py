"""References whose own output is a constant: judged by another case, or not at all."""

import pytest
import torch

from harness.catalog import Problem
from harness.errors import UsageError
from harness.run.evaluate import Evaluation
from harness.run.outcome import Options
from harness.run.progress import Silent
from tests.fixture_judge import FIXTURES
from tests.forked_candidate import ForkedCandidate

TINY = (FIXTURES / "tiny.py").read_text()
RETURN = "return self.conv(x)"
# The smallest channel of each place, summed: below zero, so that ReLU leaves nothing, unless the
# layer's biases lie far above the spread of what it gives. KernelBench's 2/36 is such a one.
CUT = "return torch.relu(self.conv(x).amin(1, keepdim=True).sum(2) - 100)"


def judged(folder, ours: str, theirs: str):
    for name, line in (("reference", theirs), ("solution", ours)):
        assert TINY.count(RETURN) == 1
        text = TINY.replace(RETURN, line)
        text = text.replace("class Model(", "class ModelNew(") if name == "solution" else text
        (folder / f"{name}.py").write_text(text)
    problem = Problem("tiny", "tiny", folder / "reference.py", folder / "solution.py")
    options = Options(device=torch.device("cpu"), batch=2, check_only=True, baselines=())
    return Evaluation(problem, options, Silent(), start=ForkedCandidate).run()


def test_the_case_of_large_biases_judges_where_all_others_are_constant(tmp_path):
    honest = judged(tmp_path, CUT, CUT)
    assert honest.reasons == [] and "own" in honest.constant and "offset" in honest.errors
    lazy = judged(tmp_path, CUT.replace("- 100", "- 1e9"), CUT)
    assert lazy.reasons and "offset inputs: relative L2 error" in lazy.reasons[0]


def test_what_is_always_constant_is_refused(tmp_path):
    constant = "return self.conv(x) * 0 + 1"
    with pytest.raises(UsageError, match="nearly constant"):
        judged(tmp_path, constant, constant)
