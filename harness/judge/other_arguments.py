"""A solution constructed with other arguments than get_init_inputs': right, or made for those.

KernelBench asks for no more than the latter, so that is reported, as `specialised`, and rejects
nothing.
"""

import copy

import torch

from harness.errors import Rejected
from harness.judge import check, wire
from harness.judge.again import construct
from harness.judge.case_check import CaseChecker
from harness.judge.cases import Case, redraw
from harness.judge.drawn import Drawn, cast_state
from harness.judge.reference import Reference, batch_of
from harness.judge.truth import Expected, expected
from harness.measure import roofline

_MOST_GROWTH = 4  # of the output
_LARGEST_PART = 16  # of each dimension behind the channels, where arguments are tried
# What ends the solution's process, or leaves a device that nothing more can be asked of.
_FATAL = ("crash", "exit", "timeout", "device_error")


def others_for(reference: Reference, inputs: list) -> list | None:
    """Constructor arguments, as many as possible unlike get_init_inputs', each changed in turn as
    far as the reference takes it with a part of these inputs; None where none can differ.
    """
    chosen = copy.deepcopy(reference.init_inputs)
    parts = _small_parts(inputs)
    size = _output_size(reference, chosen, parts)
    if size is None:
        return None
    for index, value in enumerate(reference.init_inputs):
        for other in _changes(value):
            tried = [*chosen[:index], other, *chosen[index + 1 :]]
            found = _output_size(reference, tried, parts)
            if found is not None and 0 < found <= _MOST_GROWTH * size:
                chosen = tried
                break
    return chosen if chosen != reference.init_inputs else None


def _changes(value) -> list:
    """Values near an argument's that may do in its place, the likeliest first."""
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int):
        larger = value + 1 if value <= 16 else value * 3 // 2
        return [n for n in (larger, 2 * value, value - 1, value // 2) if n >= 0 and n != value]
    if isinstance(value, float):
        return [1.5 * value if value else 0.5, 0.5 * value]
    if isinstance(value, tuple | list) and value and all(type(n) is int for n in value):
        return [type(value)(n + step for n in value) for step in (1, -1)]
    return []


def _small_parts(inputs: list) -> list:
    """The first sample's corner of the inputs, in fp32 on the CPU."""
    batch, parts = batch_of(inputs), []
    for value in inputs:
        if torch.is_tensor(value):
            if value.dim() >= 2 and value.shape[0] == batch:
                corner = [slice(_LARGEST_PART)] * (value.dim() - 2)
                value = value[(slice(1), slice(None), *corner)]
            value = value.cpu().float() if value.is_floating_point() else value.cpu()
        parts.append(value)
    return parts


def _output_size(reference: Reference, arguments: list, parts: list) -> int | None:
    """Elements of the reference's output, None where it does not take this."""
    try:
        with torch.no_grad():
            return reference.module.Model(*arguments)(*parts).numel()
    except Exception:
        return None


def try_others(checker: CaseChecker, reference: Reference, case: Case) -> bool:
    """Note in the outcome what the solution makes of other arguments, on this case's inputs.

    False where its process cannot be asked anything afterwards. Raises Rejected for what is no way
    of being wrong, but misbehaviour.
    """
    found = checker.outcome.other_arguments = {"verdict": "not tried"}
    if (checker.outcome.second_instance or {}).get("verdict") == "refused":
        found["told"] = "the solution takes no second instance"
        return True
    arguments = others_for(reference, case.inputs)
    if arguments is None:
        found["told"] = "the reference takes no others with these inputs"
        return True
    found["arguments"] = repr(arguments)
    try:
        model = reference.model(case.seed, arguments).train(checker.model.training)
        state = cast_state(model, checker.options.dtype)
        seeded = checker.candidate.same_seed
        state = Drawn(state, case.seed) if seeded else redraw(state, case.seed)
        other = Case("other_arguments", case.inputs, state, case.seed)
        with checker.spent.on("reference"):
            answer = expected(model, other, checker.candidate.device, False)
    except torch.cuda.OutOfMemoryError:
        raise
    except Exception as error:  # what a part has not shown
        found["told"] = f"the reference does not take them: {error}"[:300]
        return True
    length = roofline.work_of(model, case.inputs, checker.options.dtype).reduction_length
    try:
        ours = _output(checker, other, arguments, answer)
        check.require_right(ours, answer, checker.outcome.precision, length, "other arguments")
    except Rejected as rejection:
        if rejection.code == "protocol_violation":
            raise
        found["verdict"], found["told"] = "specialised", str(rejection).partition("\n")[0][:300]
        return rejection.code not in _FATAL
    found["verdict"] = "right"
    checker.candidate.request("let_go", "ending the other instance")
    return True


def _output(checker: CaseChecker, case: Case, arguments: list, answer: Expected) -> torch.Tensor:
    candidate = checker.candidate
    construct(candidate, arguments, case.seed, case.state)
    inputs = candidate.send_inputs(case.inputs)
    candidate.request("hold", "sending inputs", inputs=inputs, backward=False)
    reply = candidate.request(
        "again",
        "calling an instance of other arguments",
        second=True,
        swaps=[],
        seed=case.seed,
        training=checker.model.training,
        backward=False,
        max_bytes=answer.own.nbytes,
    )
    check.require_form(reply, answer.own, answer.layout)
    return candidate.read(0, wire.spec_of(answer.own), candidate.device)
