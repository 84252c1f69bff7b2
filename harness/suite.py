"""Many candidates: each evaluated by a process of its own, one at a time on every device.

The evaluating process is `run_eval.py` itself, so that a crash, a hang or a spoilt CUDA context
ends with the candidate that caused it. On GPUs the candidates to come are built on the CPUs
meanwhile; on the CPU they are not, because that would disturb the times.
"""

import contextlib
import hashlib
import queue
import shutil
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

from harness import records
from harness.catalog import ROOT
from harness.devices import Slot
from harness.errors import EnvironmentUnfit, UsageError
from harness.processes import Processes, Stopped
from harness.progress import SuiteProgress
from harness.suite_files import Item

RUN_EVAL = [sys.executable, str(ROOT / "run_eval.py")]
BUILD_AHEAD = [sys.executable, "-m", "harness.build_ahead"]
_HARNESS_SECONDS = 1800  # what an evaluation may take besides its candidate's time


@dataclass(frozen=True)
class Plan:
    """How a suite is evaluated.

    `arguments` are run_eval.py's options for each candidate; `settings` (JSON) is what a record
    must have been made with for --resume to keep it; `timeout` is a candidate's limit in seconds.
    """

    output: Path
    arguments: list[str]
    settings: dict
    timeout: float
    command: str
    resume: bool = False
    build_jobs: int = 0
    build_environment: dict[str, str] = field(default_factory=dict)


@dataclass
class Result:
    """What became of one candidate: a record, or the reason why there is none."""

    item: Item
    record: dict | None = None
    failure: str = ""
    status: int = EnvironmentUnfit.exit_status
    kept: bool = False

    @property
    def told(self) -> str:
        """In a few words."""
        if self.record is None:
            return f"not evaluated: {self.failure}"
        if self.record["verdict"] != "accepted":
            codes = [reason.partition(":")[0] for reason in self.record["reasons"]]
            return f"rejected: {', '.join(dict.fromkeys(codes))}"
        fastest = self.record["fastest"]
        return f"accepted, {fastest['speedup']:.2f}x" if fastest else "accepted"


