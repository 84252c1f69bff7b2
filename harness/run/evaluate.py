"""One evaluation, start to end: build, copy weights, check, time, and the record of it all."""

import gc
import hashlib
import importlib
import time

import torch

from generator import static_rules
from harness import devices
from harness.catalog import Problem
from harness.errors import EnvironmentUnfit, Rejected, UsageError
from harness.judge import check, same_seed, wire
from harness.judge.again import CallsAgainChecker
from harness.judge.candidate import Candidate
from harness.judge.case_check import CaseChecker
from harness.judge.cases import CASES, Case, make_case, mode_matters, statistics_matter
from harness.judge.drawn import Drawn, cast_state
from harness.judge.joined import join_outputs
from harness.judge.one_answer import NoOneAnswer
from harness.judge.other_arguments import try_others
from harness.judge.reference import Reference, batch_of, cast
from harness.judge.truth import Expected, NotFinite, loaded
from harness.judge.weight_names import matched
from harness.measure import clock
from harness.measure import roofline as limits
from harness.measure.evaluate_times import Times
from harness.measure.quiet import QuietProbe
from harness.run.outcome import Options, Outcome
from harness.run.spent import Spent

_CPU_EAGER_SECONDS = 0.3
OTHER_SEEDING = "other values from the same seed"
# Cases that are left out for these errors: where numbers that large overflow there is nothing to
# compare, nor where the other mode is a random one.
_LEFT_OUT = {
    "wide": NotFinite,
    "offset": UsageError,
    "train": NoOneAnswer,
    "eval": NoOneAnswer,
}
_SEED_STEPS = {"own": 1000, "normal": 2000, "wide": 3000, "eval": 4000, "other_size": 5000}
_SEED_STEPS |= {"non_finite": 6000, "train": 7000, "offset": 8000, "end": 10000}


