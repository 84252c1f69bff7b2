"""Pictures of records: fast_p curve, speedups, roofline."""

import math
import statistics

from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, PercentFormatter, StrMethodFormatter

from harness.report.doubts import LEGEND, is_high, mark
from harness.report.picture_style import COLOURS, Picture, picture, styled
from harness.report.report_data import BASELINES, FASTEST, Group, Row, compared, fast_p

_SERIES = {name: COLOURS[name.replace("_", "-")] for name in BASELINES} | {FASTEST: COLOURS["ink"]}
_BARS = _SERIES | {FASTEST: _SERIES["compile_channels_last"]}
_LABELS = BASELINES | {FASTEST: "fastest of these"}
_STYLES = ("-", (0, (6, 2)), (0, (2, 1.5)), (0, (6, 2, 1, 2)), (0, (1, 1)), "-")
_DASHES = dict(zip(_SERIES, _STYLES, strict=True))
_MANY = 40
_COMPACT, _LEGEND = 4.4, 0.9  # inches
_BACKGROUND = {"facecolor": COLOURS["paper"], "edgecolor": "none", "pad": 0.6}


def draw_all(groups: list[Group], compact: bool = False) -> list[Picture]:
    """fast_p, speedups and roofline of every group that has what they need, of its full problems.

    Compact ones fit a telephone's width, or three beside one another on a page that has their
    titles: narrow, the legend below, the title left out.
    A group in which nothing was accepted has only its fast_p curve, of zeros; one in which an
    accepted one was not timed has no such curve, for there is no telling where it would lie.
    """
    made = []
    for group in groups:
        if any(fast_p(group.scored, name, 1) is not None for name in _SERIES):
            made.append(draw_fast_p(group, compact))
        if group.timed:
            made.append(draw_speedups(group, compact))
        if any(row.rates for row in group.timed):
            made.append(draw_roofline(group, compact))
    return made


def _figure(width: float, height: float, compact: bool) -> Figure:
    """Sizes in inches; a compact figure has the width of all of them, and room for the legend."""
    size = (_COMPACT, height + _LEGEND) if compact else (width, height)
    return Figure(figsize=size, layout="constrained")


def _finish(figure: Figure, axes, title: str, compact: bool, legend: bool = True) -> None:
    """Legend and title."""
    if not compact:
        axes.set_title(title)
    if legend and compact:
        figure.legend(title="over", loc="outside lower left", ncols=2, alignment="left")
    elif legend:
        axes.legend(title="over", loc="upper left", bbox_to_anchor=(1, 1), alignment="left")


@styled
def draw_fast_p(group: Group, compact: bool = False) -> Picture:
    """Share of problems accepted and faster than p, a step curve for each baseline."""
    figure, rows = _figure(7, 2.9 if compact else 3.8, compact), group.scored
    axes = figure.subplots()
    speedups = [row.speedup(name) or 0 for row in rows for name in _SERIES]
    right = max(1.25, 1.08 * max(speedups))
    told = []
    for name, colour in _SERIES.items():
        if name not in compared(rows) or fast_p(rows, name, 1) is None:
            continue
        steps = sorted({0.0, right, *(row.speedup(name) or 0.0 for row in rows)})
        shares = [fast_p(rows, name, p) for p in steps]
        under = name == FASTEST  # one of the others lies on it everywhere, and must be seen
        style = {"color": colour, "linewidth": 5 if under else 1.8, "linestyle": _DASHES[name]}
        style["zorder"] = 2 if under else 3
        axes.step(steps, shares, where="post", label=_LABELS[name], **style)
        told.append(f"{_LABELS[name]}: {fast_p(rows, name, 1):.0%}")
    axes.axvline(1, color=COLOURS["muted"], linewidth=1)
    axes.set(xlim=(0, right), ylim=(0, 1.04), xlabel="p: times as fast as the baseline")
    axes.set_ylabel("accepted and faster than p")
    axes.yaxis.set_major_formatter(PercentFormatter(1))
    axes.grid(True)
    _finish(figure, axes, f"fast_p: {group.title}", compact)
    text = f"Share of {len(rows)} records accepted and faster (p = 1): {'; '.join(told)}."
    return picture(figure, f"{group.slug}/fast_p", f"fast_p, {group.title}", text)