class Suite:
    """Evaluates candidates; `run` returns one Result for each, in their order.

    Records are written whole, one file each, as soon as a candidate is through. When `run` is left
    by an exception (an interruption), all it started is ended.
    """

    def __init__(self, items: list[Item], slots: list[Slot], plan: Plan, progress: SuiteProgress):
        self.items, self.slots, self.plan, self.progress = items, slots, plan, progress
        self.results: dict[str, Result] = {}
        self._processes = Processes(2 * plan.timeout + _HARNESS_SECONDS)
        self._todo: queue.SimpleQueue = queue.SimpleQueue()
        self._ready: queue.SimpleQueue = queue.SimpleQueue()
        # Builds lie on disk until they are evaluated: only so many wait.
        self._waiting = threading.Semaphore(2 * plan.build_jobs + len(slots))

    def run(self) -> list[Result]:
        """Do it all."""
        with tempfile.TemporaryDirectory(prefix="suite-", ignore_cleanup_errors=True) as folder:
            self._folder = Path(folder)
            try:
                self._fill_queue()
                builders = [self._thread(self._build_all) for _ in range(self.plan.build_jobs)]
                workers = [self._thread(self._evaluate_all, slot) for slot in self.slots]
                _join(builders)
                for _ in workers:
                    self._ready.put(None)
                _join(workers)
            finally:
                self._processes.stop()
                self.progress.end()
        return [self.results[item.record_name] for item in self.items]

    def _fill_queue(self) -> None:
        for item in self.items:
            if item.problem is None:
                status = UsageError.exit_status
                self._finish(Result(item, failure=item.why, status=status))
            elif record := self._finished_before(item):
                self.results[item.record_name] = _of_record(item, record, kept=True)
                self.progress.kept(item.label)
            elif self.plan.build_jobs:
                self._todo.put(item)
            else:
                self._ready.put((item, None, None))

    def _finished_before(self, item: Item) -> dict | None:
        """The record of an earlier run of the same candidate, reference and settings."""
        if not self.plan.resume:
            return None
        try:
            record = records.read_records(self.plan.output / item.record_name)[0]
        except (UsageError, IndexError):
            return None
        same = record.get("suite") == self._facts(item)
        same &= record.get("solution_sha256") == _sha256(item.solution)
        return record if same else None

    def _facts(self, item: Item) -> dict:
        return {
            "candidate": item.label,
            "reference_sha256": _sha256(item.problem.reference),
            "settings": self.plan.settings,
        }

    # Threads -----------------------------------------------------------------------------------

    def _thread(self, work, *arguments) -> threading.Thread:
        thread = threading.Thread(target=work, args=arguments, daemon=True)
        thread.start()
        return thread

    def _build_all(self) -> None:
        while not self._processes.stopped:
            try:
                item = self._todo.get_nowait()
            except queue.Empty:
                return
            while not self._waiting.acquire(timeout=0.5):
                if self._processes.stopped:
                    return
            built = seconds = None
            with contextlib.suppress(Stopped, OSError):
                built, seconds = self._build(item)
            self._ready.put((item, built, seconds))

    def _evaluate_all(self, slot: Slot) -> None:
        while not self._processes.stopped and (next_one := self._ready.get()) is not None:
            item, built, seconds = next_one
            self.progress.doing(slot.name, item.label)
            try:
                result = self._evaluate(item, slot, built, seconds)
            except Stopped:
                return
            except Exception as error:  # one that fails must not stop the rest
                result = Result(item, failure=f"{type(error).__name__}: {error}")
            finally:
                self._waiting.release()
                self.progress.doing(slot.name, None)
            self._finish(result)

    def _finish(self, result: Result) -> None:
        self.results[result.item.record_name] = result
        self.progress.done(result.item.label, result.told)

    # One candidate -----------------------------------------------------------------------------

    def _build(self, item: Item) -> tuple[Path | None, float | None]:
        """Fill a build folder; None where nothing usable came of it: the evaluation builds anew."""
        folder = Path(tempfile.mkdtemp(prefix="build-", dir=self._folder))
        given = {"--reference": item.problem.reference, "--solution": item.solution}
        words = [str(word) for key, path in given.items() for word in (key, path.resolve())]
        words += ["--build-dir", str(folder), "--timeout", str(self.plan.timeout)]
        begin = time.monotonic()
        status, _ = self._processes.run([*BUILD_AHEAD, *words], self.plan.build_environment, ROOT)
        # One that cannot be constructed without a GPU fails here, too, when it has been built. A
        # lock shows that a build was cut short; the evaluation would wait for it to be released.
        if status in (0, 1) and any(folder.iterdir()) and not any(folder.rglob("lock")):
            return folder, time.monotonic() - begin
        shutil.rmtree(folder, ignore_errors=True)
        return None, None

    def _evaluate(self, item: Item, slot: Slot, built: Path | None, seconds) -> Result:
        facts = self._facts(item)
        folder = Path(tempfile.mkdtemp(prefix="evaluation-", dir=self._folder))
        written = folder / "record.json"
        words = ["--reference", str(item.problem.reference.resolve())]
        words += ["--solution", str(item.solution.resolve()), "--device", slot.device]
        words += [*self.plan.arguments, "--json", str(written)]
        words += ["--build-dir", str(built)] if built else []
        try:
            status, said = self._processes.run([*RUN_EVAL, *words], slot.environment, folder)
            record = _read(written, status)
        finally:
            for done_with in (folder, built):
                if done_with:
                    shutil.rmtree(done_with, ignore_errors=True)
        path = self.plan.output / item.record_name
        if record is None:
            path.unlink(missing_ok=True)  # an older candidate's
            status = status if status in (2, 3) else EnvironmentUnfit.exit_status
            return Result(item, failure=said or "it left no record", status=status)
        record |= {"sample": item.sample, "command": self.plan.command, "suite": facts}
        record["built_ahead_s"] = seconds
        records.write_json(path, record)
        return _of_record(item, record)


def _join(threads: list[threading.Thread]) -> None:
    for thread in threads:
        while thread.is_alive():
            thread.join(timeout=0.5)


def _read(path: Path, status: int) -> dict | None:
    """The record that an evaluation wrote; None where it says another verdict than its status."""
    try:
        record = records.read_records(path)[0]
    except (UsageError, IndexError):
        return None
    return record if status == int(record["verdict"] != "accepted") else None


def _of_record(item: Item, record: dict, kept: bool = False) -> Result:
    return Result(item, record, status=int(record["verdict"] != "accepted"), kept=kept)


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
