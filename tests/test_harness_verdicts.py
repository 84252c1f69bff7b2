"""Every wrong-on-purpose solution is rejected for its own reason, every honest one accepted.

Two at a time, each evaluated in a process of its own: evaluations draw from global generators.
"""

import multiprocessing
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest
import torch

from harness.judge import keeper, same_seed
from harness.judge.candidate import Candidate
from harness.judge.weight_names import ALIASES_APART, BY_NAME, BY_VALUES
from tests.fixture_judge import FIXTURES, evaluate, names, running, short_of_memory
from tests.forked_candidate import ForkedCandidate
from tests.sweeps import swept

AT_ONCE = 2
BACKWARD = {
    "no_bias_gradient",
    "no_graph",
    "own_backward",
    "workspace_in_backward",
    "wrong_gradient",
}
TIMED = {
    "batch_and_skip",
    "late_when_timed",
    "layers",
    "lazy_in_the_end",
    "nan_times",
    "negative_times",
    "packed_weights",
    "patched_stopwatch",
    "replays_when_timed",
    "right_only_at_first",
    "skips_calls",
    "slow_with_patched_timer",
}
SHORT = {
    "floods_output",
    "hang_at_import",
    "hang_deaf",
    "hang_in_child",
    "hang_in_constructor",
    "hang_in_destructor",
    "hang_in_escaped_child",
    "hang_in_forward",
    "stops_itself",
}
SHORT_SECONDS = 3.0
COMPILED_SECONDS = {"torch_compiled": 300.0}  # three times, for two instances and other arguments
COPIED = {"aliased_weights": ALIASES_APART, "other_names": BY_VALUES, "other_order": BY_VALUES}
COPIED |= dict.fromkeys(("extra_parameter", "packed_weights"), same_seed.HOW)
TAKES_LONG = ("torch_compiled", "slow_with_patched_timer")
SPECIALISED = dict.fromkeys(("crash_with_other_arguments", "specialised"), "specialised")
LITTLE_MEMORY = {"children_fill_memory", "fills_memory"}
MEMORY_BYTES = 2 << 30
# What a command line on this machine must not hold after the evaluation.
LEFT_BEHIND = {
    "crash_leaving_children": b"1000.875",
    "hang_in_child": b"1000.25",
    "hang_in_escaped_child": b"1000.75",
    "spinning_children": b"while :; do :; done",
}
WRONG = {
    "batch_and_skip": "wrong_when_timed",
    "bf16_inside": "inaccurate",
    "bias_zeroed": "weights_mutated",
    "border_off_by_one": "inaccurate",
    "children_fill_memory": "out_of_memory",
    "closed_files": "exit",
    "construct_error": "construct_error",
    "copies_reference_from_memory": "inaccurate",
    "crash_abort": "crash",
    "crash_at_other_size": "wrong_at_other_size",
    "crash_at_import": "crash",
    "crash_bus": "crash",
    "crash_float": "crash",
    "crash_illegal": "crash",
    "crash_in_thread": "crash",
    "crash_leaving_children": "crash",
    "crash_on_nan": "crash",
    "crash_segfault": "crash",
    "deep_json": "protocol_violation",
    "default_dtype": "global_state_changed",
    "deterministic_mode": "global_state_changed",
    "draws_numbers": "random_state_changed",
    "exit_at_import": "exit",
    "exit_at_once": "exit",
    "exit_in_constructor": "exit",
    "exit_in_destructor": "exit",
    "exit_in_forward": "exit",
    "exit_in_thread": "exit",
    "files_around": "inaccurate",
    "fills_memory": "out_of_memory",
    "fixed_batch": "wrong_at_other_size",
    "fixed_size": "wrong_at_other_size",
    "floods_output": "timeout",
    "flushed_denormals": "global_state_changed",
    "forged_failure": "protocol_violation",
    "forged_prints": "inaccurate",
    "forged_reply": "protocol_violation",
    "forged_with_identity": "inaccurate",
    "fp16_inside": "inaccurate",
    "freed_output": "stale_output",
    "garbage_on_sockets": "protocol_violation",
    "grad_mode_off": "global_state_changed",
    "hang_at_import": "timeout",
    "hang_deaf": "timeout",
    "hang_in_child": "timeout",
    "hang_in_constructor": "timeout",
    "hang_in_destructor": "timeout",
    "hang_in_escaped_child": "timeout",
    "hang_in_forward": "timeout",
    "huge_message": "protocol_violation",
    "import_error": "import_error",
    "infinite_row": "non_finite",
    "infinity": "non_finite",
    "input_reshaped": "input_mutated",
    "keyboard_interrupt": "exit",
    "killed": "crash",
    "kills_group": "crash",
    "kills_keeper": "crash",
    "late_thread": "late_output",
    "late_when_timed": "wrong_when_timed",
    "lazy_in_the_end": "wrong_when_timed",
    "lazy_layout": "wrong_type",
    "masks_garbage": "uninitialised",
    "missing_bias": "inaccurate",
    "more_threads": "global_state_changed",
    "mutated_input": "input_mutated",
    "mutated_weights": "weights_mutated",
    "nan": "non_finite",
    "nan_at_wide": "non_finite",
    "nan_times": "exit",
    "negative_times": "protocol_violation",
    "new_buffer": "weights_mutated",
    "no_bias_gradient": "missing_gradient",
    "no_graph": "missing_gradient",
    "no_model_new": "no_model_new",
    "one_pixel": "inaccurate",
    "out_of_memory": "out_of_memory",
    "output_reused": "output_reused",
    "overlapping_output": "inaccurate",
    "packed_from_own_seed": "inaccurate",
    "packed_stale_output": "stale_output",
    "patched_comparison": "inaccurate",
    "patched_statistics": "inaccurate",
    "patched_stopwatch": "impossible_time",
    "reads_reference": "import_error",
    "reads_tensor_files": "inaccurate",
    "remembers_by_object": "stale_output",
    "remembers_by_sample": "stale_output",
    "remembers_by_sorted_values": "stale_output",
    "remembers_by_version": "stale_output",
    "remembers_for_all_instances": "instances_mixed",
    "remembers_without_weights": "stale_weights",
    "replays_by_pointer": "stale_output",
    "replays_when_timed": "wrong_when_timed",
    "refuses_weights": "state_dict_mismatch",
    "reseeds": "random_state_changed",
    "ring_of_outputs": "output_reused",
    "right_only_at_first": "wrong_when_timed",
    "runtime_error": "runtime_error",
    "saturates": "inaccurate",
    "saves_to_disk": "stale_output",
    "scribbles_later": "late_output",
    "short_outbox": "protocol_violation",
    "skips_calls": "wrong_when_timed",
    "slow_with_patched_timer": "clocks_disagree",
    "slowed_reference": "inaccurate",
    "spinning_children": "background_work",
    "spinning_thread": "background_work",
    "stack_overflow": "runtime_error",
    "stale_output": "stale_output",
    "stale_weights": "stale_weights",
    "stops_itself": "timeout",
    "tensor_subclass": "wrong_type",
    "terminated": "crash",
    "unflipped_kernel": "inaccurate",
    "uninitialised": "uninitialised",
    "uninitialised_workspace": "uninitialised",
    "weights_by_pointer": "stale_weights",
    "weights_of_the_module": "instances_mixed",
    "workspace_in_backward": "backward_overwritten",
    "wrong_device": "wrong_device",
    "wrong_dtype": "wrong_dtype",
    "wrong_gradient": "wrong_gradient",
    "wrong_shape": "wrong_shape",
    "wrong_type": "wrong_type",
    "zero_where_small": "inaccurate",
    "zeros": "inaccurate",
}
WRONG_NORM = {
    "biased_running_variance": "wrong_buffer",
    "ignores_eval": "mode_ignored",
    "no_affine": "inaccurate",
    "no_running_update": "wrong_buffer",
    "running_statistics_used": "inaccurate",
    "uncentred_variance": "inaccurate",
    "updates_in_eval": "wrong_buffer",
}


