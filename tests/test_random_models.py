"""References of random graphs become solutions: none is refused, and what is written is proved."""

import pytest

from generator.emit import generate
from tests.random_models import random_model
from tests.sweeps import swept


@pytest.mark.parametrize("start", swept(range(0, 150, 10), (0,)))
def test_random_models_generate(start, tmp_path):
    """Outputs, gradients, state and buffers are the reference's, in training and eval mode: the
    generator itself compares them (generator/prove.py) before it gives a text, here with PyTorch's
    functions in place of the kernels. Of these what three dimensions call has to be there.
    """
    path, calls = tmp_path / "own.py", 0
    for seed in range(start, start + 10):
        path.write_text(random_model(seed))
        forward = (text := generate(path, tmp_path / "solution.py"))[text.rindex("def forward") :]
        calls += forward.count("_operator")
        assert "_in_three_dimensions(" not in forward or "void run_depth(" in text, seed
    assert calls >= 10
