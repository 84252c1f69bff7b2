"""What a suite leaves behind: a record for each candidate, and which of them --resume keeps."""

import hashlib
from dataclasses import dataclass, field
from pathlib import Path

from harness.errors import EnvironmentUnfit, UsageError
from harness.files import remove_file
from harness.report import records
from harness.run.ending import INTERNAL
from harness.run.suite_files import Item

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

    @property
    def limit(self) -> float:
        """Seconds that one evaluation may take in all."""
        return 2 * self.timeout + _HARNESS_SECONDS


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


def facts(item: Item, plan: Plan) -> dict:
    """What a record must have been made from for --resume to keep it."""
    return {
        "candidate": item.label,
        "reference_sha256": _sha256(item.problem.reference),
        "settings": plan.settings,
    }


def kept_before(item: Item, plan: Plan) -> Result | None:
    """The result of an earlier run of the same candidate, reference and settings, with --resume."""
    if not plan.resume:
        return None
    try:
        record = records.read_records(plan.output / item.record_name)[0]
    except (UsageError, IndexError):
        return None
    same = record.get("suite") == facts(item, plan)
    same &= record.get("solution_sha256") == _sha256(item.solution)
    return _of_record(item, record, kept=True) if same else None


def without_reference(item: Item) -> Result:
    """The result of a candidate that belongs to no reference."""
    return Result(item, failure=item.why, status=UsageError.exit_status)


def written(item: Item, plan: Plan, record: dict | None, status: int, said: str, more: dict):
    """Write the record of a candidate that is through, with `more` in it; its Result.

    `record` is None where the evaluation, which ended with `status` and `said`, left none.
    """
    path = plan.output / item.record_name
    if record is None:
        remove_file(path)  # an older candidate's
        status = status if status in (2, 3, INTERNAL) else EnvironmentUnfit.exit_status
        return Result(item, failure=said or "it left no record", status=status)
    record |= {"sample": item.sample, "command": plan.command, **more}
    records.write_json(path, record)
    return _of_record(item, record)


def read(path: Path, status: int) -> dict | None:
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
