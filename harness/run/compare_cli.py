"""--compare and --show: what run_eval.py does with records that are there already."""

import argparse

from rich.console import Console

from harness.errors import UsageError
from harness.report import compare, compare_tables, records, tables

ACCEPTED, REJECTED = 0, 1


def require_options(given: argparse.Namespace) -> None:
    """Raises UsageError for options that go with --compare, without it, and for one record."""
    if given.compare and len(given.compare) < 2:
        raise UsageError("--compare needs two or more records or folders")
    if not given.compare and (given.sort or given.fail_below is not None):
        raise UsageError("--sort and --fail-below go with --compare")


def run_compare(given: argparse.Namespace, console: Console) -> tuple[dict, int]:
    """The comparison as JSON, printed, and the exit status: 1 where --fail-below says so."""
    groups = [(str(path), records.read_records(path)) for path in given.compare]
    result = compare.comparison(groups, given.sort or "problem")
    compare_tables.print_comparison(console, result)
    if given.fail_below is None:
        return result, ACCEPTED
    result["below"] = compare.below(result, given.fail_below)
    for told in result["below"]:
        text = f"below {given.fail_below:g}: {told}"
        console.print(text, markup=False, soft_wrap=True, style="red")
    return result, REJECTED if result["below"] else ACCEPTED


def run_show(given: argparse.Namespace, console: Console) -> tuple[list[dict], int]:
    """The records of --show as an evaluation prints them; the status is that of their verdicts.

    Of imported records, which hold little more, the times alone are told.
    """
    found = [record for path in given.show for record in records.read_records(path)]
    for record in found:
        if "imported" in record:
            where = f"{record['problem']} on {record['device'] or '?'}"
            told = f"{where}: {record['verdict']}, {tables.median_of(record)} ms"
            console.print(f"{told} (imported)", markup=False, soft_wrap=True)
        else:
            _show(record, console)
    rejected = any(record["verdict"] == "rejected" for record in found)
    return found, REJECTED if rejected else ACCEPTED


def _show(record: dict, console: Console) -> None:
    try:
        tables.print_record(console, record)
    except KeyError as missing:
        raise UsageError(f"record of problem {record['problem']!r}: no entry {missing}") from None
    told = [f"record of {record['date']}"] if "date" in record else []
    told += [f"commit {compare.told_commit(record['commit'])}"] if record.get("commit") else []
    told += [record["command"]] if "command" in record else []
    console.print(", ".join(told), markup=False, soft_wrap=True)