class Evaluation(Times):
    """Evaluates one solution; `run` returns the Outcome, whatever the solution does.

    Raises UsageError for an unusable reference or file, EnvironmentUnfit for a missing compiler or
    a GPU that something else uses.
    """

    def __init__(self, problem: Problem, options: Options, progress, start=Candidate):
        self.spent = Spent()
        self._start = start  # (device, build_dir) -> Candidate
        self.problem, self.options, self.progress = problem, options, progress
        self.device, self.dtype = options.device, options.dtype
        if problem.solution is None or not problem.solution.is_file():
            raise UsageError(f"solution {problem.solution}: no such file")
        source = problem.solution.read_bytes()
        devices.require_build_tools(source.decode(errors="replace"), self.device)
        self.reference = Reference(problem.reference)
        self.outcome = Outcome(solution_sha256=hashlib.sha256(source).hexdigest())
        found = static_rules.findings(source.decode(errors="replace"), wire.dtype_name(self.dtype))
        self.outcome.static_checker = {"errors": found.errors, "warnings": found.warnings}
        self.outcome.precision = devices.precision_name(self.device, self.dtype, options.tf32)

    def run(self) -> Outcome:
        """Do it all."""
        with devices.tf32(self.options.tf32):
            if self.device.type == "cuda":
                torch.cuda.set_device(self.device)
            self.model = self.reference.model(self.options.seed).train(not self.options.eval)
            self.state = cast_state(self.model, self.dtype)
            self._import_compiler()
            self._choose_batch()
            self._count_work()
            try:
                self._judge()
            except Rejected as rejection:
                self.outcome.reasons.append(str(rejection))
                if rejection.code == "background_work" and not self.quiet.is_quiet():
                    told = "the GPU is busy although the solution's processes have ended"
                    raise EnvironmentUnfit(f"{told}: something else uses it") from None
            finally:
                self.checker = self.quiet = None
                clock.release_memory(self.device)
        self.outcome.seconds = self.spent.summary()
        return self.outcome

    # Before the solution is started ------------------------------------------------------------

    def _import_compiler(self) -> None:
        """Import what torch.compile is made of, two seconds' worth, which that baseline needs."""
        if not self.options.check_only and any("compile" in b for b in self.options.baselines):
            with self.spent.on("baselines"):
                importlib.import_module("torch._dynamo")
        gc.freeze()  # modules stay: nobody need look at them whenever memory is released

    def _choose_batch(self) -> None:
        full, batch = self.reference.full_batch, self.options.batch
        if batch is None and self.device.type == "cpu" and full:
            self.progress.step("choosing a batch for the CPU")
            with self.spent.on("reference"):
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
        try:
            self.work = limits.work_of(self.model, inputs, self.dtype)
        except UsageError:  # it needs data
            inputs = self.reference.inputs(0, self.device, self.batch)
            self.work = limits.work_of(self.model, inputs, self.dtype)
        self.outcome.reduction_length = self.work.reduction_length
        if self.work.layout is not None:
            self.reference.joins = True
            self.outcome.outputs = self.work.layout["structure"]
            join_outputs(self.model)

    # With the solution -------------------------------------------------------------------------

    def _judge(self) -> None:
        options = self.options
        errors = self.outcome.static_checker["errors"]
        if errors and options.kernelbench:
            raise Rejected("static_check", "; ".join(errors))
        self.progress.step("starting the solution's process")
        folder = options.build_dir
        self.cold_build = folder is None or not folder.is_dir() or not any(folder.iterdir())
        self.quiet = QuietProbe(self.device)
        with self._start(self.device, folder) as candidate:
            self.candidate = candidate
            self.checker = CaseChecker(
                candidate, self.model, options, self.outcome, self.work, self.spent
            )
            try:
                own = self._case("own")
                answer = self.checker.expected(own)  # meanwhile the process starts
                candidate.start()
                candidate.limit_time(options.timeout)
                self._build()
                if candidate.same_seed:
                    own.state, answer = self.state, same_seed.without_parameters(answer)
                self._check(own, answer)
                if not self.outcome.reasons and not options.check_only:
                    self.time()
                    self._check_at_end()
                if not self.outcome.reasons:
                    self._try_other_size()
                if not self.outcome.reasons:
                    self.progress.step("checking on NaN and Inf")
                    self.checker.look_at_non_finite(self._case("non_finite"))
                    if self._try_other_arguments():
                        candidate.request("finish", "ending")
            except torch.cuda.OutOfMemoryError:
                candidate.device_memory.blame()
                raise
            finally:
                built = self.outcome.build_s or 0.0
                self.spent.add("solution", candidate.busy_s - built)

    def _build(self) -> None:
        self.progress.step("building")
        seed = self.options.seed
        self.outcome.seeds["weights"] = seed
        drawn = self.candidate.load(
            self.problem.solution,
            self.reference.init_inputs,
            seed,
            self.dtype,
            self.options.tf32,
            self.reference.joins,
        )
        if self.cold_build:  # a reused folder may hold the build already: no time to report
            self.outcome.build_s = self.candidate.busy_s
            self.spent.add("build", self.candidate.busy_s)
        wanted = self.model.state_dict()
        found = matched(wanted, drawn, self.candidate.aliases)
        if found is None:
            self.outcome.weights_copied = same_seed.HOW
            self.candidate.same_seed = True
            self.candidate.name_weights({}, [])
            self.state = Drawn(self.state, seed)
            return
        self.outcome.weights_copied, names = found
        self.candidate.name_weights(names, [name for name, _ in self.model.named_parameters()])
        different = [n for n in drawn if not check.same_bits(drawn[n], wanted[names[n]])]
        if different and self.options.kernelbench:
            raise Rejected("seeding_mismatch", f"{OTHER_SEEDING}, for {different}")
        if different:
            self.outcome.does_not_drop_in = f"{OTHER_SEEDING}, for {different}"

    def _check(self, own: Case, answer: Expected) -> None:
        """Run the cases; the first that gives reasons against the solution is the last.

        Raises UsageError for a reference whose output is nearly constant in all of them.
        """
        useful = False
        for name in self._case_names(answer.constant):
            self.progress.step(f"checking on {name} inputs")
            try:
                case = own if name == "own" else self._case(name)
                answer = answer if name == "own" else self.checker.expected(case)
            except UsageError as error:
                if not isinstance(error, _LEFT_OUT.get(name, ())):
                    raise
                continue
            if answer.constant:
                self.outcome.constant.append(name)
                if name == "offset":  # as where it saturates before it is normalised
                    continue
            self.checker.check(case, answer)
            if self.outcome.reasons:
                return
            useful |= not answer.constant
            if name == "normal":
                self.progress.step("checking repeated calls on the same tensors")
                CallsAgainChecker(self.checker, self.reference).check(case, answer)
        if not useful:
            told = "the reference's output is nearly constant in every case; it measures nothing"
            raise UsageError(f"{told} (--seed draws other weights)")
        self.candidate.require_idle()
        self.quiet.require_quiet()

    def _case_names(self, constant: bool) -> list[str]:
        """`constant`: the problem's own output nearly is, so that a further case is needed."""
        names = [*CASES]
        needed = constant or statistics_matter(self.model, self.dtype)
        if needed and not self.candidate.same_seed:  # of drawn weights the biases are what they are
            names.append("offset")
        if mode_matters(self.model):
            names.append("train" if self.options.eval else "eval")
        return names

    def _check_at_end(self) -> None:
        """The instance that was timed, on a fresh input: it may have turned lazy since."""
        self.progress.step("checking once more at the end")
        case = self._case("end")
        self.checker.check(case, self.checker.expected(case))
        told = "wrong_when_timed: at the end: "
        self.outcome.reasons = [told + reason for reason in self.outcome.reasons]

    def _case(self, name: str) -> Case:
        seed = self.options.seed + _SEED_STEPS[name]
        self.outcome.seeds[name] = seed
        return make_case(
            name, self.reference, self.state, self.device, self.dtype, self.batch, seed
        )

    def _try_other_size(self) -> None:
        if not self.options.one_size:
            self.progress.step("checking on inputs of another size")
            self.checker.check_other_size(self._case("other_size"))

    def _try_other_arguments(self) -> bool:
        """Whether the solution's process can still be asked something."""
        self.progress.step("trying other constructor arguments")
        other = (self.outcome.other_size or {}).get("verdict") == "right"
        case = self._case("other_size" if other else "normal")
        return try_others(self.checker, self.reference, case)


def _seconds(call, inputs: list) -> float:
    begin = time.perf_counter()
    call(*inputs)
    return time.perf_counter() - begin
