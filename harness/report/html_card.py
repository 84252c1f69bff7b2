"""The card of one record: all that it says, folded away until it is opened."""

import re
from html import escape

from harness.report import doubts, drop_in, records
from harness.report.html_parts import (
    NUMBERS,
    TEXT,
    breakable,
    facts,
    listed,
    number,
    row_head,
    table,
)
from harness.report.html_parts import row as html_row
from harness.report.html_results import LABELS, problem, verdict
from harness.report.notes import notes, seconds
from harness.report.report_data import Row
from harness.report.solution_story import story

_CASE = re.compile(r"\b(\w+) inputs\b")
_ERRORS = {
    "rel_l2": "relative L2",
    "pytorch_rel_l2": "PyTorch’s",
    "rel_l2_bound": "allowed",
    "max_abs": "largest",
    "pytorch_max_abs": "PyTorch’s largest",
    "max_abs_bound": "allowed largest",
}
_COLD = (
    "A cold call is what the clock of a benchmark suite sees: one call on an idle device, the "
    "host’s part included."
)
_GRADIENTS = {
    "rms": "rms error",
    "pytorch_rms": "PyTorch’s",
    "rms_bound": "allowed",
    "reference_rms": "rms of the gradient",
}


def card(row: Row, name: str) -> str:
    """`name` is its identifier. KeyError, TypeError or ValueError for a record of another form."""
    record, kind = row.record, "good" if row.accepted else "bad"
    fastest = row.fastest
    shown = _over(fastest) if fastest else ""
    shown += f", {row.ms:.4g} ms" if row.ms else ""
    figures = f'<span class="figures">{shown.removeprefix(", ")}</span>' if shown else ""
    parts = [_rejection(record), _fusion(row), _times(row), _floor(row), _errors(record)]
    parts += [_gradients(record), _notes(record), _about(row), _json(record)]
    return (
        f'<details class="card" id="{name}">\n<summary><span class="name">'
        f"{problem(row)} <small>{breakable(_subtitle(row))}</small></span> "
        f'<span class="{kind}">{escape(verdict(row))}</span> '
        f"{figures}</summary>\n"
        f"{chr(10).join(filter(None, parts))}\n</details>"
    )


def _subtitle(row: Row) -> str:
    named = [row.name] * (row.name != row.problem)
    return ", ".join([*named, *[row.file] * (row.name not in row.file)])


def failed_cases(record: dict) -> list[str]:
    """The cases on which it was rejected: those with an error above its bound or not finite, and
    those that a reason names.
    """
    if record["verdict"] == "accepted":
        return []
    cases = record["error"].get("cases") or {}
    over = [name for name, case in cases.items() if _is_over(case)]
    told = [name for reason in record.get("reasons") or () for name in _CASE.findall(reason)]
    return list(dict.fromkeys([*over, *told]))


def _is_over(case: dict) -> bool:
    pairs = (("rel_l2", "rel_l2_bound"), ("max_abs", "max_abs_bound"))
    return any(_exceeds(case, value, bound) for value, bound in pairs if bound in case)


def _exceeds(case: dict, value: str, bound: str) -> bool:
    return case.get(value) is None or (case[bound] is not None and case[value] > case[bound])


def _rejection(record: dict) -> str:
    if record["verdict"] == "accepted":
        return ""
    reasons = "\n".join(f"<li>{escape(str(told))}</li>" for told in record.get("reasons") or ())
    reasons = reasons or "<li>no reason given</li>"
    failed = failed_cases(record)
    where = f"<p>It failed on {escape(', '.join(failed))} inputs.</p>" if failed else ""
    return f'<h4>Why it was rejected</h4>\n{where}\n<ul class="reasons">\n{reasons}\n</ul>'


def _fusion(row: Row) -> str:
    told = story(row.record, row.folder)
    if told is None:
        return ""
    head = "What is fused" if told.left is not None else "What the solution says of itself"
    chain = escape(told.head)
    parts = [f"<h4>{head}</h4>"]
    parts += [f"<p>{chain}</p>" if told.left is None else f"<p><code>{chain}</code></p>"]
    parts += [f"<p>{escape(part)}</p>" for part in told.how]
    if told.left is not None and told.left:
        parts += ["<p>Left to PyTorch:</p>", listed(told.left)]
    elif told.left is not None:
        parts.append("<p>Nothing is left to PyTorch.</p>")
    if told.changed:
        parts.append(
            '<p class="muted">From the file as it is now; its text has changed since it was '
            "measured.</p>"
        )
    return "\n".join(parts)


