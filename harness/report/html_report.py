"""The page of a run: one HTML file that needs no network and no other file.

Every text out of a record is escaped; the page's own policy forbids any other script and any load.
"""

import base64
import functools
import hashlib
import re
from html import escape
from pathlib import Path

from harness.report import doubts
from harness.report.html_card import card
from harness.report.html_parts import facts
from harness.report.html_results import (
    anchor,
    dates,
    fast_p_table,
    groups_table,
    results_table,
    tiles,
)
from harness.report.picture_style import COLOURS, Picture
from harness.report.report_data import Group, Row, checked

_HERE = Path(__file__).resolve().parent
_TITLE = "Transposed convolutions: results"
_PICTURES = {
    "speedups": ("Speedups", "Whiskers are quartiles over rounds, of the fastest baseline."),
    "fast_p": ("fast_p", "The share accepted and more than p times as fast as a baseline."),
    "roofline": ("Roofline", "Ceilings are those that the run itself measured."),
}
_FEW = 4
_METHOD = (
    "Times are medians in milliseconds of solution and baselines in one run, in turns. The speedup "
    "that counts is over the fastest baseline, with the quartiles of the ratio within each round. "
    "Errors are beside the reference in float64. A rejected solution has no time and no speedup.",
    "fast_p is the share of all candidates that were accepted and are more than p times as fast. A "
    "geometric mean is given only where all were accepted and timed.",
)


def page(groups: list[Group], pictures: list[Picture]) -> bytes:
    """The whole page, UTF-8. Raises UsageError for a record of another form."""
    style = (_HERE / "report_page.css").read_text()
    script = (_HERE / "report_page.js").read_text()
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    parts = [
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{_title(groups)}</title>\n<style>\n{style}</style>\n</head>\n<body>",
        '<a class="skip" href="#results">Skip to the results</a>',
        _header(groups),
        _contents(groups, pictures),
        "<main>",
        _overview(groups),
        _results(groups),
        *(_section(group, pictures, len(groups)) for group in groups),
        _method(),
        f"</main>\n<script>{script}</script>\n</body>\n</html>\n",
    ]
    return "\n".join(part for part in parts if part).encode()


def _title(groups: list[Group]) -> str:
    about = groups[0].title if len(groups) == 1 else f"{len(groups)} settings"
    return escape(f"{_TITLE}, {about}, {dates(_rows(groups))}")


def _rows(groups: list[Group]) -> list[Row]:
    return [row for group in groups for row in group.rows]


def _header(groups: list[Group]) -> str:
    rows = _rows(groups)
    one = len(groups) == 1
    pairs = _origin(rows, groups[0].setting) if one else _spread(groups)
    button = '<button type="button" id="theme" hidden>Dark colours</button>'
    return f"<header>\n<div><h1>{_TITLE}</h1>{button}</div>\n{facts(pairs)}\n</header>"


def _spread(groups: list[Group]) -> list[tuple[str, str]]:
    rows = _rows(groups)
    accepted = sum(row.accepted for row in rows)
    pairs = [("Devices", escape(_joined(row.device for row in rows)))]
    pairs += [("Date", escape(dates(rows)))]
    pairs += [("Settings", f"{len(groups)}, each with a section of its own")]
    return [*pairs, ("Records", f"{len(rows)}, {accepted} accepted")]


def _origin(rows: tuple[Row, ...] | list[Row], setting: str = "") -> list[tuple[str, str]]:
    """Device, date, versions, commit and commands of these records."""
    pairs = [("Device", escape(_joined(row.device for row in rows)))]
    pairs += [("Setting", escape(setting))] * bool(setting)
    pairs += [("Date", escape(dates(rows)))]
    for name, keys in {
        "Software": {"torch": "PyTorch", "cuda": "CUDA", "cudnn": "cuDNN", "driver": "driver"},
        "Host": {"cpu": "", "cpu_threads": "threads:", "system": "", "python": "Python"},
    }.items():
        told = _joined(checked(row.record, functools.partial(_versions, keys)) for row in rows)
        pairs += [(name, escape(told))] * bool(told)
    commits = _joined(checked(row.record, _commit) for row in rows)
    pairs += [("Commit", f"<code>{escape(commits)}</code>" if commits else "not recorded")]
    commands = list(dict.fromkeys(str(row.record.get("command") or "") for row in rows))
    if len(commands) == 1 and commands[0]:  # otherwise each card has its own
        pairs.append(("Command", f"<code>{escape(commands[0])}</code>"))
    return pairs


