"""Visible skips for tests that need a GPU, sweeps left out with a line that says so, and solutions
built once per session.
"""

import argparse
import copy
import os
import signal

import pytest
import torch

from tests.builds_ahead import (
    BATCH_NORM,
    CHAINED_GRADIENTS,
    CLAMPED,
    EMULATED,
    EXTREMA,
    FEW_CHANNELS,
    FULL_BLOCKS,
    GRADIENTS,
    GROUP_NORM,
    JOINED,
    MANY_CHANNELS,
    MANY_CHANNELS_GRADIENTS,
    NORM_GRADIENTS,
    POOL_GRADIENTS,
    RESIDUAL,
    RESIDUAL_GRADIENTS,
    SLICED_GRADIENTS,
    TAIL_GRADIENTS,
    TAILS,
    VOLUME_CHAIN_GRADIENTS,
    VOLUME_GRADIENTS,
    VOLUME_NORM_GRADIENTS,
    VOLUME_ONLY,
    BuildsAhead,
)
from tests.chain_gradient_tools import without_tensors
from tests.cuda_emulator import emulator
from tests.pytorch_tools import threads
from tests.solution_tools import SolutionShelf
from tests.sweeps import is_left_out

LEFT_OUT = pytest.StashKey[int]()


def pytest_addoption(parser):
    parser.addoption(
        "--sweep-share",
        type=_share,
        default=1,
        metavar="N",
        help="of the sweeps that -m selects one in N, the same ones each time",
    )