@styled
def draw_speedups(group: Group, compact: bool = False) -> Picture:
    """Bars of speedups over each baseline, a group for each record; rejected ones by name."""
    rows = group.scored
    measured = [name for name in BASELINES if any(row.speedup(name) for row in rows)]
    bars = measured if len(rows) <= _MANY else [FASTEST]
    size = 0.8 / max(1, len(bars))
    height = (0.8 if compact else 1.3) + len(rows) * max(0.3, 0.2 * len(bars))
    figure = _figure(7.6, height, compact)
    axes = figure.subplots()
    for place, name in enumerate(bars):
        offset = (place - (len(bars) - 1) / 2) * size
        ys = [index + offset for index, row in enumerate(rows) if row.speedup(name)]
        values = [row.speedup(name) for row in rows if row.speedup(name)]
        axes.barh(ys, values, size * 0.92, color=_BARS[name], label=_LABELS[name])
        for index, row in enumerate(rows):
            if row.speedup(name):
                _label_bar(axes, row, name, index + offset)
    for index, row in enumerate(rows):
        if not row.ms:
            what = "not timed" if row.accepted else f"rejected: {row.code}"
            axes.text(0.03, index, what, va="center", color=COLOURS["muted"], bbox=_BACKGROUND)
    axes.axvline(1, color=COLOURS["ink"], linewidth=1)
    axes.set_yticks(range(len(rows)), _row_labels(rows))
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set_xlim(0, 1.12 * max(row.speedup(name) or 0 for row in group.timed for name in bars))
    told = "baseline's time over the solution's"
    axes.set_xlabel(told if compact else f"speedup: {told}; whiskers: quartiles over rounds")
    axes.xaxis.set_major_formatter(StrMethodFormatter("{x:g}×"))
    axes.grid(True, axis="x")
    axes.tick_params(axis="y", length=0)
    _finish(figure, axes, f"Speedups: {group.title}", compact)
    told = "; ".join(f"{row.problem}: {_in_words(row)}" for row in rows)
    return picture(figure, f"{group.slug}/speedups", f"Speedups, {group.title}", f"{told}.")


def _label_bar(axes, row: Row, name: str, y: float) -> None:
    """The value behind the bar; the fastest baseline's is bold and has whiskers."""
    end, weight, fastest = row.speedup(name), "normal", row.fastest
    if fastest and name in (FASTEST, fastest.get("baseline")):
        weight = "bold"
        axes.plot([fastest["low"], fastest["high"]], [y, y], color=COLOURS["ink"], linewidth=1.4)
        ends = [fastest["low"], fastest["high"]]
        axes.plot(ends, [y, y], "|", color=COLOURS["ink"], markersize=5, markeredgewidth=1.4)
        end = max(end, fastest["high"])
    axes.annotate(
        f"{row.speedup(name):.2f}",
        (end, y),
        xytext=(4, 0),
        textcoords="offset points",
        va="center",
        fontsize=8,
        fontweight=weight,
        bbox=_BACKGROUND,
    )


def _row_labels(rows) -> list[str]:
    """The problem, and which candidate it is where a problem is there twice."""
    names = [row.problem for row in rows]
    short = [_candidate(row) for row in rows]
    pairs = zip(names, short, strict=True)
    return [f"{name}\n{file}" if names.count(name) > 1 else name for name, file in pairs]


def _candidate(row: Row) -> str:
    """The number of its sample, or the end of the solution's file name."""
    if row.record.get("sample") is not None:
        return f"sample {row.record['sample']}"
    file = row.solution.rpartition("/")[2].removesuffix(".py")
    return file if len(file) <= 22 else f"…{file[-21:]}"


def _in_words(row: Row) -> str:
    if not row.accepted:
        return f"rejected, {row.code}"
    return f"{row.fastest['speedup']:.2f} over the fastest" if row.fastest else "no baseline timed"