def start_for(name: str):
    """How a fixture's process is started: the usual way where it tries to get away from that."""
    if name in LITTLE_MEMORY:
        return short_of_memory
    return Candidate if name in LEFT_BEHIND or name.startswith("kills") else ForkedCandidate


def judge(folder: str, name: str, backward: bool = False):
    """Evaluate a fixture: reasons, errors, processes left; runs in a process of the pool."""
    torch.set_num_threads(1)  # two at a time on two cores: more would take each other's
    norm = folder.endswith("_norm")
    outcome = evaluate(
        "tiny_norm" if norm else "tiny",
        FIXTURES / folder / f"{name}.py",
        batch=3 if norm else 2,
        start=start_for(name),
        backward=backward or name in BACKWARD,
        check_only=name not in TIMED,
        timeout=SHORT_SECONDS if name in SHORT else COMPILED_SECONDS.get(name, 60.0),
    )
    return outcome, running(LEFT_BEHIND.get(name))


@pytest.fixture(scope="module")
def verdicts(request):
    """Futures of the verdicts of all selected tests, by folder, name and whether backward."""
    pool = ProcessPoolExecutor(AT_ONCE, multiprocessing.get_context("spawn"))
    wanted = [
        item.callspec.params["case"]
        for item in request.session.items
        if item.fspath == request.fspath
        and "case" in getattr(getattr(item, "callspec", None), "params", ())
    ]
    yield {case: pool.submit(judge, *case) for case in wanted}
    pool.shutdown(cancel_futures=True)


