"""Many candidates on a Ray cluster: one task each, wherever there is room; the driver writes."""

import tempfile
from pathlib import Path

from harness.report import records
from harness.run import suite_records
from harness.run.progress import SuiteProgress
from harness.run.ray_cluster import Cluster
from harness.run.suite_files import Item
from harness.run.suite_records import Plan, Result

_CANCEL_SECONDS = 40


class RaySuite:
    """Evaluates candidates as `Suite` does; `run` returns one Result for each, in their order.

    Candidate and reference travel to the node as bytes, the record comes back and is written here
    as soon as the candidate is through. When `run` is left by an exception (an interruption), the
    tasks under way are taken back, which ends all that they have started.
    """

    def __init__(self, items: list[Item], cluster: Cluster, plan: Plan, progress: SuiteProgress):
        self.items, self.cluster, self.plan, self.progress = items, cluster, plan, progress
        self.results: dict[str, Result] = {}
        progress.at(cluster.places)

    def run(self) -> list[Result]:
        """Do it all."""
        pending: dict = {}
        ray = self.cluster.ray
        try:
            for item in self.items:
                if item.problem is None:
                    self._finish(suite_records.without_reference(item))
                elif result := suite_records.kept_before(item, self.plan):
                    self.results[item.record_name] = result
                    self.progress.kept(item.label)
                else:
                    pending[self._submit(item)] = item
            while pending:
                busy = min(len(pending), self.cluster.places)
                self.progress.under_way(busy)
                for reference in ray.wait(list(pending), num_returns=1, timeout=0.5)[0]:
                    self._finish(self._result(pending.pop(reference), reference))
        finally:
            self._take_back(list(pending))
            self.progress.end()
        return [self.results[item.record_name] for item in self.items]

    def _submit(self, item: Item):
        # The folder's name stays: with the file's it tells level and number.
        reference = item.problem.reference.resolve()
        reference_path = f"reference/{reference.parent.name}/{reference.name}"
        solution_path = f"solution/{item.solution.name}"
        files = {
            reference_path: reference.read_bytes(),
            solution_path: item.solution.read_bytes(),
        }
        words = ["--reference", reference_path, "--solution", solution_path]
        words += ["--device", str(self.cluster.device), *self.plan.arguments]
        return self.cluster.submit(files, words, self.plan.limit)

    def _result(self, item: Item, reference) -> Result:
        ray = self.cluster.ray
        try:
            done = ray.get(reference)
        except ray.exceptions.RayError as error:  # one that fails must not stop the rest
            told = " ".join(f"{type(error).__name__}: {error}".split())[:600]
            done = {"status": 3, "said": told, "record": None}
        with tempfile.TemporaryDirectory(prefix="record-") as folder:
            path = Path(folder) / "record.json"
            path.write_bytes(done["record"] or b"")
            record = suite_records.read(path, done["status"])
        more = {"suite": suite_records.facts(item, self.plan), "built_ahead_s": None}
        more["reference"] = records.shown_path(item.problem.reference)
        more["solution"] = records.shown_path(item.solution)
        return suite_records.written(item, self.plan, record, done["status"], done["said"], more)

    def _finish(self, result: Result) -> None:
        self.results[result.item.record_name] = result
        seconds = (result.record or {}).get("seconds", {}).get("wall")
        self.progress.done(result.item.label, result.told, seconds)

    def _take_back(self, references: list) -> None:
        ray = self.cluster.ray
        for reference in references:
            ray.cancel(reference)
        if references:
            ray.wait(references, num_returns=len(references), timeout=_CANCEL_SECONDS)
