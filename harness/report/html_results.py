"""Overview, tables of results and of fast_p of the page of a run."""

from collections import Counter
from html import escape

from harness.report import doubts, drop_in, scores
from harness.report.html_parts import NONE, NUMBERS, TEXT, breakable, number, row_head, table, text
from harness.report.html_parts import row as html_row
from harness.report.report_data import BASELINES, FASTEST, Group, Row, compared, fast_p

_LEVELS = (0, 0.5, 0.8, 1, 1.5, 2)
_OVER = ("eager", "compile")  # baselines with a column of their own
LABELS = BASELINES | {FASTEST: "fastest of these"}


def anchor(group: Group, row: Row) -> str:
    """The identifier of a row's card."""
    return f"c-{group.slug}-{group.rows.index(row)}"


def problem(row: Row) -> str:
    """Its name, HTML: a number stays on one line."""
    return escape(row.problem) if row.is_problem else breakable(row.problem)


def verdict(row: Row) -> str:
    """In a few words; what KernelBench or other arguments would not take is said beside it."""
    if not row.accepted:
        return f"rejected: {row.code}"
    others = row.record.get("other_arguments") or {}
    special = others.get("verdict") == "specialised"
    return drop_in.verdict(row.record) + ", specialised" * special


def tiles(group: Group) -> str:
    """The group's scores at a glance."""
    found = scores.summary([row.record for row in group.scored])
    least = min((row for row in group.timed if row.fastest), default=None, key=_fastest)
    whole = found["minimum"] is not None
    why = "" if whole else "not all were accepted and timed"
    lowest = f"{least.problem}, over the fastest baseline" if whole and least else why
    faster = found["fast_p"]["1"]
    aside = why if faster is None else "accepted and faster than the fastest baseline"
    shown = [
        ("accepted", f"{found['accepted']} of {found['all']}", _counted(group)),
        ("geometric mean", times(found["geometric_mean"]), why or "over the fastest baseline"),
        ("smallest speedup", times(found["minimum"]), lowest),
        ("fast_p at p = 1", share(faster), aside),
    ]
    items = "\n".join(
        f"<div><dt>{escape(name)}</dt><dd><b>{value}</b> {escape(aside)}</dd></div>"
        for name, value, aside in shown
    )
    return f'<dl class="tiles">\n{items}\n</dl>'


def _fastest(row: Row) -> float:
    return row.fastest["speedup"] if row.fastest else 0.0


def _counted(group: Group) -> str:
    others = f"; {len(group.others)} others are apart" if group.others else ""
    what = "problems" if all(row.is_problem for row in group.scored) else "references"
    twice = len({row.problem for row in group.scored}) < len(group.scored)
    return ("candidates" if twice else what) + others


def times(value: float | None) -> str:
    return NONE if value is None else f"{value:.2f}×"


def share(value: float | None) -> str:
    return NONE if value is None else f"{value:.0%}"


def groups_table(groups: list[Group]) -> str:
    """A row for each device and setting, with its scores; it links to the setting's section."""
    heads = [("device, setting", TEXT), ("accepted", NUMBERS), ("geometric mean", NUMBERS)]
    heads += [("smallest speedup", NUMBERS), ("fast_p at p = 1", NUMBERS), ("date", TEXT)]
    rows = []
    for group in groups:
        found = scores.summary([row.record for row in group.scored])
        link = f'<a href="#s-{group.slug}">{escape(group.title)}</a>'
        counted = f"{found['accepted']} of {found['all']}"
        cells = [row_head(group.title, link)]
        cells.append(f'<td data-key="{found["accepted"] / found["all"]!r}">{counted}</td>')
        cells += [number(found[key], "{:.2f}×") for key in ("geometric_mean", "minimum")]
        cells += [number(found["fast_p"]["1"], "{:.0%}"), text(dates(group.rows))]
        rows.append(html_row(cells))
    caption = "Devices and settings; speedups over the fastest baseline, where all were timed"
    ordered = [group.title for group in groups] == sorted(group.title for group in groups)
    made = table(caption, heads, rows, sortable=True)
    return made if ordered else made.replace(' aria-sort="ascending"', "", 1)


def dates(rows) -> str:
    """The first and the last day."""
    days = sorted({row.date for row in rows})
    return days[0] if len(days) == 1 else f"{days[0]} to {days[-1]}"


