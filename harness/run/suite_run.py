"""--suite: what it evaluates, where and how, and the table at its end."""

import argparse
import os
import sys
from dataclasses import replace
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

from harness import devices
from harness.catalog import ROOT
from harness.errors import EnvironmentUnfit
from harness.files import require_file, require_folder
from harness.judge import wire
from harness.report import compare_tables, doubts, drop_in, scores, tables
from harness.run.outcome import Options
from harness.run.progress import SuiteProgress
from harness.run.ray_cluster import Cluster
from harness.run.ray_suite import RaySuite
from harness.run.suite import Suite
from harness.run.suite_files import Item, find_items
from harness.run.suite_records import Plan, Result

# That one build keeps busy: ours compile in seven parts. More at a time than there are cores for
# would be ready later, each of them, while the GPUs wait for the first.
_BUILD_CORES = 8


def run_suite(
    given: argparse.Namespace,
    options: Options,
    command: str,
    console: Console,
    cluster: Cluster | None = None,
) -> tuple[dict, int]:
    """Evaluate a folder of candidates, here or on a Ray cluster; (JSON of the whole, exit status).

    The status is that of the worst candidate: 0 all accepted, 1 one rejected, 2 one without a
    reference or with an unusable one, 3 one that could not be evaluated here, 4 a fault of the
    harness.
    """
    items = find_items(given.suite, given.reference)
    output = given.output or ROOT / "results" / "suites" / given.suite.resolve().name
    resumed = "; --resume goes on from there"
    return run_items(
        items, output, given, options, command, console, given.resume, resumed, cluster
    )


def run_items(
    items: list[Item],
    output: Path,
    given: argparse.Namespace,
    options: Options,
    command: str,
    console: Console,
    resume: bool,
    resumed: str,
    cluster: Cluster | None = None,
) -> tuple[dict, int]:
    """Evaluate candidates and write their records to `output`, as `run_suite` says; with `resume`
    those of the same candidate, reference and settings are kept. `resumed` is what an interruption
    says behind the place of the records.
    """
    require_folder(output, "--output")
    for item in items:
        require_file(output / item.record_name, "--output")
    plan, run = _plan(given, options, command, output, resume, cluster)
    progress = SuiteProgress(len(items))
    try:
        results = run(items, progress)
    except BaseException:
        print(f"run_eval.py: records finished so far are in {output}{resumed}", file=sys.stderr)
        raise
    found = [result.record for result in results if result.record]
    score = scores.summary(found, len(results))
    print_results(console, results, score)
    console.print(f"records: {output}", markup=False, soft_wrap=True)
    failed = [
        {"candidate": result.item.label, "reason": result.failure}
        for result in results
        if result.record is None
    ]
    whole = {"scores": score, "records": found, "not_evaluated": failed}
    return whole, max(result.status for result in results)


def _require_equal_gpus(device: torch.device, count: int) -> None:
    """Times of different GPUs do not belong in one table."""
    if device.type == "cuda" and count > 1:
        names = {devices.device_name(torch.device("cuda", index)) for index in range(count)}
        if len(names) > 1:
            told = ", ".join(sorted(names))
            raise EnvironmentUnfit(f"the GPUs differ ({told}): choose one with --device cuda:N")


def _plan(given, options: Options, command: str, output, resume: bool, cluster: Cluster | None):
    """The plan, and what carries it out: a function of candidates and progress."""
    settings = {
        "device": cluster.slug if cluster else devices.device_slug(options.device),
        "dtype": wire.dtype_name(options.dtype),
        "tf32": options.tf32,
        "batch": options.batch,
        "backward": options.backward,
        "eval": options.eval,
        "kernel": options.kernel,
        "baselines": list(options.baselines),
        "one_size": options.one_size,
        "kernelbench": options.kernelbench,
        "check_only": options.check_only,
        "timeout": options.timeout,
        "seed": options.seed,
    }
    plan = Plan(
        output=output,
        arguments=_arguments(settings),
        settings=settings,
        timeout=options.timeout,
        command=command,
        resume=resume,
    )
    if cluster:
        return plan, lambda items, progress: RaySuite(items, cluster, plan, progress).run()
    slots = devices.slots(given.device)
    _require_equal_gpus(options.device, len(slots))
    plan = _with_builds_ahead(plan, given.build_jobs, options.device)
    return plan, lambda items, progress: Suite(items, slots, plan, progress).run()


def _with_builds_ahead(plan: Plan, jobs: int | None, device: torch.device) -> Plan:
    if device.type != "cuda":
        return plan
    if jobs is None:
        jobs = max(1, (os.cpu_count() or 1) // _BUILD_CORES)
    architectures = os.environ.get("TORCH_CUDA_ARCH_LIST") or devices.architecture_list(device)
    environment = {"CUDA_VISIBLE_DEVICES": "", "TORCH_CUDA_ARCH_LIST": architectures}
    return replace(plan, build_jobs=jobs, build_environment=environment)


def _arguments(settings: dict) -> list[str]:
    """run_eval.py's options that say the same as the settings; the device is the slot's."""
    words = ["--dtype", settings["dtype"], "--tf32", settings["tf32"]]
    words += ["--timeout", str(settings["timeout"]), "--seed", str(settings["seed"])]
    words += ["--baselines", ",".join(settings["baselines"]) or "none"]
    words += ["--batch", str(settings["batch"])] if settings["batch"] else []
    flags = ("backward", "eval", "one_size", "kernelbench", "check_only")
    return words + [f"--{name.replace('_', '-')}" for name in flags if settings[name]]


def print_results(console: Console, results: list[Result], score: dict) -> None:
    """One row for each candidate, and the scores of all."""
    table = Table("candidate", "problem", "verdict", "ms", "fastest baseline", "speedup")
    for result in results:
        record = result.record or {"ms": {}, "fastest": None}
        fastest = record["fastest"]
        accepted = record.get("verdict") == "accepted"
        table.add_row(
            result.item.label,
            result.item.problem.id if result.item.problem else "?",
            drop_in.verdict(record) if accepted else result.told,
            tables.median_of(record),
            fastest["baseline"] if fastest else "-",
            f"{fastest['speedup']:.2f}x" if fastest else "-",
        )
    console.print(table)
    if any(doubts.found(result.record) for result in results if result.record):
        console.print(doubts.LEGEND, markup=False, soft_wrap=True)
    compare_tables.print_scores(console, {"all": score})
