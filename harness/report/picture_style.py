"""What all pictures share: colours, fonts, and how a figure becomes SVG and PNG.

The same figure gives the same bytes: no date, fixed identifiers, matplotlib's own font.
"""

import contextlib
import functools
import html
import io
import re
from dataclasses import dataclass

import matplotlib
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

# harness/report/html_report.py's page replaces each of these by a CSS variable of the same name.
COLOURS = {
    "paper": "#ffffff",
    "ink": "#1b1f24",
    "muted": "#59636e",
    "grid": "#d9dee3",
    "eager": "#b35806",
    "compile": "#1b7837",
    "channels-last": "#8073ac",
    "compile-channels-last": "#0868ac",
    "conv2d-channels-last": "#ae017e",
    "floor": "#b9c2cb",
}
_STYLE = {
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 10,
    "text.parse_math": False,
    "svg.fonttype": "none",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": COLOURS["muted"],
    "axes.labelcolor": COLOURS["ink"],
    "axes.titlecolor": COLOURS["ink"],
    "axes.titlelocation": "left",
    "axes.titlesize": 11,
    "axes.axisbelow": True,
    "axes.facecolor": "none",
    "figure.facecolor": COLOURS["paper"],
    "text.color": COLOURS["ink"],
    "xtick.color": COLOURS["muted"],
    "ytick.color": COLOURS["muted"],
    "xtick.labelcolor": COLOURS["ink"],
    "ytick.labelcolor": COLOURS["ink"],
    "grid.color": COLOURS["grid"],
    "grid.linewidth": 0.8,
    "legend.frameon": False,
}


@contextlib.contextmanager
def _our_style():
    """This module's style, whatever the user's own settings are."""
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(_STYLE)
        yield


@dataclass(frozen=True)
class Picture:
    """`name` is its path without suffix; `title` and `text` say in words what it shows."""

    name: str
    title: str
    text: str
    svg: str
    figure: Figure

    @functools.cached_property
    def png(self) -> bytes:
        """Drawn when asked for: a page does without."""
        content = io.BytesIO()
        with _our_style():
            self.figure.savefig(content, format="png", dpi=150, metadata={"Software": None})
        return content.getvalue()


def styled(draw):
    """For functions that draw: under this module's style."""

    @functools.wraps(draw)
    def wrapper(*arguments) -> Picture:
        with _our_style():
            return draw(*arguments)

    return wrapper


def picture(figure: Figure, name: str, title: str, text: str) -> Picture:
    """The finished figure as a picture."""
    FigureCanvasAgg(figure)
    figure.draw_without_rendering()  # lays out once, for both formats
    figure.set_layout_engine("none")
    for axes in figure.axes:  # the solver's last digits are its version's, and name clip paths
        axes.set_position([round(end, 6) for end in axes.get_position().bounds])
    content = io.StringIO()
    matplotlib.rcParams["svg.hashsalt"] = name
    figure.savefig(content, format="svg", metadata={"Date": None, "Creator": None})
    return Picture(name, title, text, _described(content.getvalue(), name, title, text), figure)


def _described(svg: str, name: str, title: str, text: str) -> str:
    """With a title and a description, as a screen reader wants them, and identifiers that stay
    unique when several pictures share a page."""
    prefix = re.sub(r"[^\w-]", "-", name)
    svg = re.sub(r' id="', f' id="{prefix}-', svg)
    svg = re.sub(r"url\(#", f"url(#{prefix}-", svg)
    svg = re.sub(r'xlink:href="#', f'xlink:href="#{prefix}-', svg)
    svg = re.sub(r"\s*<metadata>.*?</metadata>", "", svg, count=1, flags=re.DOTALL)
    words = f'<title id="{prefix}-title">{html.escape(title)}</title>\n '
    words += f'<desc id="{prefix}-desc">{html.escape(text)}</desc>'
    named = f'role="img" aria-labelledby="{prefix}-title {prefix}-desc"'
    svg = re.sub(r"<svg ([^>]*)>", lambda m: f"<svg {m[1]} {named}>\n {words}", svg, count=1)
    return "\n".join(line.rstrip() for line in svg.splitlines()) + "\n"
