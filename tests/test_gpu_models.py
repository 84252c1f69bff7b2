"""Models of our own (tests/references/) on a GPU: a training step beside PyTorch's. Each is a build
of half a minute.
"""

import pytest
import torch

from tests.gpu_tools import tf32
from tests.model_steps import JUDGED, too_far
from tests.solution_tools import REFERENCES, generated, load_text

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("name", JUDGED)
def test_a_step_is_as_near_as_pytorch(name):
    solution = load_text(generated(REFERENCES / f"{name}.py"))
    told = {}
    for allow, allowed in ((False, 1e-6), (True, 2.0**-9)):
        with tf32(allow):
            told[allow] = too_far(name, solution, "cuda", torch.float32, allowed)
    assert told == {False: [], True: []}
