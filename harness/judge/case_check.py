"""A solution on the cases: answers, and what else a call may have done."""

from dataclasses import replace

import torch

from harness.copied import copied
from harness.errors import Rejected, UsageError
from harness.judge import bounds, check, gradient_check, same_seed, wire
from harness.judge.candidate import Candidate, require_unchanged
from harness.judge.cases import Case
from harness.judge.joined import layout_of
from harness.judge.same_seed import without_parameters
from harness.judge.truth import Expected, expected, loaded
from harness.measure.roofline import Work
from harness.run.outcome import Options, Outcome
from harness.run.spent import Spent

_SETTLE_SECONDS = 0.1
_KEPT_OUTPUTS, _KEPT_BYTES = 4, 512 << 20


class CaseChecker:
    """Runs a solution on cases and notes in the outcome every reason against it.

    The solution's process keeps its last outputs, as many as fit into 512 MiB, four at most and
    one at least: `_earlier` holds what they were, and each later call must leave them so.
    """

    def __init__(
        self,
        candidate: Candidate,
        model: torch.nn.Module,
        options: Options,
        outcome: Outcome,
        work: Work,
        spent: Spent,
    ):
        self.candidate, self.model, self.options = candidate, model, options
        self.outcome, self.work, self.spent = outcome, work, spent
        self.elements = 0  # of the output
        self._earlier: list[torch.Tensor] = []
        self._last_state: dict | None = None

    def check(self, case: Case, answer: Expected) -> None:
        """Run a case; the first one also once more with NaN in all fresh memory."""
        self.elements = answer.own.numel()
        first = case.name == "own"
        ours = self._forward(case, answer, measure_memory=first)
        if first:
            self.outcome.kernelbench = bounds.kernelbench_rule(ours, answer.own)
            self._probe_uninitialised(case, answer, ours)

    def check_other_size(self, case: Case) -> None:
        """Run a case of another size than the evaluated one, which a solution may refuse to take.

        An exception is such a refusal; a wrong answer or a crash is none.
        """
        found = self.outcome.other_size = {"shape": _shape_of(case.inputs), "verdict": "right"}
        if found["shape"] == self.outcome.shape:
            found["verdict"], found["told"] = "not tried", "there is nothing to make smaller"
            return
        try:
            answer = self.expected(case)
        except torch.cuda.OutOfMemoryError:
            raise
        except Exception as error:
            found["verdict"] = "not tried"
            found["told"] = f"the reference takes no such input: {error}"[:300]
            return
        try:
            self._forward(case, answer)
        except Rejected as rejection:
            if rejection.code == "runtime_error":
                found["verdict"], found["told"] = "refused", rejection.message[:300]
                return
            self._note(rejection)
        found["errors"] = self.outcome.errors.pop(case.name, {})
        if self.outcome.reasons:
            found["verdict"] = "wrong"
            told = f"wrong_at_other_size: input {found['shape']}: "
            self.outcome.reasons = [told + reason for reason in self.outcome.reasons]

    def look_at_non_finite(self, case: Case) -> None:
        """Note what becomes of NaN and infinities in an input, beside what PyTorch makes of them.

        For information: a fast algorithm may honestly spread them further than the reference does,
        and a solution may refuse them by an exception; a crash rejects.
        """
        candidate, found = self.candidate, {"verdict": "as the reference"}
        self.outcome.non_finite = found
        with self.spent.on("reference"), torch.no_grad():
            model = loaded(self.model, case.state, candidate.device, self.options.dtype)
            own = model(*case.inputs)
        candidate.load_weights(case.state)
        try:
            reply = candidate.request(
                "forward",
                f"computing {case.name} inputs",
                inputs=candidate.send_inputs(case.inputs),
                seed=case.seed,
                max_bytes=own.nbytes,
                training=self.training(case),
            )
        except Rejected as rejection:
            if rejection.code != "runtime_error":
                raise
            found["verdict"], found["told"] = "refused", rejection.message[:300]
            return
        check.require_form(reply, own, layout_of(model))
        ours = candidate.read(0, wire.spec_of(own), candidate.device)
        finite, wanted = torch.isfinite(ours), torch.isfinite(own)
        found["elements"] = int((~wanted).sum())
        found["lost"] = int((finite & ~wanted).sum())
        found["spread"] = int((wanted & ~finite).sum())
        if found["lost"] or found["spread"]:
            found["verdict"] = "otherwise"

    def forget_outputs(self) -> None:
        """The solution's process has let go of them, too."""
        self._earlier = []

    # One call ----------------------------------------------------------------------------------

    def expected(
        self, case: Case, training: bool | None = None, backward: bool | None = None
    ) -> Expected:
        """The truth and PyTorch's own answer, by default in the case's mode, and with gradients
        where the evaluation has them.
        """
        model = self.model
        training = self.training(case) if training is None else training
        backward = self.options.backward if backward is None else backward
        if training != model.training:
            model = copied(model).train(training)
        with self.spent.on("reference"):
            answer = expected(model, case, self.candidate.device, backward)
        return without_parameters(answer) if self.candidate.same_seed else answer

    def require_right(
        self, ours: torch.Tensor, answer: Expected, where: str, magnified: float = 1.0
    ) -> dict:
        """Raise Rejected unless an output is within the bounds; returns the errors' record."""
        precision, length = self.outcome.precision, self.work.reduction_length
        return check.require_right(ours, answer, precision, length, where, magnified)

    def require_right_gradients(
        self, reply: dict, offset: int, answer: Expected, where: str, looked_at: bool = True
    ) -> tuple[dict, int]:
        """As `require_right`, for the gradients that a reply announces at `offset`: the errors'
        record and the offset behind them. Not `looked_at`, only their form must be right.
        """
        lengths = [self.work.gradient_length(name) for name in answer.gradient_names]
        found, record = gradient_check.sent_gradients(reply, answer, where), {}
        if looked_at:
            record = gradient_check.require_right_gradients(
                self.candidate, found, offset, answer, self.outcome.precision, lengths, where
            )
        return record, offset + gradient_check.sent_bytes(found)

    def training(self, case: Case) -> bool:
        """The mode of this case: the evaluation's, unless the case is named after one."""
        return {"train": True, "eval": False}.get(case.name, self.model.training)

    def _forward(
        self, case: Case, answer: Expected, measure_memory: bool = False, poison: bool = False
    ) -> torch.Tensor:
        """One forward (and backward) with all its checks; returns the output."""
        candidate, options = self.candidate, self.options
        candidate.load_weights(case.state)
        values = [*case.inputs, answer.grad_output] if options.backward else case.inputs
        # The same call again gives the same output: nothing to learn from the earlier tensor.
        resend = bool(self._earlier) and not poison
        settle = _SETTLE_SECONDS if measure_memory else 0.0
        keep = max(1, min(_KEPT_OUTPUTS, _KEPT_BYTES // max(answer.own.nbytes, 1)))
        reply = candidate.request(
            "forward",
            f"computing {case.name} inputs",
            inputs=candidate.send_inputs(values),
            seed=case.seed,
            max_bytes=answer.own.nbytes,
            backward=options.backward,
            keep=keep,
            resend_kept=resend,
            training=self.training(case),
            settle_s=settle,
            measure_memory=measure_memory,
            poison=poison,
        )
        if measure_memory:
            self._note_memory(reply)
        check.require_form(reply, answer.own, answer.layout)
        spec = wire.spec_of(answer.own)
        ours = candidate.read(0, spec, candidate.device)
        offset = ours.nbytes
        if settle:
            later = candidate.read(offset, spec, candidate.device)
            if not check.same_bits(later, ours):
                raise Rejected(
                    "late_output", f"the output still changed within {settle:g} s of its return"
                )
            offset += ours.nbytes
        try:
            self.outcome.errors[case.name] = self._require_right(ours, answer, case)
        except Rejected as rejection:
            self.outcome.errors[case.name] = getattr(rejection, "details", {})
            self._note(self._explained(rejection, case, ours, resend))
        self._after_forward(case, answer, reply, offset, resend)
        self._earlier = [*self._earlier, ours][-keep:]
        self._last_state = case.state
        return ours

    def _note_memory(self, reply: dict) -> None:
        """The peak of the call, and of its two passes where there are two."""
        named = {"forward": "peak_bytes", "backward": "backward_peak_bytes"}
        found = {name: reply.get(key) for name, key in named.items()}
        found = {name: value for name, value in found.items() if type(value) is int}
        self.outcome.peak_bytes = max(found.values(), default=None)
        self.outcome.peak_by_pass = found if self.options.backward else {}

    def _require_right(self, ours: torch.Tensor, answer: Expected, case: Case) -> dict:
        return self.require_right(ours, answer, f"{case.name} inputs", case.magnified)

    def _explained(self, rejection: Rejected, case: Case, ours, resend: bool) -> Rejected:
        """A wrong answer under the name of its cause, where that can be told."""
        if resend and any(check.same_bits(ours, output) for output in self._earlier):
            told = f"an earlier call's output again; {rejection.message}"
            return Rejected("stale_output", told)
        if rejection.code != "inaccurate":
            return rejection
        training, state = self.training(case), self._last_state
        code, told = "stale_weights", "right for the weights before"
        if case.name in ("train", "eval"):
            modes = {True: "training", False: "eval"}
            code, state = "mode_ignored", case.state
            told = (
                f"right for the {modes[not training]} mode, the model is in {modes[training]} mode"
            )
            training = not training
        elif state is None or state is case.state:
            return rejection
        model = copied(self.model).train(training)
        other = replace(case, state=state)
        try:
            with self.spent.on("reference"):
                answer = expected(model, other, self.candidate.device, False)
            self._require_right(ours, answer, case)
        except (Rejected, UsageError):
            return rejection
        return Rejected(code, f"{told}; {rejection.message}")

    def _after_forward(self, case: Case, answer: Expected, reply: dict, offset: int, resent: bool):
        """What else the call may have done: to inputs, weights, gradients, earlier outputs."""
        candidate, where = self.candidate, f"{case.name} inputs"
        try:
            require_unchanged(reply, "forward")
            offset = check.require_same_inputs(candidate, reply, case, offset)
            after, offset = candidate.read_state(reply, offset)
            self._require_right_state(after, case, answer)
            if self.options.backward:
                plain = case.magnified == 1  # the other one is there for the forward
                record, offset = self.require_right_gradients(reply, offset, answer, where, plain)
                if plain:
                    self.outcome.errors[case.name]["gradients"] = record
            for output in self._earlier if resent else ():
                again = candidate.read(offset, wire.spec_of(output), candidate.device)
                if not check.same_bits(again, output):
                    raise Rejected("output_reused", "a later call changed an earlier output")
                offset += output.nbytes
        except Rejected as rejection:
            self._note(rejection)

    def _require_right_state(self, after: dict, case: Case, answer: Expected) -> None:
        precision = self.outcome.precision
        if self.candidate.same_seed:
            before, own = self.candidate.drawn, self.candidate.parameters
            same_seed.require_right_state(after, before, own, answer, precision, case.magnified)
        else:
            check.require_right_state(after, case.state, answer, precision, case.magnified)

    def _probe_uninitialised(self, case: Case, answer: Expected, ours: torch.Tensor) -> None:
        """The same call with NaN in all fresh memory: what was never written shows as NaN."""
        if check.first_non_finite(ours) is not None:
            return
        outcome = self.outcome
        known, errors = outcome.reasons, outcome.errors
        outcome.reasons, outcome.errors = [], {}
        try:
            self._forward(case, answer, poison=True)
        except Rejected as rejection:
            outcome.reasons.append(str(rejection))
        found, outcome.errors = outcome.reasons, errors
        outcome.reasons = known or found
        wrong = ("non_finite",) if known else ("non_finite", "inaccurate")
        garbage = [reason for reason in found if reason.startswith(wrong)]
        if garbage:
            text = garbage[0].partition(": ")[2]
            message = f"elements that are never written, seen with NaN in fresh memory: {text}"
            others = [reason for reason in known if not reason.startswith("inaccurate")]
            outcome.reasons = [f"uninitialised: {message}", *others]

    def _note(self, rejection: Rejected) -> None:
        if str(rejection) not in self.outcome.reasons:
            self.outcome.reasons.append(str(rejection))


def _shape_of(inputs: list) -> list[int]:
    return next(list(value.shape) for value in inputs if torch.is_tensor(value))