def _share(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be 1 or more, got {text}")
    return int(text)


def pytest_configure():
    """Where a shell started this in the background an interrupt is ignored, here and in every
    process started from here; some tests interrupt such a process.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(config, items):
    left_out = [item for item in items if is_left_out(item, config)]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if not is_left_out(item, config)]
    config.stash[LEFT_OUT] = len(left_out)
    items.sort(key=_needs_a_slow_build)
    if torch.cuda.is_available():
        return
    skip = pytest.mark.skip(reason="needs a CUDA GPU")
    for item in items:
        if "gpu" in item.keywords:
            item.add_marker(skip)


def pytest_terminal_summary(terminalreporter, config):
    if count := config.stash.get(LEFT_OUT, 0):
        terminalreporter.write_line(f"{count} sweeps deselected: python -m pytest -m sweep")


@pytest.fixture(autouse=True)
def one_thread_where_clocks_are_compared(request, monkeypatch):
    """One thread for the harness's tests, in processes started by them, too: on a busy machine two
    threads wait for one another, for far longer than the evaluated layers take.
    """
    if not request.path.name.startswith("test_harness_"):
        yield
        return
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    with threads(1):
        yield


@pytest.fixture(scope="session")
def shelf(tmp_path_factory, request):
    """Generated solutions by the name of their reference, each generated, built and loaded once.

    What the collected tests name is built before the first of them runs, side by side where there
    are cores for it; the rest when a test asks for it.
    """
    shelf = SolutionShelf(tmp_path_factory.mktemp("solutions"))
    if (os.cpu_count() or 1) > 2:
        shelf.build_ahead(sorted(_named(request.session.items)))
    return shelf


def _named(items) -> set[str]:
    """The solutions that tests take from the shelf: their parameter `name`, 69 as `operator`."""
    names = set()
    for item in items:
        if "shelf" in item.fixturenames:
            parameters = item.callspec.params if hasattr(item, "callspec") else {}
            names.add(str(parameters.get("name", "")).partition(" ")[0])
            names |= {"69"} if "operator" in item.fixturenames else set()
    return names - {""}


@pytest.fixture(scope="session", autouse=True)
def builds_ahead(shelf, tmp_path_factory, request):
    """Begun before the first test: those that need them are the last (`_needs_a_slow_build`)."""
    builds = BuildsAhead(tmp_path_factory.mktemp("builds"), shelf, request.session.items)
    yield builds
    builds.close()


def _needs_a_slow_build(item) -> bool:
    return item.path.name.startswith("test_cuda_")


@pytest.fixture(scope="session")
def emulated_solutions(shelf, builds_ahead):
    """Solutions whose CUDA kernels run on the CPU, by the name of their reference."""
    built = builds_ahead.emulated
    return {name: emulator.Emulated(shelf.text(name), built[name].result()) for name in EMULATED}


@pytest.fixture(scope="session")
def emulated_conv(shelf, builds_ahead):
    return emulator.Emulated(shelf.text("69"), builds_ahead.emulated["69"].result())


@pytest.fixture(scope="session")
def emulated_volumes(shelf, builds_ahead):
    """A solution with layers of three dimensions, likewise."""
    built = builds_ahead.emulated[VOLUME_ONLY].result()
    return emulator.Emulated(shelf.text(VOLUME_ONLY), built)


@pytest.fixture(scope="session")
def emulated_many_channels(shelf, builds_ahead):
    """A solution with the gathered kernel, likewise."""
    built = builds_ahead.emulated[MANY_CHANNELS].result()
    return emulator.Emulated(shelf.text(MANY_CHANNELS), built)


@pytest.fixture(scope="session")
def emulated_gradients(builds_ahead):
    """The gradients' library, whose CUDA kernels run on the CPU."""
    return emulator.EmulatedGradients(builds_ahead.gradients[GRADIENTS].result())


@pytest.fixture(scope="session")
def emulated_norm_gradients(builds_ahead):
    """The library of GroupNorm's gradients, likewise."""
    built = builds_ahead.gradients[NORM_GRADIENTS].result()
    return emulator.EmulatedGradients(built, "group_norm_gradient")


@pytest.fixture(scope="session")
def emulated_pool_gradients(builds_ahead):
    """The library of those through BatchNorm and max-pool, likewise."""
    built = builds_ahead.gradients[POOL_GRADIENTS].result()
    return emulator.EmulatedGradients(built, "batch_norm_pool_gradient")


@pytest.fixture(scope="session")
def emulated_batch_norm(builds_ahead):
    """The library of BatchNorm alone, likewise."""
    return emulator.EmulatedGradients(builds_ahead.gradients[BATCH_NORM].result(), "batch_norm")


@pytest.fixture(scope="session")
def emulated_group_norm(builds_ahead):
    """The library of GroupNorm alone, likewise."""
    return emulator.EmulatedGradients(builds_ahead.gradients[GROUP_NORM].result(), "group_norm")


@pytest.fixture(scope="session")
def emulated_tail(builds_ahead):
    """A library of tails, likewise."""
    return emulator.EmulatedGradients(builds_ahead.gradients[TAILS].result(), "tail")


@pytest.fixture(scope="session")
def emulated_tail_gradients(builds_ahead):
    """That of their gradients, likewise."""
    built = builds_ahead.gradients[TAIL_GRADIENTS].result()
    return emulator.EmulatedGradients(built, "tail_gradient")


@pytest.fixture(scope="session")
def emulated_volume_gradients(builds_ahead):
    """That of solutions with layers of three dimensions, likewise."""
    built = builds_ahead.gradients[VOLUME_GRADIENTS].result()
    return emulator.EmulatedGradients(built, volumes=True)


@pytest.fixture(scope="session")
def emulated_volume_chain_gradients(builds_ahead):
    """The same with gradients through chains, likewise."""
    built = builds_ahead.gradients[VOLUME_CHAIN_GRADIENTS].result()
    return emulator.EmulatedGradients(built, volumes=True, chained=True, masked=True)


@pytest.fixture(scope="session")
def emulated_many_channels_gradients(builds_ahead):
    """That of solutions with the gathered kernel, likewise."""
    built = builds_ahead.gradients[MANY_CHANNELS_GRADIENTS].result()
    return emulator.EmulatedGradients(built, gathered=True)


@pytest.fixture(scope="session")
def emulated_few_channels(shelf, builds_ahead):
    """A solution with volumes of few channels, likewise."""
    built = builds_ahead.emulated[FEW_CHANNELS].result()
    return emulator.Emulated(shelf.text(FEW_CHANNELS), built)


@pytest.fixture(scope="session")
def emulated_extrema(shelf, builds_ahead):
    """A solution with minima and maxima over channels, likewise; they are asked for on the CPU."""
    emulated = emulator.Emulated(shelf.text(EXTREMA), builds_ahead.emulated[EXTREMA].result())
    emulated.solution["_EXTREMUM_DEVICES"] = ("cpu",)
    return emulated


@pytest.fixture(scope="session")
def emulated_residual(shelf, builds_ahead):
    """A solution whose chain reads tensors of the output's shape, likewise."""
    return emulator.Emulated(shelf.text(RESIDUAL), builds_ahead.emulated[RESIDUAL].result())


@pytest.fixture(scope="session")
def emulated_joined(shelf, builds_ahead):
    """One whose chain reads one such tensor, behind strides of two, likewise."""
    return emulator.Emulated(shelf.text(JOINED), builds_ahead.emulated[JOINED].result())


@pytest.fixture(scope="session")
def emulated_clamped(shelf, builds_ahead):
    """One of volumes that leaves a mask for backward, likewise."""
    return emulator.Emulated(shelf.text(CLAMPED), builds_ahead.emulated[CLAMPED].result())


@pytest.fixture(scope="session")
def emulated_turns(shelf, builds_ahead):
    """A solution whose warpgroups may multiply in turns, likewise."""
    return emulator.Emulated(shelf.text(FULL_BLOCKS), builds_ahead.emulated[FULL_BLOCKS].result())


@pytest.fixture(scope="session")
def emulated_volume_norm_gradients(builds_ahead):
    """The library of GroupNorm's gradients of solutions with volumes, likewise."""
    built = builds_ahead.gradients[VOLUME_NORM_GRADIENTS].result()
    return emulator.EmulatedGradients(built, "group_norm_gradient", volumes=True)


@pytest.fixture(scope="session")
def emulated_residual_gradients(builds_ahead):
    """Its library of gradients through the chain, likewise."""
    built = builds_ahead.gradients[RESIDUAL_GRADIENTS].result()
    return emulator.EmulatedGradients(built, "group_norm_gradient", tensors=True)


@pytest.fixture(scope="session")
def emulated_chained_gradients(builds_ahead):
    """That of solutions with chains of two dimensions, likewise."""
    built = builds_ahead.gradients[CHAINED_GRADIENTS].result()
    return emulator.EmulatedGradients(built, chained=True, tensors=True)


@pytest.fixture(scope="session")
def plain_chained_gradients(emulated_chained_gradients):
    """The same, called without operands of the output's shape."""
    library = copy.copy(emulated_chained_gradients)
    library.chain_backward = without_tensors(library.chain_backward)
    return library


@pytest.fixture(scope="session")
def emulated_sliced_gradients(builds_ahead):
    """The same, in slices of few images."""
    built = builds_ahead.gradients[SLICED_GRADIENTS].result()
    return emulator.EmulatedGradients(built, chained=True, sliced=True)
