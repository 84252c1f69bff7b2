"""Visible skips for tests that need a GPU, and solutions built once per session."""

import pytest
import torch

from tests.solution_tools import SolutionShelf


def pytest_collection_modifyitems(items):
    if torch.cuda.is_available():
        return
    skip = pytest.mark.skip(reason="needs a CUDA GPU")
    for item in items:
        if "gpu" in item.keywords:
            item.add_marker(skip)


@pytest.fixture(scope="session")
def shelf(tmp_path_factory):
    """Generated solutions by the name of their reference, each generated, built and loaded once."""
    return SolutionShelf(tmp_path_factory.mktemp("solutions"))
