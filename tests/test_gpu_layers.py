"""Some hundreds of random layers on a CUDA GPU, by every kernel; python -m tests.fuzz_operator
runs as many as wanted.
"""

import time
from types import SimpleNamespace

import pytest

from tests import fuzz_operator
from tests.builds_ahead import MANY_CHANNELS, VOLUME_ONLY
from tests.gpu_tools import forced

pytestmark = pytest.mark.gpu

COUNTS = {"auto": 300, "portable": 200, "hopper": 200, "direct": 100, "plain": 100}
# Other libraries have the interleaved kernel, for wide strides, and the gathered one.
GRID = [("69", kernel) for kernel in COUNTS] + [(VOLUME_ONLY, "auto"), (VOLUME_ONLY, "direct")]
GRID += [(MANY_CHANNELS, "auto"), (MANY_CHANNELS, "hopper")]


@pytest.mark.parametrize(("name", "kernel"), GRID)
def test_random_layers(shelf, name, kernel):
    options = SimpleNamespace(
        seed=20 + list(COUNTS).index(kernel),
        first=0,
        count=COUNTS[kernel],
        device="cuda",
        kernel=kernel,
        sizes="full",
        wait=False,
        pytorch=kernel == "auto",
        gradients=kernel == "auto",
    )
    summary = fuzz_operator.Summary()
    begin = time.monotonic()
    with forced(kernel):
        fuzz_operator.run(shelf[name].solution["_operator"], options, summary)
    print(f"{kernel}: {summary} in {time.monotonic() - begin:.0f} s")
    assert summary.failures == []
    assert summary.layers == COUNTS[kernel] and summary.refused < 0.9 * summary.layers