def results_table(groups: list[Group], others: bool = False) -> str:
    """One table of the full problems of all groups, or of everything else; empty without any."""
    found = [(g, row) for g in groups for row in (g.others if others else g.scored)]
    if not found:
        return ""
    found.sort(key=lambda pair: pair[1].order)  # stable: settings stay in order
    several = len({group.slug for group, _ in found}) > 1
    cold = any(row.cold_ms or row.eager_cold_ms for _, row in found)
    over = [name for name in _OVER if any(row.speedup(name) for _, row in found)]
    heads = [("problem" if not others else "reference", TEXT)] + [("setting", TEXT)] * several
    heads += [("verdict", TEXT), ("over fastest", NUMBERS)]
    heads += [(f"over {LABELS[name]}", NUMBERS) for name in over]
    heads += [("solution ms", NUMBERS), ("fastest baseline ms", NUMBERS)]
    heads += [("cold call ms", NUMBERS)] * cold
    heads += [("of roofline", NUMBERS), ("rel. L2 error", NUMBERS)]
    counts = Counter((group.slug, row.problem) for group, row in found)
    rows = []
    for group, row in found:
        cells = [_problem(group, row, counts[group.slug, row.problem] > 1)]
        cells += [_setting(row)] * several
        cells += [text(verdict(row), "" if row.accepted else "bad"), _over_fastest(row)]
        cells += [number(row.speedup(name), "{:.2f}×") for name in over]
        rows.append(html_row([*cells, *_measured(row, cold)]))
    what = "Parts of problems and other references" if others else "Results"
    about = f"{dates([row for _, row in found])}; medians in milliseconds, quartiles of speedups"
    caption = f"{what}, {about}" if several else f"{what}, {found[0][0].title}; {about}"
    return table(caption, heads, rows, sortable=True)


def _problem(group: Group, row: Row, several: bool) -> str:
    asides = [row.name] * (row.name != row.problem) + [row.file] * several
    asides = "".join(f"<small>{breakable(told)}</small>" for told in dict.fromkeys(asides) if told)
    link = f'<a href="#{anchor(group, row)}">{problem(row)}</a>'
    return row_head(row.problem, f"{link} {asides}".strip())


def _setting(row: Row) -> str:
    key = escape(f"{row.device}, {row.setting}")
    shown = f"{escape(row.device)}<small>{escape(row.setting)}</small>"
    return f'<td class="text setting" data-key="{key}">{shown}</td>'


def _over_fastest(row: Row) -> str:
    fastest = row.fastest
    quartiles = f"<small>{fastest['low']:.2f}–{fastest['high']:.2f}</small>" if fastest else ""
    return number(row.speedup(FASTEST), "<b>{:.2f}×</b>", quartiles)


def _measured(row: Row, cold: bool) -> list[str]:
    """Times, share of the roofline, error."""
    rates, best = row.rates or {}, (row.fastest or {}).get("baseline")
    in_16_bits = rates.get("share_16_bit")
    share_aside = doubts.mark(doubts.is_high(rates))
    share_aside += _small("16-bit {:.0%}", in_16_bits) if in_16_bits else ""
    named = f'<small class="breaks">{escape(LABELS.get(best, str(best)))}</small>' if best else ""
    ours = doubts.mark("solution" in row.wide) + _small("IQR {:.2g}", row.iqr)
    return [
        number(row.ms, "{:.4g}", ours),
        number(row.baseline_ms.get(best), "{:.4g}", doubts.mark(best in row.wide) + named),
        *[number(row.cold_ms, "{:.4g}", _small("eager’s {:.3g}", row.eager_cold_ms))] * cold,
        number(rates.get("share"), "{:.0%}", share_aside),
        number(row.rel_l2, "{:.1e}", _small("PyTorch’s {:.1e}", row.pytorch_rel_l2)),
    ]


def _small(form: str, value: float | None) -> str:
    return "" if value is None else f"<small>{form.format(value)}</small>"


def fast_p_table(group: Group) -> str:
    """The shares at some p, over each baseline and over the fastest."""
    heads = [("over", TEXT), *((f"p\u00a0=\u00a0{level:g}", NUMBERS) for level in _LEVELS)]
    rows = []
    for name in compared(group.scored):
        shares = [fast_p(group.scored, name, level) for level in _LEVELS]
        cells = [number(value, "{:.0%}") for value in shares]
        rows.append(html_row([row_head(LABELS[name]), *cells]))
    caption = f"Share accepted and more than p times as fast, {group.title}"
    return table(caption, heads, rows)