def _versions(keys: dict[str, str], record: dict) -> str:
    versions = record.get("versions") or {}
    told = [f"{label} {versions[key]}".strip() for key, label in keys.items() if versions.get(key)]
    return ", ".join(told)


def _commit(record: dict) -> str:
    commit = record.get("commit")
    return commit["sha"][:12] + " with changes" * bool(commit.get("dirty")) if commit else ""


def _joined(values) -> str:
    return "; ".join(dict.fromkeys(value for value in values if value))


def _contents(groups: list[Group], pictures: list[Picture]) -> str:
    links = [("overview", "Overview"), ("results", "Results")]
    links += [("others", "Parts and others")] * any(group.others for group in groups)
    if len(groups) == 1:
        slug = groups[0].slug
        links += [(f"p-{picture.name.replace('/', '-')}", _name(picture)) for picture in pictures]
        links += [(f"s-{slug}", "Record by record")]
    elif len(groups) <= _FEW:  # the overview's table has links to all
        links += [(f"s-{group.slug}", group.title) for group in groups]
    links.append(("method", "How it is measured"))
    items = "".join(f'<li><a href="#{place}">{escape(told)}</a></li>' for place, told in links)
    return f'<nav aria-label="Contents">\n<ul>{items}</ul>\n</nav>'


def _name(picture: Picture) -> str:
    return _PICTURES[picture.name.rpartition("/")[2]][0]


def _overview(groups: list[Group]) -> str:
    shown = tiles(groups[0]) if len(groups) == 1 else groups_table(groups)
    head = '<section aria-labelledby="overview">\n<h2 id="overview">Overview</h2>'
    return f"{head}\n{shown}\n</section>"


def _results(groups: list[Group]) -> str:
    legend = ""
    if any(group.doubtful for group in groups):
        legend = f'\n<p class="muted">{escape(doubts.LEGEND)}.</p>'
    parts = [
        '<section aria-labelledby="results">\n<h2 id="results">Results</h2>',
        '<p class="tools" hidden><label>Filter rows <input type="search"></label> '
        '<output aria-live="polite"></output></p>',
        results_table(groups) + legend,
    ]
    others = results_table(groups, others=True)
    if others:
        parts.append(f'<h2 id="others">Parts of problems and other references</h2>\n{others}')
    return "\n".join([*parts, "</section>"])


def _section(group: Group, pictures: list[Picture], count: int) -> str:
    """Pictures, the table of fast_p and the cards of one device and setting."""
    own = [picture for picture in pictures if picture.name.startswith(f"{group.slug}/")]
    figures = "\n".join(map(_figure, own))
    head = "Record by record" if count == 1 else escape(group.title)
    drawn = f'<div class="pictures">\n{figures}\n</div>' if own else ""
    cards = "\n".join(
        checked(row.record, lambda _, row=row: card(row, anchor(group, row))) for row in group.rows
    )
    tools = '<p class="tools" hidden><button type="button" class="all">Open all</button></p>'
    listed = f'{tools}\n<div class="cards">\n{cards}\n</div>'
    title = f'<h2 id="s-{group.slug}">{head}</h2>'
    if count == 1:
        parts = [drawn, fast_p_table(group), title, listed]
    else:
        parts = [title, facts(_origin(group.rows)), drawn, fast_p_table(group), listed]
    body = "\n".join(part for part in parts if part)
    return f'<section aria-labelledby="s-{group.slug}">\n{body}\n</section>'


def _figure(picture: Picture) -> str:
    """The picture inline, its colours those of the page, in either colour scheme."""
    svg = picture.svg[picture.svg.index("<svg") :]
    svg = re.sub(r"<style type=.*?</style>", "", svg, flags=re.DOTALL)  # it would style the page
    for name, colour in COLOURS.items():
        svg = svg.replace(colour, f"var(--{name})")
    head, told = _PICTURES[picture.name.rpartition("/")[2]]
    place = f"p-{picture.name.replace('/', '-')}"
    return (
        f'<figure aria-labelledby="{place}">\n<h3 id="{place}">{head}</h3>\n{svg}'
        f"<figcaption>{told}</figcaption>\n</figure>"
    )


def _method() -> str:
    paragraphs = "\n".join(f"<p>{escape(part)}</p>" for part in _METHOD)
    return (
        '<section aria-labelledby="method">\n<h2 id="method">How it is measured</h2>\n'
        f"{paragraphs}\n</section>"
    )
