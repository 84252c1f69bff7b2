"""Every wrong-on-purpose solution is rejected for its own reason, every honest one accepted."""

import functools
from pathlib import Path

import pytest
import torch

from harness.candidate import Candidate
from harness.catalog import Problem
from harness.evaluate import Evaluation
from harness.outcome import Options
from harness.progress import Silent

FIXTURES = Path(__file__).parent / "fixtures"
BACKWARD = {"no_bias_gradient", "wrong_gradient", "no_graph"}
TIMED = {"right_only_at_first", "replays_when_timed", "slow_with_patched_timer"}
SHORT = {"hang_at_import", "hang_in_forward", "hang_in_child"}
WRONG = {
    "bf16_inside": "inaccurate",
    "border_off_by_one": "inaccurate",
    "construct_error": "construct_error",
    "crash_abort": "crash",
    "crash_segfault": "crash",
    "exit_at_import": "exit",
    "exit_in_forward": "exit",
    "extra_parameter": "state_dict_mismatch",
    "forged_prints": "inaccurate",
    "forged_reply": "protocol_violation",
    "fp16_inside": "inaccurate",
    "garbage_on_sockets": "protocol_violation",
    "hang_at_import": "timeout",
    "hang_in_child": "timeout",
    "hang_in_forward": "timeout",
    "import_error": "import_error",
    "infinity": "non_finite",
    "missing_bias": "inaccurate",
    "mutated_input": "input_mutated",
    "mutated_weights": "weights_mutated",
    "nan": "non_finite",
    "no_bias_gradient": "missing_gradient",
    "no_graph": "missing_gradient",
    "no_model_new": "no_model_new",
    "one_pixel": "inaccurate",
    "other_names": "state_dict_mismatch",
    "other_seeding": "seeding_mismatch",
    "out_of_memory": "out_of_memory",
    "output_reused": "output_reused",
    "patched_comparison": "inaccurate",
    "replays_when_timed": "wrong_when_timed",
    "right_only_at_first": "wrong_when_timed",
    "runtime_error": "runtime_error",
    "slow_with_patched_timer": "clocks_disagree",
    "stale_output": "stale_output",
    "stale_weights": "stale_weights",
    "tensor_subclass": "wrong_type",
    "unflipped_kernel": "inaccurate",
    "uninitialised": "uninitialised",
    "wrong_device": "wrong_device",
    "wrong_dtype": "wrong_dtype",
    "wrong_gradient": "wrong_gradient",
    "wrong_shape": "wrong_shape",
    "wrong_type": "wrong_type",
    "zeros": "inaccurate",
}
WRONG_NORM = {
    "biased_running_variance": "wrong_buffer",
    "no_affine": "inaccurate",
    "no_running_update": "wrong_buffer",
    "running_statistics_used": "inaccurate",
}


class Spares:
    """Hands out candidates and starts the next one meanwhile: importing PyTorch takes seconds."""

    def __init__(self):
        self.next = None

    def __call__(self, device, build_dir=None):
        ready = self.next or Candidate(device, build_dir)
        self.next = Candidate(device, build_dir)
        return ready


@pytest.fixture(scope="module")
def spares():
    pool = Spares()
    yield pool
    if pool.next is not None:
        pool.next.close()


@pytest.fixture
def judge(spares):
    return functools.partial(evaluate, spares)


def evaluate(spares: Spares, reference: str, solution: Path, batch: int, **options):
    problem = Problem(reference, reference, FIXTURES / f"{reference}.py", solution)
    settings = {"check_only": True, "baselines": (), "timeout": 60.0, **options}
    device = torch.device("cpu")
    chosen = Options(device=device, batch=batch, **settings)
    return Evaluation(problem, chosen, Silent(), start=spares).run()


def names(folder: str) -> list[str]:
    return sorted(path.stem for path in (FIXTURES / folder).glob("*.py"))


@pytest.mark.parametrize("name", names("wrong"))
def test_wrong_solution_is_rejected_for_its_own_reason(name, judge):
    outcome = judge(
        "tiny",
        FIXTURES / "wrong" / f"{name}.py",
        batch=2,
        backward=name in BACKWARD,
        check_only=name not in TIMED,
        timeout=4.0 if name in SHORT else 60.0,
    )
    codes = [reason.partition(":")[0] for reason in outcome.reasons]
    assert codes and codes[0] == WRONG[name], outcome.reasons
    assert set(codes) == {WRONG[name]}, outcome.reasons


@pytest.mark.parametrize("name", names("wrong_norm"))
def test_wrong_batch_norm_is_rejected_for_its_own_reason(name, judge):
    outcome = judge("tiny_norm", FIXTURES / "wrong_norm" / f"{name}.py", batch=3)
    assert outcome.reasons and outcome.reasons[0].startswith(WRONG_NORM[name]), outcome.reasons


@pytest.mark.parametrize("name", names("honest"))
def test_honest_solution_is_accepted(name, judge):
    outcome = judge("tiny", FIXTURES / "honest" / f"{name}.py", batch=2)
    assert outcome.reasons == []
    assert set(outcome.errors) == {"own", "normal", "wide"}


@pytest.mark.parametrize("backward", [False, True])
def test_honest_batch_norm_is_accepted(backward, judge):
    """With backward: the convolution's bias has a true gradient of zero."""
    solution = FIXTURES / "honest_norm" / "by_hand.py"
    outcome = judge("tiny_norm", solution, batch=3, backward=backward)
    assert outcome.reasons == []
    if backward:
        bias = outcome.errors["own"]["gradients"]["conv.bias"]
        weight = outcome.errors["own"]["gradients"]["conv.weight"]
        assert bias["reference_rms"] < 1e-9 * weight["reference_rms"]


def test_syntax_error_is_an_import_error(tmp_path, judge):
    solution = tmp_path / "solution.py"
    solution.write_text("class ModelNew(:\n")
    assert judge("tiny", solution, batch=2).reasons[0].startswith("import_error: ")


def test_every_reason_is_documented():
    text = (FIXTURES.parent.parent / "harness" / "README.md").read_text()
    assert [c for c in {*WRONG.values(), *WRONG_NORM.values()} if f"`{c}`" not in text] == []


def test_every_fixture_has_its_expected_reason():
    assert names("wrong") == sorted(WRONG)
    assert names("wrong_norm") == sorted(WRONG_NORM)