def _times(row: Row) -> str:
    record = row.record
    told = {"no cold call": record.get("cold_call_errors")}
    if not (record.get("fastest") and row.ms):
        told["no such operator"] = record.get("baselines_not_offered")
    failures = _failures(record, told)
    if not row.ms:
        aside = "<p>Not timed.</p>" if row.accepted else ""
        return "\n".join(
            filter(None, ["<h4>Times</h4>" * bool(aside or failures), aside, failures])
        )
    parts = record.get("passes") or {}
    head = f"{row.problem}, forward and backward together" if parts else row.problem
    shown = ["<h4>Times</h4>", _time_table(head, record, record), _fastest(record)]
    if record.get("cold_call_ms"):
        shown.append(f"<p>{_COLD}</p>")
    shown.append(failures)
    for name, part in parts.items():
        shown += [f"<h4>Times, {escape(name)} alone</h4>"]
        shown += [_time_table(f"{row.problem}, {name} alone", part, record), _fastest(part)]
        shown += [_failures(part, {}), _rates(part["roofline"], part.get("peak_bytes"))]
    return "\n".join(filter(None, shown))


def _failures(timed: dict, others: dict[str, dict | None]) -> str:
    """Why baselines have no times, and whatever else has none."""
    told = {"not timed": timed.get("baseline_errors"), **others}
    lines = [
        f"{LABELS.get(name, name)}: {what}: {why}"
        for what, found in told.items()
        for name, why in (found or {}).items()
    ]
    return listed(lines) if lines else ""


def _time_table(head: str, timed: dict, record: dict) -> str:
    """`timed` is a record or one of its passes."""
    clock = "device time" if record["versions"].get("gpu") else "time"
    cold = bool(timed.get("cold_call_ms"))
    heads = [("", TEXT), (f"{clock}, median ms", NUMBERS), ("IQR", NUMBERS)]
    heads += [("fastest", NUMBERS), ("slowest", NUMBERS)] * bool(timed.get("statistics"))
    heads += [("calls", NUMBERS), ("speedup over it", NUMBERS)]
    heads += [("cold call, median ms", NUMBERS), ("cold IQR", NUMBERS)] * cold
    rows = [_time(timed, name, cold) for name in timed["ms"]]
    return table(f"Times of {head}, in milliseconds", heads, rows)


def _time(timed: dict, name: str, cold: bool) -> str:
    entry, spreads = timed["ms"][name], timed.get("statistics") or {}
    spread = spreads.get(name) or {}
    best = name == (timed.get("fastest") or {}).get("baseline")
    cells = [row_head(LABELS.get(name, name))]
    cells += [number(entry["median"], "{:.4g}", doubts.mark(doubts.is_wide(entry)))]
    cells += [number(entry.get("iqr"), "{:.3g}")]
    cells += [number(spread.get(key), "{:.4g}") for key in ("min", "max")] * bool(spreads)
    cells += [number((timed.get("calls_timed") or {}).get(name), "{}")]
    cells += [number(timed["speedup"].get(name), "<b>{:.2f}×</b>" if best else "{:.2f}×")]
    called = (timed.get("cold_call_ms") or {}).get(name) or {}
    forms = (("median", "{:.4g}"), ("iqr", "{:.3g}"))
    cells += [number(called.get(key), form) for key, form in forms] * cold
    return html_row(cells)


def _fastest(timed: dict) -> str:
    fastest = timed.get("fastest")
    if not fastest:
        return "<p>No baseline was timed.</p>"
    best = LABELS.get(fastest.get("baseline"), str(fastest.get("baseline")))
    spread = f"in half of the rounds between {fastest['low']:.2f}× and {fastest['high']:.2f}×"
    return f"<p>{_over(fastest)}, {escape(best)}; {spread}.</p>"


def _over(fastest: dict) -> str:
    return f"<b>{fastest['speedup']:.2f}×</b> over the fastest baseline"


def _floor(row: Row) -> str:
    if not row.rates:
        return ""
    doubtful = doubts.found(row.record)
    both = ", forward and backward together" if row.record.get("passes") else ""
    parts = [f"<h4>Roofline{both}</h4>", _rates(row.rates), listed(doubtful) if doubtful else ""]
    return "\n".join(filter(None, parts))