def cases(*folders: str, backward: bool = False):
    """Of each folder every third one, the rest in a sweep, with what takes long."""
    found = [(folder, name, backward) for folder in folders for name in names(folder)]
    kept = [c for place, c in enumerate(found) if place % 3 == 0 and c[1] not in TAKES_LONG]
    marked = swept(found, kept.__contains__)
    return pytest.mark.parametrize("case", marked, ids=[f"{f}-{n}" for f, n, _ in found])


@cases("wrong", "wrong_norm")
def test_wrong_solution_is_rejected_for_its_own_reason(case, verdicts):
    outcome, left = verdicts[case].result()
    folder, name, _ = case
    wanted, reasons = {"wrong": WRONG, "wrong_norm": WRONG_NORM}[folder][name], outcome.reasons
    assert reasons and {reason.partition(":")[0] for reason in reasons} == {wanted}, reasons
    assert left == []


@cases("honest", "honest_norm")
def test_honest_solution_is_accepted(case, verdicts):
    outcome, _ = verdicts[case].result()
    assert outcome.reasons == []
    mode = {"eval", "offset"} if case[0] == "honest_norm" else set()
    timed = {"after_timing", "end"} if case[1] in TIMED else set()
    assert set(outcome.errors) == {"own", "normal", "wide"} | mode | timed
    lost = case[1] == "loses_nan"
    assert outcome.non_finite["verdict"] == ("otherwise" if lost else "as the reference")
    assert (outcome.non_finite["lost"] > 0) == lost and outcome.non_finite["spread"] == 0
    refused = case[1] == "one_size"
    assert outcome.other_size["verdict"] == ("refused" if refused else "right")
    assert outcome.weights_copied == COPIED.get(case[1], BY_NAME)
    assert (outcome.does_not_drop_in is None) == (case[1] != "other_seeding")
    alone = case[1] == "one_instance"
    assert outcome.second_instance["verdict"] == ("refused" if alone else "right")
    special = "not tried" if alone else SPECIALISED.get(case[1], "right")
    assert outcome.other_arguments["verdict"] == special


@cases("honest_norm", backward=True)
def test_zero_bias_gradient_before_batch_norm_is_accepted(case, verdicts):
    outcome, _ = verdicts[case].result()
    assert outcome.reasons == []
    gradients = outcome.errors["own"]["gradients"]
    bias, weight = gradients["conv.bias"], gradients["conv.weight"]
    assert bias["reference_rms"] < 1e-9 * weight["reference_rms"]


def test_syntax_error_is_an_import_error(tmp_path):
    solution = tmp_path / "solution.py"
    solution.write_text("class ModelNew(:\n")
    outcome = evaluate("tiny", solution, batch=2, start=Candidate)
    assert outcome.reasons[0].startswith("import_error: ")


