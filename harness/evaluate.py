"""One evaluation, start to end: build, copy weights, check, time, and the record of it all."""

import copy
import hashlib
import time

import torch

from harness import bounds, check, clock, devices, timing
from harness import roofline as limits
from harness.candidate import Candidate, require_unchanged
from harness.cases import Case, make_case
from harness.catalog import Problem
from harness.errors import Rejected, UsageError
from harness.outcome import Options, Outcome
from harness.reference import Reference, batch_of, cast
from harness.truth import Expected, expected, loaded

CASES = ("own", "normal", "wide")
_SETTLE_SECONDS = 0.1
_CPU_EAGER_SECONDS = 0.3


class Evaluation:
    """Evaluates one solution; `run` returns the Outcome, whatever the solution does.

    Raises UsageError for an unusable reference or file, EnvironmentUnfit for a missing compiler.
    """

    def __init__(self, problem: Problem, options: Options, progress, start=Candidate):
        self._start = start  # (device, build_dir) -> Candidate
        self.problem, self.options, self.progress = problem, options, progress
        self.device, self.dtype = options.device, options.dtype
        if problem.solution is None or not problem.solution.is_file():
            raise UsageError(f"solution {problem.solution}: no such file")
        source = problem.solution.read_bytes()
        devices.require_build_tools(source.decode(errors="replace"), self.device)
        self.reference = Reference(problem.reference)
        self.outcome = Outcome(solution_sha256=hashlib.sha256(source).hexdigest())
        self.outcome.precision = devices.precision_name(self.device, self.dtype, options.tf32)
        self.last_output: torch.Tensor | None = None
        self.last_state: dict | None = None

    def run(self) -> Outcome:
        """Do it all."""
        with devices.tf32(self.options.tf32):
            if self.device.type == "cuda":
                torch.cuda.set_device(self.device)
            self.model = self.reference.model(self.options.seed)
            self.state = cast_state(self.model, self.dtype)
            self._choose_batch()
            self._count_work()
            try:
                self._judge()
            except Rejected as rejection:
                self.outcome.reasons.append(str(rejection))
            finally:
                self.last_output = None
                clock.release_memory(self.device)
        return self.outcome

    # Before the solution is started ------------------------------------------------------------

    def _choose_batch(self) -> None:
        full, batch = self.reference.full_batch, self.options.batch
        if batch is None and self.device.type == "cpu" and full:
            self.progress.step("choosing a batch for the CPU")
            batch = self._cpu_batch(full)
        self.batch = batch
        self.outcome.problem_batch = full

    def _cpu_batch(self, full: int) -> int:
        """The power of two whose eager forward takes about 0.3 s, at most the problem's own."""
        model, batch = loaded(self.model, self.state, self.device, self.dtype), 1
        while batch < full:
            inputs = cast(self.reference.inputs(0, self.device, batch), self.dtype)
            call = clock.forward_call(model)
            seconds = min(_seconds(call, inputs) for _ in range(2))
            if seconds * 2**0.5 >= _CPU_EAGER_SECONDS:
                break
            batch = min(full, batch * 2)
        return batch

    def _count_work(self) -> None:
        inputs = self.reference.inputs(0, torch.device("meta"), self.batch)
        self.outcome.shape = next(list(v.shape) for v in inputs if torch.is_tensor(v))
        self.outcome.batch = batch_of(inputs)
        self.work = limits.work_of(self.model, inputs, self.dtype)
        self.outcome.reduction_length = self.work.reduction_length

    # With the solution -------------------------------------------------------------------------

    def _judge(self) -> None:
        options = self.options
        self.progress.step("starting the solution's process")
        folder = options.build_dir
        self.cold_build = folder is None or not folder.is_dir() or not any(folder.iterdir())
        with self._start(self.device, folder) as candidate:
            self.candidate = candidate
            candidate.start()
            candidate.limit_time(options.timeout)
            self._build()
            names = (*CASES, "eval") if mode_matters(self.model) else CASES
            for index, name in enumerate(names):
                self.progress.step(f"checking on {name} inputs")
                seed = options.seed + 1000 * (index + 1)
                self.outcome.seeds[name] = seed
                case = make_case(
                    name, self.reference, self.state, self.device, self.dtype, self.batch, seed
                )
                self._check_case(case)
                if self.outcome.reasons:
                    return
            candidate.require_idle()
            if not options.check_only:
                self._time()
            candidate.request("finish", "ending")

    def _build(self) -> None:
        self.progress.step("building")
        seed, begin = self.options.seed, time.monotonic()
        self.outcome.seeds["weights"] = seed
        drawn = self.candidate.load(
            self.problem.solution, self.reference.init_inputs, seed, self.dtype, self.options.tf32
        )
        if self.cold_build:  # a reused folder may hold the build already: no time to report
            self.outcome.build_s = time.monotonic() - begin
        wanted = self.model.state_dict()
        if set(drawn) != set(wanted):
            raise Rejected(
                "state_dict_mismatch",
                f"only in the reference: {sorted(set(wanted) - set(drawn))}, "
                f"only in the solution: {sorted(set(drawn) - set(wanted))}",
            )
        different = [n for n in wanted if not check.same_bits(drawn[n], wanted[n])]
        if different:
            raise Rejected(
                "seeding_mismatch",
                f"the same seed gives other values or shapes than the reference's for {different}",
            )

    def _check_case(self, case: Case) -> None:
        """Run a case and note every reason against it."""
        model = self.model if case.name != "eval" else copy.deepcopy(self.model).eval()
        answer = expected(model, case, self.device, self.options.backward)
        first = case.name == "own"
        ours = self._forward(case, answer, measure_memory=first)
        if ours is not None and first:
            self.outcome.kernelbench = bounds.kernelbench_rule(ours, answer.own)
        if ours is not None and first:
            self._probe_uninitialised(case, answer, ours)

    def _forward(self, case: Case, answer: Expected, **flags) -> torch.Tensor | None:
        """One forward (and backward) with all its checks; returns the output."""
        candidate, options = self.candidate, self.options
        candidate.load_weights(case.state)
        values = [*case.inputs, answer.grad_output] if options.backward else case.inputs
        # The same call again gives the same output: nothing to learn from the earlier tensor.
        resend = self.last_output is not None and not flags.get("poison")
        settle = _SETTLE_SECONDS if flags.get("measure_memory") else 0.0
        reply = candidate.request(
            "forward",
            f"computing {case.name} inputs",
            inputs=candidate.send_inputs(values),
            seed=case.seed,
            max_bytes=answer.own.nbytes,
            backward=options.backward,
            resend_previous=resend,
            training=case.name != "eval",
            settle_s=settle,
            **flags,
        )
        if flags.get("measure_memory") and type(reply.get("peak_bytes")) is int:
            self.outcome.peak_bytes = reply["peak_bytes"]
        check.require_form(reply, answer.own)
        ours = candidate.read(0, _spec(answer.own), self.device)
        offset = ours.nbytes
        if settle:
            later = candidate.read(offset, _spec(answer.own), self.device)
            if not check.same_bits(later, ours):
                raise Rejected(
                    "late_output", f"the output still changed within {settle:g} s of its return"
                )
            offset += ours.nbytes
        where = f"{case.name} inputs"
        precision, length = self.outcome.precision, self.work.reduction_length
        try:
            self.outcome.errors[case.name] = check.require_right(
                ours, answer, precision, length, where
            )
        except Rejected as rejection:
            self.outcome.errors[case.name] = getattr(rejection, "details", {})
            self._note(self._explained(rejection, case, ours, resend))
        self._after_forward(case, answer, reply, offset, resend)
        self.last_output, self.last_state = ours, case.state
        return ours

    def _explained(self, rejection: Rejected, case: Case, ours, resend: bool) -> Rejected:
        """A wrong answer under the name of its cause, where that can be told."""
        if resend and check.same_bits(ours, self.last_output):
            told = f"the previous call's output again; {rejection.message}"
            return Rejected("stale_output", told)
        if rejection.code != "inaccurate":
            return rejection
        guesses = [("stale_weights", "right for the weights before", True, self.last_state)]
        if case.name == "eval":
            told = "right for the training mode, the model is in eval mode"
            guesses = [("mode_ignored", told, True, case.state)]
        for code, told, training, state in guesses:
            if state is None or state is case.state and training == (case.name != "eval"):
                continue
            model = copy.deepcopy(self.model).train(training)
            other = Case(case.name, case.inputs, state, case.seed)
            try:
                answer = expected(model, other, self.device, False)
                precision, length = self.outcome.precision, self.work.reduction_length
                check.require_right(ours, answer, precision, length, "")
            except (Rejected, UsageError):
                continue
            return Rejected(code, f"{told}; {rejection.message}")
        return rejection

    def _after_forward(self, case: Case, answer: Expected, reply: dict, offset: int, resent: bool):
        """What else the call may have done: to its inputs, weights, gradients, earlier output."""
        candidate, where = self.candidate, f"{case.name} inputs"
        try:
            require_unchanged(reply, "forward")
            offset = check.require_same_inputs(candidate, reply, case, offset)
            after, offset = candidate.read_state(reply, offset)
            check.require_right_state(after, case.state, answer, self.outcome.precision)
            if self.options.backward:
                lengths = [self.work.gradient_length(n) for n in answer.gradient_names]
                record = check.require_right_gradients(
                    candidate, reply, offset, answer, self.outcome.precision, lengths, where
                )
                self.outcome.errors[case.name]["gradients"] = record
                offset += sum(value.nbytes for value in answer.own_gradients)
            if resent:
                again = candidate.read(offset, _spec(self.last_output), self.device)
                if not check.same_bits(again, self.last_output):
                    raise Rejected("output_reused", "a later call changed an earlier output")
        except Rejected as rejection:
            self._note(rejection)

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

    # Timing ------------------------------------------------------------------------------------

    def _time(self) -> None:
        options, outcome = self.options, self.outcome
        seed = outcome.seeds["timing"] = options.seed + 9000
        case = make_case(
            "own", self.reference, self.state, self.device, self.dtype, self.batch, seed
        )
        self.last_output = None
        grad_output = None
        if options.backward:
            grad_output = expected(self.model, case, self.device, True).grad_output
        clock.release_memory(self.device)
        self.candidate.load_weights(case.state)

        def look(factor: float, where: str) -> None:
            self._check_timed(case, factor, where)

        measurement = timing.measure_rounds(
            self.candidate,
            list(options.baselines),
            self.model,
            case,
            self.device,
            self.dtype,
            grad_output,
            look,
            self.progress.step,
        )
        outcome.measurement = measurement
        reported = measurement.summary()["solution"]["median"]
        outcome.own_clock_ms = timing.own_clock_ms(self.candidate, reported, look)
        self.progress.step("measuring what the device can do")
        ceilings = limits.ceilings(self.device, outcome.precision)
        work = self.work.with_backward() if options.backward else self.work
        outcome.roofline = limits.roofline(work, ceilings, outcome.precision, reported)
        floor = limits.physical_floor_ms(work, ceilings, self.device)
        if not reported >= floor:
            raise Rejected(
                "impossible_time", f"{reported:.3g} ms, physically at least {floor:.3g} ms"
            )
        if not timing.clocks_agree(reported, outcome.own_clock_ms):
            raise Rejected(
                "clocks_disagree",
                f"{reported:.3g} ms reported, {outcome.own_clock_ms:.3g} ms by the harness's clock",
            )

    def _check_timed(self, case: Case, factor: float, where: str) -> None:
        """Check the output of a timed call, on an input that had not been seen before it."""
        inputs = clock.scaled(case.inputs, factor)
        answer = expected(
            self.model, Case("timed", inputs, case.state, case.seed), self.device, False
        )
        reply = self.candidate.request("fetch", "timing", max_bytes=answer.own.nbytes)
        check.require_form(reply, answer.own)
        ours = self.candidate.read(0, _spec(answer.own), self.device)
        try:
            self.outcome.errors["after_timing"] = check.require_right(
                ours, answer, self.outcome.precision, self.work.reduction_length, where
            )
        except Rejected as rejection:
            raise Rejected("wrong_when_timed", str(rejection)) from None
        finally:
            clock.release_memory(self.device)


def mode_matters(model: torch.nn.Module) -> bool:
    """Whether some layer does something else in eval mode."""
    normalisations = torch.nn.modules.batchnorm._NormBase
    return any(
        isinstance(layer, torch.nn.modules.dropout._DropoutNd)
        or (isinstance(layer, normalisations) and layer.track_running_stats)
        for layer in model.modules()
    )


def cast_state(model: torch.nn.Module, dtype: torch.dtype) -> dict:
    """The model's state_dict as it is after .to(dtype), detached."""
    return {
        name: (value.to(dtype) if value.is_floating_point() else value).detach().clone()
        for name, value in model.state_dict().items()
    }


def _spec(tensor: torch.Tensor) -> dict:
    return {"shape": list(tensor.shape), "dtype": str(tensor.dtype).removeprefix("torch.")}


def _seconds(call, inputs: list) -> float:
    begin = time.perf_counter()
    call(*inputs)
    return time.perf_counter() - begin
