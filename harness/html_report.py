"""One HTML page of records and pictures that needs no network and no other file.

Every text out of a record is escaped; the page's own policy forbids any other script and any load.
"""

import base64
import hashlib
import re
from html import escape
from pathlib import Path

from harness import doubts
from harness.picture_style import COLOURS, Picture
from harness.report_data import BASELINES, COLD, FASTEST, Group, Row, compared, fast_p

_HERE = Path(__file__).resolve().parent
_LEVELS = (0, 0.5, 0.8, 1, 1.5, 2)
_TEXT, _NUMBERS = "text", "numbers"


def page(groups: list[Group], pictures: list[Picture]) -> bytes:
    """The whole page, UTF-8."""
    style = (_HERE / "report_page.css").read_text()
    script = (_HERE / "report_page.js").read_text()
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    records = sum(len(group.rows) for group in groups)
    parts = [
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>Transposed convolutions: results</title>\n<style>\n{style}</style>\n</head>",
        "<body>\n<header>\n<h1>Transposed convolutions: results</h1>",
        f"<p>{records} records, {_count(groups)} accepted. {_method()}</p>\n</header>\n<main>",
        *(_section(group, pictures) for group in groups),
        f"</main>\n<script>{script}</script>\n</body>\n</html>\n",
    ]
    return "\n".join(parts).encode()


def _count(groups: list[Group]) -> int:
    return sum(row.accepted for group in groups for row in group.rows)


def _method() -> str:
    return (
        "Times are medians in milliseconds; the speedup that counts is over the fastest baseline, "
        "with the quartiles of the ratio within each round. A rejected solution has no speedup. "
        "Click a column’s head to sort by it."
    )


def _section(group: Group, pictures: list[Picture]) -> str:
    own = [picture for picture in pictures if picture.name.startswith(f"{group.slug}/")]
    figures = "\n".join(_figure(picture) for picture in own)
    return "\n".join(
        [
            f'<section aria-labelledby="{group.slug}">',
            f'<h2 id="{group.slug}">{escape(group.title)}</h2>',
            _records(group),
            _rejections(group),
            f'<h3>fast_p</h3>\n{_fast_p(group)}\n<h3>Pictures</h3>\n<div class="pictures">',
            f"{figures}\n</div>\n</section>",
        ]
    )


def _figure(picture: Picture) -> str:
    """The picture inline, its colours those of the page, in either colour scheme."""
    svg = picture.svg[picture.svg.index("<svg") :]
    svg = re.sub(r"<style type=.*?</style>", "", svg, flags=re.DOTALL)  # it would style the page
    for name, colour in COLOURS.items():
        svg = svg.replace(colour, f"var(--{name})")
    return f"<figure>\n{svg}<figcaption>{escape(picture.text)}</figcaption>\n</figure>"


def _records(group: Group) -> str:
    heads = [("problem", _TEXT), ("verdict", _TEXT), ("speedup over fastest", _NUMBERS)]
    heads += [("solution ms (IQR)", _NUMBERS)]
    heads += [(f"{label} ms", _NUMBERS) for label in BASELINES.values()]
    heads += [("TFLOP/s", _NUMBERS), ("of roofline (16-bit)", _NUMBERS)]
    heads += [("rel. L2 error (PyTorch’s)", _NUMBERS), ("input", _TEXT), ("solution", _TEXT)]
    cold = any(row.cold_ms or row.eager_cold_ms for row in group.rows)
    heads[4 + len(BASELINES) : 4 + len(BASELINES)] = [(COLD, _NUMBERS)] * cold
    body = "\n".join(_row(row, cold) for row in group.rows)
    dates = ", ".join(sorted({row.date for row in group.rows}))
    table = _table(f"Records, {group.title}; {dates}", heads, body, sortable=True)
    return f"{table}\n<p>{escape(doubts.LEGEND)}.</p>" if group.doubtful else table