def test_a_stopped_process_uses_no_time_while_a_baseline_is_timed():
    with Candidate(torch.device("cpu")) as candidate:
        # Importing PyTorch keeps a processor busy for seconds.
        while not candidate.processes():
            time.sleep(0.01)
        with candidate.paused():
            everyone = candidate.processes()
            time.sleep(0.05)  # a signal is not always delivered at once
            begin = keeper.cpu_seconds(everyone)
            time.sleep(0.3)
            assert everyone and keeper.cpu_seconds(everyone) == begin
        candidate.start()


def test_every_reason_is_documented():
    text = (FIXTURES.parent.parent / "docs" / "measuring.md").read_text()
    assert [c for c in {*WRONG.values(), *WRONG_NORM.values()} if f"`{c}`" not in text] == []


def test_every_fixture_has_its_expected_reason():
    assert names("wrong") == sorted(WRONG)
    assert names("wrong_norm") == sorted(WRONG_NORM)
    assert len(WRONG) + len(WRONG_NORM) >= 60
    assert len(names("honest")) + len(names("honest_norm")) >= 12


def test_with_kernelbench_other_values_from_the_same_seed_reject(tmp_path):
    for name, reasons in (("other_seeding", ["seeding_mismatch"]), ("aliased_weights", [])):
        outcome = evaluate("tiny", with_kernel(tmp_path, name), batch=2, kernelbench=True)
        assert [reason.partition(":")[0] for reason in outcome.reasons] == reasons


def with_kernel(folder: Path, name: str) -> Path:
    """An honest fixture with what the static checker of KernelBench wants to see."""
    path = folder / f"{name}.py"
    text = (FIXTURES / "honest" / f"{name}.py").read_text()
    path.write_text(text + "\nKERNEL = '__global__', 'load_inline'\n")
    return path


def test_the_static_checkers_errors_reject_with_kernelbench_alone(tmp_path):
    path = FIXTURES / "honest" / "functional.py"
    missing = ["missing a CUDA kernel (__global__)"]
    missing += ["missing a build (load_inline or cpp_extension)"]
    outcome = evaluate("tiny", path, batch=2)
    assert outcome.reasons == [] and outcome.static_checker["errors"] == missing
    warnings = outcome.static_checker["warnings"]
    assert len(warnings) == 2 and warnings[1].startswith("a torch.nn functional: ")
    rejected = evaluate("tiny", path, batch=2, kernelbench=True)
    assert rejected.reasons == [f"static_check: {'; '.join(missing)}"]
    outcome = evaluate("tiny", with_kernel(tmp_path, "functional"), batch=2, kernelbench=True)
    assert outcome.reasons == [] and outcome.static_checker["warnings"] == warnings


def test_without_copies_the_gradients_of_inputs_are_judged():
    path = FIXTURES / "honest" / "packed_weights.py"
    outcome = evaluate("tiny", path, batch=2, backward=True, check_only=False)
    assert outcome.reasons == []
    for case in ("own", "after_timing", "end"):
        assert list(outcome.errors[case]["gradients"]) == ["input 0"]


@pytest.mark.parametrize("name", ["aliased_weights", "other_names"])
def test_gradients_of_other_names_are_found(name):
    outcome = evaluate("tiny", FIXTURES / "honest" / f"{name}.py", batch=2, backward=True)
    assert outcome.reasons == []
    assert list(outcome.errors["own"]["gradients"]) == ["input 0", "conv.weight", "conv.bias"]


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("honest_norm/by_hand", None),
        ("wrong_norm/ignores_eval", "inaccurate"),  # in the mode that is asked for
        ("wrong_norm/running_statistics_used", "mode_ignored"),  # right in that one only
    ],
)
def test_evaluation_in_eval_mode(name, reason):
    timed = {"check_only": False, "baselines": ("eager",)} if reason is None else {}
    outcome = evaluate("tiny_norm", FIXTURES / f"{name}.py", batch=3, eval=True, **timed)
    assert [text.partition(":")[0] for text in outcome.reasons] == [reason] * (reason is not None)
    if reason is None:
        assert set(outcome.errors) == {
            "own",
            "normal",
            "wide",
            "train",
            "after_timing",
            "end",
        }
        assert outcome.measurement.fastest()["baseline"] == "eager"
        assert outcome.non_finite["verdict"] == "as the reference"
    if reason == "mode_ignored":
        assert "right for the eval mode, the model is in training mode" in outcome.reasons[0]
