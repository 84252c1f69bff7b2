"""Tables for the terminal: one evaluation, all of them."""

from rich.console import Console
from rich.table import Table

from harness.names import BASELINES
from harness.report import doubts, drop_in
from harness.report.notes import notes, seconds


def print_record(console: Console, record: dict) -> None:
    """Verdict, times, errors and rates of one evaluation."""
    shape = "x".join(map(str, record["input_shape"]))
    full, batch = record["problem_batch"], record["batch"]
    cut = f" (the problem's own batch is {full})" if full != batch else ""
    precision = record["error"]["precision"]
    console.print(
        f"[bold]{record['problem']} {record['name']}[/] on {record['device_name']}, "
        f"{precision}, input {shape}{cut}"
        + (", forward and backward" if record["backward"] else "")
        + (", eval mode" if record.get("eval") else "")
        + (f", {record['kernel']} kernel forced" if record.get("kernel", "auto") != "auto" else "")
    )
    if record["verdict"] == "accepted":
        aside = ", but does not drop into KernelBench (see below)"
        console.print("[green]accepted[/]" + aside * (not drop_in.drops_in(record)))
    else:
        console.print("[red]rejected[/]")
        for reason in record["reasons"]:
            console.print(f"  {reason}", markup=False)
    parts = record.get("passes") or {}  # older records have none
    if record["ms"]:
        console.print(_times(record, parts))
        for name, reason in record["baseline_errors"].items():
            console.print(f"baseline {name} not available: {reason}", markup=False)
        for name, reason in record.get("baselines_not_offered", {}).items():
            if not record["fastest"]:
                console.print(f"baseline {name} is no such operator: {reason}", markup=False)
        for name, reason in record.get("cold_call_errors", {}).items():
            console.print(f"no cold call of {name}: {reason}", markup=False)
        _print_rates(console, record, "both: " * bool(parts))
        for name, part in parts.items():
            for baseline, reason in part["baseline_errors"].items():
                told = f"baseline {baseline} of {name} not available: {reason}"
                console.print(told, markup=False)
            _print_rates(console, part, f"{name}: ")
        for told in doubts.found(record):
            console.print(told, markup=False, style="yellow")
    if record["error"]["cases"]:
        console.print(_errors(record))
    if any(case.get("gradients") for case in record["error"]["cases"].values()):
        console.print(_gradient_errors(record))
    _print_notes(console, record)


def _times(record: dict, parts: dict) -> Table:
    cold = record.get("cold_call_ms") or {}  # older records have none
    table = Table("", "median ms", "IQR ms", "speedup", *["cold call ms"] * bool(cold))
    for title, timed in {"both": record, **parts}.items():
        if parts:
            table.add_section()
            table.add_row(f"[bold]{title}[/]")
        for name in ("solution", *BASELINES):
            if name in timed["ms"]:
                over = f"{timed['speedup'][name]:.2f}x" if name != "solution" else ""
                known = name in cold and timed is record
                shown = [f"{cold[name]['median']:.4g}" if known else "-"] * bool(cold)
                table.add_row(name, *_ms(timed["ms"][name]), over, *shown)
    return table


def _ms(entry: dict) -> tuple[str, str]:
    return f"{entry['median']:.4g}", f"{entry['iqr']:.2g}{doubts.mark(doubts.is_wide(entry))}"


def _print_rates(console: Console, record: dict, title: str = "") -> None:
    """Of a record, or of one of its passes, which `title` names."""
    fastest, rates = record["fastest"], record["roofline"]
    if fastest:
        console.print(
            f"{title}[bold]{fastest['speedup']:.2f}x[/] over the fastest baseline, "
            f"{fastest['baseline']} (between {fastest['low']:.2f} and {fastest['high']:.2f} "
            "in half of the rounds)"
        )
    in_16_bits = rates.get("share_16_bit")
    aside = f" ({in_16_bits:.0%} in 16 bits)" if in_16_bits else ""
    peak = record.get("peak_bytes") if title else None
    console.print(
        f"{title}{rates['tflops']:.3g} TFLOP/s, {rates['gbps']:.3g} GB/s, "
        f"{rates['share']:.0%}{aside}{doubts.mark(doubts.is_high(rates))} of the "
        f"roofline ({rates['bound']} bound; {rates['ceilings']})"
        + (f"; peak memory {peak / 1e6:.0f} MB" if peak is not None else "")
    )