def _row(row: Row, cold: bool) -> str:
    fastest, rates = row.fastest, row.rates or {}
    quartiles = f" ({fastest['low']:.2f}–{fastest['high']:.2f})" if fastest else ""
    wide = {name: doubts.mark(name in row.wide) for name in ("solution", *BASELINES)}
    spread = f" ({row.iqr:.2g})" if row.iqr is not None else ""
    in_16_bits = f" ({rates['share_16_bit']:.0%})" if rates.get("share_16_bit") else ""
    pytorch = f" ({row.pytorch_rel_l2:.1e})" if row.pytorch_rel_l2 is not None else ""
    eager_cold = f" ({row.eager_cold_ms:.3g})" if row.eager_cold_ms is not None else ""
    cells = [
        f'<th scope="row" class="text" data-key="{escape(row.problem)}">{escape(row.problem)}</th>',
        _text("accepted" if row.accepted else f"rejected: {row.code}", row.accepted),
        _number(row.speedup(FASTEST), "<b>{:.2f}×</b>", quartiles),
        _number(row.ms, "{:.4g}", spread + wide["solution"]),
        *(_number(row.baseline_ms.get(name), "{:.4g}", wide[name]) for name in BASELINES),
        *[_number(row.cold_ms, "{:.4g}", eager_cold)] * cold,
        _number(rates.get("tflops"), "{:.3g}"),
        _number(rates.get("share"), "{:.0%}", in_16_bits + doubts.mark(doubts.is_high(rates))),
        _number(row.rel_l2, "{:.1e}", pytorch),
        _text(row.input),
        _text(row.solution.rpartition("/")[2] or row.name),
    ]
    return f"<tr>{''.join(cells)}</tr>"


def _text(value: str, good: bool = True) -> str:
    kind = "text" if good else "text bad"
    return f'<td class="{kind}" data-key="{escape(value)}">{_breakable(value)}</td>'


def _breakable(name: str) -> str:
    """May break after an underscore, so that long file names do not widen the table."""
    return escape(name).replace("_", "_<wbr>")


def _number(value: float | None, form: str, aside: str = "") -> str:
    """Sorts by the unrounded value; an empty key sorts last."""
    if value is None:
        return '<td data-key="">–</td>'
    return f'<td data-key="{value!r}">{form.format(value)}{aside}</td>'


def _rejections(group: Group) -> str:
    rejected = [row for row in group.rows if not row.accepted]
    items = "\n".join(
        f"<li>{escape(row.problem)} {escape(row.solution.rpartition('/')[2])}: "
        f"{escape('; '.join(row.reasons))}</li>"
        for row in rejected
    )
    return f"<h3>Why rejected</h3>\n<ul>\n{items}\n</ul>" if rejected else ""


def _fast_p(group: Group) -> str:
    heads = [("over", _TEXT), *((f"p = {level:g}", _NUMBERS) for level in _LEVELS)]
    rows = []
    labels = BASELINES | {FASTEST: "fastest of these"}
    for name in compared(group.rows):
        label = labels[name]
        shares = [fast_p(group.rows, name, level) for level in _LEVELS]
        cells = "".join(_number(share, "{:.0%}") for share in shares)
        rows.append(f'<tr><th scope="row" class="text">{label}</th>{cells}</tr>')
    caption = f"Share accepted and more than p times as fast, {group.title}"
    return _table(caption, heads, "\n".join(rows), sortable=False)


def _table(caption: str, heads: list[tuple[str, str]], body: str, sortable: bool) -> str:
    cells = []
    for label, kind in heads:
        what = ' class="text"' if kind == _TEXT else ' data-numbers="1"'
        shown = f'<button type="button">{label}</button>' if sortable else label
        cells.append(f'<th scope="col"{what}>{shown}</th>')
    if sortable:  # the order that the rows come in
        cells[0] = cells[0].replace("<th ", '<th aria-sort="ascending" ')
    return (
        f'<div class="wide" role="region" aria-label="{escape(caption)}" tabindex="0">\n<table>'
        f"<caption>{escape(caption)}</caption>\n<thead><tr>{''.join(cells)}</tr></thead>\n"
        f"<tbody>\n{body}\n</tbody>\n</table>\n</div>"
    )
