"""HTML of which the page of a run is made: tables, cells, facts. All text is escaped here."""

from collections.abc import Iterable
from html import escape

TEXT, NUMBERS = "text", "numbers"
NONE = "–"


def breakable(name: str) -> str:
    """Escaped; may break after '_' and '/', so that long names do not widen a table."""
    return escape(name).replace("_", "_<wbr>").replace("/", "/<wbr>")


def text(value: str, kind: str = "") -> str:
    """A cell of words; `kind` is a further class."""
    return (
        f'<td class="{f"text {kind}".strip()}" data-key="{escape(value)}">{breakable(value)}</td>'
    )


def number(value: float | None, form: str, aside: str = "", kind: str = "") -> str:
    """A cell that sorts by the unrounded value; an empty key sorts last."""
    if value is None:
        return f'<td data-key="">{NONE}</td>'
    named = f' class="{kind}"' if kind else ""
    return f'<td{named} data-key="{value!r}">{form.format(value)}{aside}</td>'


def row_head(key: str, shown: str | None = None) -> str:
    """The first cell of a row; `shown` is HTML."""
    inner = breakable(key) if shown is None else shown
    return f'<th scope="row" class="text" data-key="{escape(key)}">{inner}</th>'


def row(cells: Iterable[str]) -> str:
    """A table's row of such cells."""
    return f"<tr>{''.join(cells)}</tr>"


def table(
    caption: str, heads: list[tuple[str, str]], rows: list[str], sortable: bool = False
) -> str:
    """A table in a box of its own that scrolls; `heads` are labels, each TEXT or NUMBERS.

    A sortable one comes in ascending order of its first column.
    """
    cells = []
    for place, (label, kind) in enumerate(heads):
        what = ' class="text"' if kind == TEXT else ' data-numbers="1"'
        what += ' aria-sort="ascending"' if sortable and place == 0 else ""
        shown = escape(label)
        shown = f'<button type="button">{shown}</button>' if sortable else shown
        cells.append(f'<th scope="col"{what}>{shown}</th>')
    return (
        f'<div class="wide" role="region" aria-label="{escape(caption)}" tabindex="0">\n<table>'
        f"<caption><span>{escape(caption)}</span></caption>\n<thead><tr>{''.join(cells)}</tr></thead>\n"
        f"<tbody>\n{chr(10).join(rows)}\n</tbody>\n</table>\n</div>"
    )


def facts(pairs: Iterable[tuple[str, str]]) -> str:
    """Names and values (HTML) as a description list."""
    items = "\n".join(
        f"<div><dt>{escape(name)}</dt><dd>{value}</dd></div>" for name, value in pairs
    )
    return f'<dl class="facts">\n{items}\n</dl>'


def listed(items: Iterable[str]) -> str:
    """Sentences as a list; they are escaped."""
    return "<ul>\n" + "\n".join(f"<li>{escape(item)}</li>" for item in items) + "\n</ul>"