@styled
def draw_roofline(group: Group, compact: bool = False) -> Picture:
    """Each record a point below the ceilings that the records measured (median and range)."""
    rows = [row for row in group.timed if row.rates]
    points = [(row.rates["gflop"] / row.rates["gbyte"], row.rates["tflops"]) for row in rows]
    bandwidth = _range(row.rates["ceiling_gbps"] / 1e3 for row in rows)
    names = sorted({name for row in rows for name in row.rates["ceiling_tflops"]})
    ceilings = {
        name: _range(
            row.rates["ceiling_tflops"][name] for row in rows if name in row.rates["ceiling_tflops"]
        )
        for name in names
    }
    top = max(middle for _, middle, _ in ceilings.values())
    ridge = top / bandwidth[1]
    left = min(ridge, *(x for x, _ in points)) / 4
    right = max(ridge, *(x for x, _ in points)) * 4
    figure = _figure(7, 2.9 if compact else 4.4, compact)
    axes = figure.subplots()
    axes.plot([left, ridge], [left * bandwidth[1], top], color=COLOURS["ink"], linewidth=1.6)
    axes.fill_between(
        [left, ridge],
        [left * bandwidth[0], ridge * bandwidth[0]],
        [left * bandwidth[2], ridge * bandwidth[2]],
        color=COLOURS["grid"],
        linewidth=0,
    )
    for low, middle, high in ceilings.values():
        start = middle / bandwidth[1]
        axes.plot([start, right], [middle, middle], color=COLOURS["ink"], linewidth=1.6)
        axes.fill_between([start, right], low, high, color=COLOURS["grid"], linewidth=0)
    axes.set(xscale="log", yscale="log", xlim=(left, right))
    axes.set_ylim(min(left * bandwidth[1], *(y / 2 for _, y in points)), top * 2.2)
    _label_ceilings(axes, ceilings, right)
    edge = left**0.4 * right**0.6 if compact else math.inf
    _label_points(axes, rows, points, edge)
    speed = _figures(bandwidth[1] * 1e3)
    told = f"FLOP per byte{'' if compact else ' of input and output'}"
    axes.set_xlabel(f"{told} (slope: memory, {speed} GB/s)")
    axes.set_ylabel("TFLOP/s")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(StrMethodFormatter("{x:g}"))
        low, high = axis.get_view_interval()
        axis.set_major_locator(LogLocator(10, (1.0, 2.0, 5.0) if high < 3e3 * low else (1.0,)))
        axis.set_minor_locator(LogLocator(10, ()))
    axes.grid(True)
    _finish(figure, axes, f"Roofline: {group.title}", compact, legend=False)
    shares = [f"{row.rates['share']:.0%}{mark(is_high(row.rates))}" for row in rows]
    pairs = zip(rows, shares, strict=True)
    told = "; ".join(f"{row.problem}: {share}" for row, share in pairs)
    text = f"Share of the roofline in the evaluation's precision: {told}."
    text += f" {LEGEND}." if any(is_high(row.rates) for row in rows) else ""
    return picture(figure, f"{group.slug}/roofline", f"Roofline, {group.title}", text)


def _range(values) -> tuple[float, float, float]:
    values = list(values)
    return min(values), statistics.median(values), max(values)


def _label_ceilings(axes, ceilings: dict, right: float) -> None:
    """One label above each line, and one for lines that nearly coincide."""
    near: list[list[tuple[float, str]]] = []
    for name, (_, middle, _) in sorted(ceilings.items(), key=lambda item: item[1][1]):
        if near and middle < 1.25 * near[-1][-1][0]:
            near[-1].append((middle, name))
        else:
            near.append([(middle, name)])
    style = {"fontsize": 8, "textcoords": "offset points", "color": COLOURS["ink"]}
    for part in near:
        text = ", ".join(f"{name} {_figures(middle)}" for middle, name in part)
        at = (right, part[-1][0])
        axes.annotate(f"{text} TFLOP/s", at, xytext=(-2, 4), ha="right", va="bottom", **style)


def _figures(value: float) -> str:
    """Three significant figures, without an exponent."""
    return f"{float(f'{value:.3g}'):g}"


def _label_points(axes, rows: list[Row], points: list[tuple[float, float]], edge: float) -> None:
    """Names stand to the right and left by turns, so that neighbours do not cover each other; left
    of a point beyond `edge`, where the ceilings have their names.
    """
    colour = _SERIES["compile_channels_last"]
    axes.plot(*zip(*points, strict=True), "o", color=colour, markersize=7)
    if len(rows) > _MANY:
        return
    order = sorted(range(len(rows)), key=lambda index: points[index])
    labels = _row_labels(rows)
    for place, index in enumerate(order):
        to_left = place % 2 == 0 or points[index][0] > edge
        axes.annotate(
            labels[index],
            points[index],
            xytext=(-8 if to_left else 8, 0),
            textcoords="offset points",
            ha="right" if to_left else "left",
            va="center",
            fontweight="bold",
        )