def _rates(rates: dict, peak: float | None = None) -> str:
    marked = doubts.mark(doubts.is_high(rates))
    in_16_bits = f"; {rates['share_16_bit']:.0%} in 16 bits" if rates.get("share_16_bit") else ""
    ceilings = ", ".join(
        f"{escape(name)} {value:.4g} TFLOP/s" for name, value in rates["ceiling_tflops"].items()
    )
    pairs = [
        ("Work", f"{rates['gflop']:.4g} GFLOP, {rates['gbyte']:.4g} GB"),
        ("Rates", f"{rates['tflops']:.4g} TFLOP/s, {_or_none(rates.get('gbps'))} GB/s"),
        ("Ceilings", f"{ceilings}, {rates['ceiling_gbps']:.4g} GB/s"),
        ("Share of the roofline", f"{rates['share']:.0%}{in_16_bits}{marked}"),
    ]
    pairs += [("Bound by", escape(str(rates["bound"])))] * ("bound" in rates)
    pairs += [("Measured", escape(str(rates["ceilings"])))] * ("ceilings" in rates)
    pairs += [("Peak memory", _megabytes(peak))] * (peak is not None)
    return facts(pairs)


def _megabytes(size: float | None) -> str:
    return "not measured" if size is None else f"{size / 1e6:.0f} MB"


def _or_none(value: float | None) -> str:
    return "–" if value is None else f"{value:.4g}"


def _errors(record: dict) -> str:
    cases = dict(record["error"].get("cases") or {})
    other = (record.get("other_size") or {}).get("errors")
    cases |= {"other size": other} if other else {}
    failed, rows = failed_cases(record), []
    for name, case in cases.items():
        if not any(key in case for key in _ERRORS):
            continue
        cells = [row_head(name.replace("_", " ") + " (failed)" * (name in failed))]
        for key in _ERRORS:
            over = f"{key}_bound" in case and _exceeds(case, key, f"{key}_bound")
            cells.append(number(case.get(key), "{:.2e}", kind="bad" * over))
        rows.append(html_row(cells))
    if not rows:
        return ""
    heads = [("inputs", TEXT), *((label, NUMBERS) for label in _ERRORS.values())]
    precision = escape(str(record["error"].get("precision") or record["dtype"]))
    made = table("Errors beside float64, and what is allowed", heads, rows)
    return f"<h4>Errors, {precision}</h4>\n{made}"


def _gradients(record: dict) -> str:
    rows = []
    for name, case in (record["error"].get("cases") or {}).items():
        for entry, sizes in (case.get("gradients") or {}).items():
            cells = [row_head(f"{entry}, {name.replace('_', ' ')} inputs")]
            over = _exceeds(sizes, "rms", "rms_bound")
            kinds = ["bad" * (over and key == "rms") for key in _GRADIENTS]
            pairs = zip(_GRADIENTS, kinds, strict=True)
            rows.append(
                html_row(cells + [number(sizes.get(k), "{:.2e}", kind=c) for k, c in pairs])
            )
    if not rows:
        return ""
    heads = [("gradient of", TEXT), *((label, NUMBERS) for label in _GRADIENTS.values())]
    made = table("Errors of gradients beside float64", heads, rows)
    return f"<h4>Gradients</h4>\n{made}"


def _notes(record: dict) -> str:
    told = notes(record)
    told += drop_in.lines(record) if record["verdict"] == "accepted" else []
    rule = record.get("kernelbench")
    if rule:
        outside = "" if rule["passes"] else f" ({rule['fraction_outside']:.2%} outside)"
        passes = "passes" if rule["passes"] else "fails"
        told.append(f"{passes} KernelBench’s rule, for information{outside}")
    return f"<h4>Also tried</h4>\n{listed(told)}" if told else ""


def _about(row: Row) -> str:
    record = row.record
    build, peak = record.get("build_s"), record.get("peak_bytes")
    pairs = [
        ("Build", f"{build:.1f} s" if build is not None else "not measured"),
        ("Peak memory", _megabytes(peak)),
        ("Input", escape(row.input or "–")),
    ]
    pairs += [("Solution", f"<code>{breakable(row.solution)}</code>")] * bool(row.solution)
    digest = record.get("solution_sha256")
    pairs += [("SHA-256", f"<code>{escape(str(digest)[:16])}…</code>")] * bool(digest)
    pairs += [("Time", escape(seconds(record)))] * bool(seconds(record))
    command = record.get("command")
    pairs += [("Command", f"<code>{escape(str(command))}</code>")] * bool(command)
    return f"<h4>Build, memory, origin</h4>\n{facts(pairs)}"


def _json(record: dict) -> str:
    text = escape(records.to_json(record), quote=False)
    shown = f'<summary>The whole record, JSON</summary>\n<pre tabindex="0">{text}</pre>'
    return f"<details>\n{shown}\n</details>"
