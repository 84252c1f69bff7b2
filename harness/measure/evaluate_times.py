"""How an evaluation times a solution that was right: rounds, own clock, floor, passes."""

from harness.errors import Rejected
from harness.judge import check, same_seed, wire
from harness.judge.cases import Case, make_case
from harness.judge.truth import Expected, expected
from harness.measure import clock, cold, convolution_baseline, own_clock, passes, timing
from harness.measure import roofline as limits
from harness.measure.pass_times import measure_parts, require_possible


class Times:
    """The timing of `Evaluation`, whose candidate, checker, model and options it uses."""

    def time(self) -> None:
        """Time the solution and the baselines; raises Rejected for what the solution does wrong."""
        options, outcome = self.options, self.outcome
        seed = outcome.seeds["timing"] = options.seed + 9000
        case = make_case(
            "own", self.reference, self.state, self.device, self.dtype, self.batch, seed
        )
        self.checker.forget_outputs()
        grad_output = None
        if options.backward:
            with self.spent.on("reference"):
                grad_output = expected(self.model, case, self.device, True).grad_output
        clock.release_memory(self.device)
        self.candidate.load_weights(case.state)

        def look(factor: float, where: str) -> None:
            self._check_timed(case, factor, where)

        def look_at_gradients(factor: float, where: str) -> None:
            self._check_timed_gradients(case, factor, where)

        def measure(part: str | None, names: list[str], made=None, own=None) -> timing.Measurement:
            is_backward = part == passes.BACKWARD
            found = timing.measure_rounds(
                self.candidate,
                names,
                self.model,
                case,
                self.device,
                self.dtype,
                grad_output,
                look_at_gradients if is_backward else look,
                self.progress.step
                if part is None
                else lambda t: self.progress.step(f"{part}: {t}"),
                self.quiet.require_quiet,
                part,
                made,
                own,
            )
            self.spent.add("baselines", found.baseline_s)
            return found

        def own_clock_again(reported: float) -> float:
            inputs = self.candidate.send_inputs([*case.inputs, grad_output])
            training = self.model.training
            arguments = {"inputs": inputs, "part": passes.BOTH, "training": training}
            self.candidate.request("prepare_timing", "timing", **arguments)
            clock_of_both = own_clock.OwnClock(self.candidate, self.checker.elements)
            return clock_of_both.settle(reported, look).milliseconds

        given = options.baselines, self.model, case, self.device, outcome.precision
        with self.spent.on("baselines"):
            baselines, outcome.baselines_not_offered, failed = convolution_baseline.to_time(
                *given, self.work.reduction_length
            )
        own = own_clock.OwnClock(self.candidate, self.checker.elements)
        measurement = measure(None, baselines, own=own)
        measurement.baseline_errors |= failed
        outcome.measurement = measurement
        reported = measurement.summary()["solution"]["median"]
        burst = own.settle(reported, look)
        outcome.own_clock_ms = burst.milliseconds
        self._check_sample(case, burst)
        self.progress.step("measuring what the device can do")
        work = self.work.with_backward() if options.backward else self.work
        outcome.roofline, ceilings = limits.measured_roofline(
            work, self.device, outcome.precision, reported
        )
        require_possible("", reported, work, ceilings, self.device)
        if not own_clock.clocks_agree(reported, outcome.own_clock_ms):
            raise Rejected(
                "clocks_disagree",
                f"{reported:.3g} ms reported, {outcome.own_clock_ms:.3g} ms by the harness's clock",
            )
        cold.measure(
            measurement,
            self.candidate,
            baselines,
            self.model,
            case,
            self.device,
            self.dtype,
            grad_output,
            look,
            self.progress.step,
            self.spent,
            self.quiet.require_quiet,
        )
        if cold_entry := measurement.cold_summary().get("solution"):
            told = "a cold call "
            require_possible(told, cold_entry["median"], work, ceilings, self.device)
        if options.backward:
            names = [name for name in baselines if name in measurement.rounds]
            outcome.passes = measure_parts(
                measure,
                names,
                self.work,
                outcome.precision,
                self.device,
                outcome.own_clock_ms,
                own_clock_again,
            )

    def _check_timed(self, case: Case, factor: float, where: str) -> None:
        """Check the output of a timed call, on an input that had not been seen before it."""
        answer = self._timed_answer(case, factor)
        reply = self.candidate.request("fetch", "timing", max_bytes=answer.own.nbytes)
        check.require_form(reply, answer.own, answer.layout)
        ours = self.candidate.read(0, wire.spec_of(answer.own), self.device)
        try:
            found = check.require_right(
                ours, answer, self.outcome.precision, self.work.reduction_length, where
            )
            # Those of a timed backward stay, whatever is looked at after it.
            self.outcome.errors["after_timing"] = (
                self.outcome.errors.get("after_timing", {}) | found
            )
        except Rejected as rejection:
            raise Rejected("wrong_when_timed", str(rejection)) from None
        finally:
            clock.release_memory(self.device)

    def _check_timed_gradients(self, case: Case, factor: float, where: str) -> None:
        """Likewise the gradients of a timed backward."""
        answer = self._timed_answer(case, factor, backward=True)
        reply = self.candidate.request("fetch", "timing", max_bytes=0)
        try:
            record, _ = self.checker.require_right_gradients(reply, 0, answer, where)
            self.outcome.errors["after_timing"]["gradients"] = record
        except Rejected as rejection:
            raise Rejected("wrong_when_timed", str(rejection)) from None
        finally:
            clock.release_memory(self.device)

    def _check_sample(self, case: Case, burst: own_clock.Burst) -> None:
        """Check what came back before the clock stopped in the run that counts."""
        answer = self._timed_answer(case, burst.factor)
        precision, length = self.outcome.precision, self.work.reduction_length
        check.require_sample(burst.sample, burst.indices, answer, precision, length)

    def _timed_answer(self, case: Case, factor: float, backward: bool = False) -> Expected:
        inputs = clock.scaled(case.inputs, factor)
        with self.spent.on("reference"):
            timed = Case("timed", inputs, case.state, case.seed)
            answer = expected(self.model, timed, self.device, backward)
        return same_seed.without_parameters(answer) if self.candidate.same_seed else answer