def _errors(record: dict) -> Table:
    table = Table("error on", "rel. L2", "PyTorch's", "allowed", "largest", "PyTorch's", "allowed")
    for name, case in record["error"]["cases"].items():
        keys = ("rel_l2", "pytorch_rel_l2", "rel_l2_bound")
        keys += ("max_abs", "pytorch_max_abs", "max_abs_bound")
        table.add_row(name.replace("_", " "), *(f"{case[key]:.2e}" for key in keys))
    return table


def _share(sizes: dict) -> float:
    """Of what is allowed; 0 of a gradient that was beyond its dtype's range, None."""
    return 0.0 if sizes["rms"] is None else sizes["rms"] / (sizes["rms_bound"] or 1.0)


def _gradient_errors(record: dict) -> Table:
    """Of each case the gradient that is nearest to its bound."""
    table = Table(
        "gradients on", "worst of", "rms error", "PyTorch's", "allowed", "rms of gradient"
    )
    for name, case in record["error"]["cases"].items():
        found = case.get("gradients") or {}
        if found:
            nearest = {key: _share(sizes) for key, sizes in found.items()}
            worst = max(nearest, key=nearest.get)
            keys = ("rms", "pytorch_rms", "rms_bound", "reference_rms")
            sizes = (found[worst][key] for key in keys)
            shown = ["–" if size is None else f"{size:.2e}" for size in sizes]
            table.add_row(name.replace("_", " "), f"{worst} ({len(found)})", *shown)
    return table


def _print_notes(console: Console, record: dict) -> None:
    if constant := record["error"].get("constant"):
        told = f"the reference's output is nearly constant on {', '.join(constant)} inputs"
        console.print(f"{told}: they, and times, tell little", style="yellow")
    if outputs := record["error"].get("outputs"):
        console.print(f"outputs {outputs}, joined to one tensor on both sides, within the times")
    rule = record["kernelbench"]
    if rule:
        told = "passes" if rule["passes"] else f"fails ({rule['fraction_outside']:.2%} outside)"
        console.print(f"KernelBench's rule (for information): {told}")
    sizes = []
    if record["build_s"] is not None:
        sizes.append(f"build {record['build_s']:.1f} s")
    if record["peak_bytes"] is not None:
        sizes.append(f"peak memory {record['peak_bytes'] / 1e6:.0f} MB")
    if sizes:
        console.print(", ".join(sizes))
    for told in [*notes(record), *filter(None, [seconds(record)])]:
        console.print(told, markup=False)
    for told in drop_in.lines(record) if record["verdict"] == "accepted" else ():
        console.print(told, markup=False, style="yellow", soft_wrap=True)


def print_summary(console: Console, records: list[dict]) -> None:
    """One row for each evaluation."""
    table = Table("problem", "verdict", "ms", "fastest baseline", "speedup", "rel. L2")
    for record in records:
        fastest, error = record["fastest"], record["error"]["rel_l2"]
        table.add_row(
            f"{record['problem']} {record['name']}",
            drop_in.verdict(record),
            median_of(record),
            fastest["baseline"] if fastest else "-",
            f"{fastest['speedup']:.2f}x" if fastest else "-",
            "-" if error is None else f"{error:.2e}",
        )
    accepted = sum(record["verdict"] == "accepted" for record in records)
    console.print(table)
    if any(map(doubts.found, records)):
        console.print(doubts.LEGEND, markup=False, soft_wrap=True)
    console.print(f"{accepted} of {len(records)} accepted")


def median_of(record: dict) -> str:
    """The solution's milliseconds, marked where its quartiles or its rates are beyond belief."""
    if not record["ms"]:
        return "-"
    entry = record["ms"]["solution"]
    doubtful = doubts.is_wide(entry) or doubts.is_high(record.get("roofline"))
    return f"{entry['median']:.4g}{doubts.mark(doubtful)}"
