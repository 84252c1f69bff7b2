"""`python -m lab.ladder` draws lab/ladder.svg from the ladder of lab/hopper_kernel.md.

`--check` changes nothing and exits 1 where the picture differs from the page's table.
"""

import argparse
import re
import sys
import textwrap
from dataclasses import dataclass
from pathlib import Path

from matplotlib.figure import Figure

from harness.report.picture_style import COLOURS, Picture, picture, styled

LAB = Path(__file__).resolve().parent
PAGE, SVG = LAB / "hopper_kernel.md", LAB / "ladder.svg"


@dataclass(frozen=True)
class Ladder:
    """A table of versions: milliseconds by problem and version."""

    title: str
    problems: tuple[str, ...]
    steps: tuple[tuple[str, tuple[float | None, ...], str], ...]  # None: not measured


def read_ladder(page: Path) -> Ladder:
    """The table below the heading "## Ladder …": version, commit, a column a problem, why. A time
    that was not measured is "–", in any row but the first.

    Raises ValueError where there is no such table or a time is no positive number.
    """
    section = re.search(r"^## (Ladder.*?)$(.*?)(?=^## |\Z)", page.read_text(), re.M | re.S)
    lines = [line for line in section[2].splitlines() if line.startswith("|")] if section else []
    cells = [[cell.strip() for cell in line.strip("| \t").split(" | ")] for line in lines]
    if len(cells) < 3 or cells[0][:2] != ["version", "commit"] or cells[0][-1].strip(" |") != "why":
        raise ValueError(f"{page}: no table | version | commit | … | why | below '## Ladder …'")
    problems = tuple(cells[0][2:-1])
    steps = []
    for row in cells[2:]:
        name, times, why = row[0], row[2 : 2 + len(problems)], row[2 + len(problems) :]
        try:
            values = tuple(None if time == "–" and steps else float(time) for time in times)
            if len(values) != len(problems):
                raise ValueError(f"{len(values)} times for {len(problems)} problems")
            if not all(value is None or 0 < value < float("inf") for value in values):
                raise ValueError("a time must be a positive number")
        except ValueError as error:
            raise ValueError(f"{page}: ladder, version {name!r}: {error}") from None
        steps.append((name, values, " | ".join(why).strip(" |")))
    return Ladder(section[1], problems, tuple(steps))


@styled
def draw_ladder(ladder: Ladder) -> Picture:
    """A panel a problem, a bar a version, PyTorch's times first."""
    count = len(ladder.problems)
    figure = Figure(figsize=(10, 1.3 + 0.34 * len(ladder.steps)), layout="constrained")
    panels = figure.subplots(1, count, sharey=True, squeeze=False)[0]
    labels = [textwrap.fill(name, 46, max_lines=2) for name, _, _ in ladder.steps]
    colours = [
        COLOURS["compile-channels-last"] if name[:1].isdigit() else COLOURS["floor"]
        for name, _, _ in ladder.steps
    ]
    for column, (axes, problem) in enumerate(zip(panels, ladder.problems, strict=True)):
        values = [times[column] for _, times, _ in ladder.steps]
        axes.barh(range(len(values)), [value or 0 for value in values], 0.72, color=colours)
        for y, value in enumerate(values):
            if value is None:
                continue
            place = {"xytext": (3, 0), "textcoords": "offset points"}
            axes.annotate(f"{value:g}", (value, y), **place, va="center", fontsize=8)
        axes.set_title(problem)
        axes.set_xlim(0, 1.25 * max(value or 0 for value in values))
        axes.tick_params(axis="y", length=0)
        axes.tick_params(axis="x", labelsize=8)
        axes.grid(True, axis="x")
    panels[0].set_yticks(range(len(labels)), labels, fontsize=8)
    panels[0].invert_yaxis()
    figure.suptitle(ladder.title, x=0.01, ha="left", fontsize=11)
    figure.supxlabel("milliseconds, convolution alone", fontsize=9)
    told = "; ".join(
        f"{problem}: {known[0]:g} to {known[-1]:g} ms"
        for i, problem in enumerate(ladder.problems)
        if (known := [times[i] for _, times, _ in ladder.steps if times[i] is not None])
    )
    text = f"From {ladder.steps[0][0]} to version {ladder.steps[-1][0]}. {told}."
    return picture(figure, "ladder", ladder.title, text)


def main(arguments: list[str] | None = None) -> int:
    """Command line; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m lab.ladder", description=__doc__)
    parser.add_argument("--check", action="store_true", help="exit 1 on a difference")
    check = parser.parse_args(arguments).check
    svg = draw_ladder(read_ladder(PAGE)).svg
    if check:
        return int(not SVG.is_file() or SVG.read_text() != svg)
    SVG.write_text(svg)
    return 0


if __name__ == "__main__":
    sys.exit(main())
