"""The GPU's ways to cheat, crash or hang, each rejected for its own reason; honest ones accepted.

Those that leave the GPU alone are judged three at a time, without the probe of an idle GPU, which
their neighbours would disturb. The others come after them, one by one, and after each of them the
GPU has to be idle and its memory free again.
"""

import multiprocessing
import time
from concurrent.futures import ProcessPoolExecutor, wait

import pytest
import torch

from harness.errors import Rejected
from harness.measure import clock
from harness.measure.device_memory import DeviceMemory
from harness.measure.quiet import QuietProbe
from harness.run import evaluate as evaluation
from tests.fixture_judge import FIXTURES, evaluate, names, running

AT_ONCE = 3
SHORT_SECONDS = 9.0
FREED_WITHIN_S, NOISE_BYTES = 20.0, 1 << 30
WRONG = {
    "changes_stream": "global_state_changed",
    "child_on_device": "background_work",
    "device_assert": "device_error",
    "draws_on_device": "random_state_changed",
    "endless_kernel": "timeout",
    "endless_on_side_stream": "timeout",
    "exhausts_device_memory": "out_of_memory",
    "graph_replays_output": "stale_output",
    "graph_replays_when_timed": "wrong_when_timed",
    "graph_static_output": "output_reused",
    "graph_without_input": "inaccurate",
    "hoards_device_memory": "out_of_memory",
    "illegal_address": "device_error",
    "late_kernel": "late_output",
    "left_busy": "background_work",
    "output_in_workspace": "output_reused",
    "output_on_cpu": "wrong_device",
    "patched_events": "impossible_time",
    "patched_synchronize": "clocks_disagree",
    "side_stream": "late_output",
    "side_stream_when_timed": "wrong_when_timed",
    "slow_with_patched_events": "clocks_disagree",
    "tf32_inside": "inaccurate",
    "tf32_switched_on": "global_state_changed",
}
# Fixtures that need no GPU, but go other ways on one.
ALSO_WRONG = {
    "bf16_inside": "inaccurate",
    "crash_segfault": "crash",
    "mutated_input": "input_mutated",
    "uninitialised": "uninitialised",
    "weights_by_pointer": "stale_weights",
}
ALSO_HONEST = ["cached_weight_transform", "channels_last_output", "flipped_conv2d", "functional"]
ALSO_HONEST += ["im2col", "non_contiguous_output", "one_size"]
TIMED = {name for name, reason in WRONG.items() if reason in ("wrong_when_timed",)}
TIMED |= {"patched_events", "patched_synchronize", "slow_with_patched_events"}
TIMED |= {"cuda_graph", "functional", "layers", "side_stream_joined"}
SHORT = {"endless_kernel", "endless_on_side_stream"}
# What is told of some besides the reason's first word.
TOLD = {
    "endless_kernel": "computing own inputs",
    "endless_on_side_stream": "computing own inputs",
    "hoards_device_memory": "of the device's memory",
    "illegal_address": "illegal memory access",
    "left_busy": "the GPU works on",
}
ALONE = TIMED | SHORT | {"child_on_device", "device_assert", "illegal_address", "left_busy"}
ALONE |= {"exhausts_device_memory", "hoards_device_memory"}
LEFT_BEHIND = {"child_on_device": b"1000.125"}
WRONG_CASES = [("wrong_gpu", name) for name in WRONG] + [("wrong", name) for name in ALSO_WRONG]
HONEST_CASES = [("honest_gpu", name) for name in names("honest_gpu")]
HONEST_CASES += [("honest", name) for name in ALSO_HONEST] + [("honest_norm", "layers")]


class Unwatched:
    """In the place of the probe where neighbours work on the same GPU."""

    def __init__(self, device):
        """Nothing."""

    def require_quiet(self):
        """Nothing."""

    def is_quiet(self):
        return True


