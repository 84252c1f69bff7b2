"""Many candidates: each evaluated by a process of its own, one at a time on every device.

The evaluating process is `run_eval.py` itself, so that a crash, a hang or a spoilt CUDA context
ends with the candidate that caused it. On GPUs the candidates to come are built on the CPUs
meanwhile; on the CPU they are not, because that would disturb the times.
"""

import contextlib
import queue
import shutil
import sys
import tempfile
import threading
import time
from pathlib import Path

from harness.catalog import ROOT
from harness.devices import Slot
from harness.judge.processes import Processes, Stopped
from harness.run import suite_records
from harness.run.progress import SuiteProgress
from harness.run.suite_files import Item
from harness.run.suite_records import Plan, Result

RUN_EVAL = [sys.executable, str(ROOT / "run_eval.py")]
BUILD_AHEAD = [sys.executable, "-m", "harness.judge.build_ahead"]


class Suite:
    """Evaluates candidates; `run` returns one Result for each, in their order.

    Records are written whole, one file each, as soon as a candidate is through. When `run` is left
    by an exception (an interruption), all it started is ended.
    """

    def __init__(self, items: list[Item], slots: list[Slot], plan: Plan, progress: SuiteProgress):
        self.items, self.slots, self.plan, self.progress = items, slots, plan, progress
        self.results: dict[str, Result] = {}
        progress.at(len(slots))
        self._processes = Processes(plan.limit)
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
                self._finish(suite_records.without_reference(item))
            elif result := suite_records.kept_before(item, self.plan):
                self.results[item.record_name] = result
                self.progress.kept(item.label)
            elif self.plan.build_jobs:
                self._todo.put(item)
            else:
                self._ready.put((item, None, None))

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
        words += [f"--{name}" for name in ("backward", "eval") if self.plan.settings.get(name)]
        begin = time.monotonic()
        status, _ = self._processes.run([*BUILD_AHEAD, *words], self.plan.build_environment, ROOT)
        # One that cannot be constructed without a GPU fails here, too, when it has been built. A
        # lock shows that a build was cut short; the evaluation would wait for it to be released.
        if status in (0, 1) and any(folder.iterdir()) and not any(folder.rglob("lock")):
            return folder, time.monotonic() - begin
        shutil.rmtree(folder, ignore_errors=True)
        return None, None

    def _evaluate(self, item: Item, slot: Slot, built: Path | None, seconds) -> Result:
        facts = suite_records.facts(item, self.plan)
        folder = Path(tempfile.mkdtemp(prefix="evaluation-", dir=self._folder))
        written = folder / "record.json"
        words = ["--reference", str(item.problem.reference.resolve())]
        words += ["--solution", str(item.solution.resolve()), "--device", slot.device]
        words += [*self.plan.arguments, "--json", str(written)]
        words += ["--build-dir", str(built)] if built else []
        try:
            status, said = self._processes.run([*RUN_EVAL, *words], slot.environment, folder)
            record = suite_records.read(written, status)
        finally:
            for done_with in (folder, built):
                if done_with:
                    shutil.rmtree(done_with, ignore_errors=True)
        more = {"suite": facts, "built_ahead_s": seconds}
        return suite_records.written(item, self.plan, record, status, said, more)


def _join(threads: list[threading.Thread]) -> None:
    for thread in threads:
        while thread.is_alive():
            thread.join(timeout=0.5)
