"""The source of the gradients' library, of which a solution holds what its CUDA source lacks."""

import pytest

from generator.sources import gradient_cuda_source
from tests.solution_tools import PROBLEMS


@pytest.mark.parametrize("path", PROBLEMS, ids=lambda path: path.stem)
def test_the_source_is_whole_again(path, shelf):
    name = path.stem.split("_")[0]
    solution = shelf[name].solution
    assert solution["_GRADIENT_CUDA"] == f"\n{gradient_cuda_source()}"
    assert len(solution["GRADIENT_CUDA_SOURCE"]) < len(solution["_GRADIENT_CUDA"]) / 2