def judge(folder: str, name: str):
    """Evaluate a fixture: its outcome and the processes left; runs in a process of the pool."""
    evaluation.QuietProbe = QuietProbe if name in ALONE else Unwatched
    norm = folder.endswith("_norm")
    outcome = evaluate(
        "tiny_norm" if norm else "tiny",
        FIXTURES / folder / f"{name}.py",
        batch=3 if norm else 2,
        device="cuda:0",
        check_only=name not in TIMED,
        baselines=("eager",) if name in TIMED and folder.startswith("honest") else (),
        timeout=SHORT_SECONDS if name in SHORT else 60.0,
    )
    return outcome, running(LEFT_BEHIND.get(name))


def judge_alone(folder: str, name: str):
    """As `judge`, and afterwards the GPU must be as clean as it was before."""
    if not hasattr(judge_alone, "probe"):
        judge_alone.probe = QuietProbe(torch.device("cuda", 0))
    memory = DeviceMemory(torch.device("cuda", 0))
    found = judge(folder, name)
    deadline = time.monotonic() + FREED_WITHIN_S
    while (held := memory.held()) > NOISE_BYTES and time.monotonic() < deadline:
        time.sleep(0.2)
    try:
        judge_alone.probe.require_quiet()
    except Rejected as rejection:
        raise AssertionError(f"after {name}: {rejection}") from None
    return (*found, held)


@pytest.fixture(scope="module")
def verdicts(request):
    """A function that waits for the verdict of a case."""
    spawn = multiprocessing.get_context("spawn")
    wanted = [
        item.callspec.params["case"]
        for item in request.session.items
        if item.fspath == request.fspath and hasattr(item, "callspec")
    ]
    with ProcessPoolExecutor(AT_ONCE, spawn) as pool:
        together = {case: pool.submit(judge, *case) for case in wanted if case[1] not in ALONE}
        wait(together.values())
    pool = ProcessPoolExecutor(1, spawn)
    alone = {case: pool.submit(judge_alone, *case) for case in wanted if case[1] in ALONE}
    yield lambda case: {**together, **alone}[case].result()
    pool.shutdown(cancel_futures=True)


def cases(found: list):
    return pytest.mark.parametrize("case", found, ids=["-".join(case) for case in found])


@pytest.mark.gpu
@cases(WRONG_CASES)
def test_wrong_solution_is_rejected_for_its_own_reason(case, verdicts):
    outcome, left, *held = verdicts(case)
    wanted = {**WRONG, **ALSO_WRONG}[case[1]]
    assert {reason.partition(":")[0] for reason in outcome.reasons} == {wanted}, outcome.reasons
    assert TOLD.get(case[1], "") in outcome.reasons[0]
    assert left == [] and max(held, default=0) <= NOISE_BYTES


@pytest.mark.gpu
@cases(HONEST_CASES)
def test_honest_solution_is_accepted(case, verdicts):
    outcome, *_ = verdicts(case)
    assert outcome.reasons == []
    assert outcome.other_size["verdict"] == ("refused" if case[1] == "one_size" else "right")
    assert ("after_timing" in outcome.errors) == (case[1] in TIMED)


def test_every_fixture_has_its_expected_reason():
    assert names("wrong_gpu") == sorted(WRONG)
    assert set(ALSO_WRONG) <= set(names("wrong")) and set(ALSO_HONEST) <= set(names("honest"))
    text = (FIXTURES.parent.parent / "docs" / "measuring.md").read_text()
    assert [c for c in {*WRONG.values(), *ALSO_WRONG.values()} if f"`{c}`" not in text] == []


@pytest.mark.gpu
def test_a_slow_launch_is_not_the_devices_time():
    """The host takes 2 ms to launch what the device does in some microseconds."""
    x = torch.ones(1024, device="cuda")

    def call(x):
        time.sleep(0.002)
        return x * 2

    stopwatch = clock.Stopwatch(torch.device("cuda"))
    for _ in range(3):  # the first slice teaches it how long launches take
        times, _ = stopwatch.slice(call, lambda scale: [x * scale], [0.5] * 10)
    assert max(times) < 1.0
