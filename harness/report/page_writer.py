"""`python -m harness.report` writes the tables of README.md and docs/*.md from the records in
results/.

A table lies between the lines `<!-- table:NAME -->` and `<!-- /table -->`, where NAME is a folder
of results/; `<!-- table:NAME if recorded -->` may name one that is not there. Those that join
several folders have markers of their own (page_tables.py). With `--html FILE` or `--pictures DIR`
it writes a page or pictures (fast_p, speedups, roofline) instead, of the records given or else of
all in results/. `--check` changes nothing and exits 1 when what it would write differs from what is
there. Wrong usage and places that cannot be written are status 2, an internal error 4.
"""

import argparse
import re
import sys
from pathlib import Path

from harness.catalog import ROOT
from harness.errors import UsageError
from harness.files import require_file, require_folder, write_files
from harness.report import doubts, page_tables, records, report_data
from harness.report.report_data import BASELINES
from harness.run.ending import status_of

_TABLE = re.compile(
    r"(?P<open><!-- table:(?P<name>[\w.-]+)(?P<optional> if recorded)? -->\n)"
    r"(?P<body>.*?)(?P<close><!-- /table -->)",
    re.DOTALL,
)
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))


def render(found: list[dict]) -> str:
    """The Markdown table of one device's records, with a line about device, date and method."""
    found = sorted(found, key=_order)
    timed = [name for name in BASELINES if any(name in record["ms"] for record in found)]
    over = "fastest" if len(timed) != 1 else BASELINES[timed[0]]
    head = ["problem", "input", "solution ms (IQR)", *(f"{BASELINES[name]} ms" for name in timed)]
    cold = any(record.get("cold_call_ms") for record in found)  # older records have none
    head += [report_data.COLD] * cold
    head += [f"speedup over {over}", "TFLOP/s", "of roofline (16-bit)", "rel. L2 error (PyTorch's)"]
    lines = [f"| {' | '.join(head)} |", "|" + " --- |" * len(head)]
    lines += [f"| {' | '.join(_row(record, timed, cold))} |" for record in found]
    return "\n".join(lines) + "\n\n" + _footer(found) + "\n"


def _order(record: dict) -> list:
    return [int(part) if part.isdigit() else 0 for part in record["problem"].split("/")]


def _row(record: dict, baselines: list[str], cold: bool) -> list[str]:
    full, batch = record["problem_batch"], record["batch"]
    cut = f" (batch {batch} of {full})" if batch != full else ""
    shape = " × ".join(map(str, record["input_shape"])) + cut
    row = [f"{record['problem']}", shape]
    ms, fastest, rates = record["ms"], record["fastest"], record["roofline"]
    if not ms or record["verdict"] != "accepted":
        codes = sorted({reason.partition(":")[0] for reason in record["reasons"]})
        told = ", ".join(codes) or "not timed"
        row += [f"{record['verdict']}: {told}", *["–"] * (len(baselines) + cold), "–", "–", "–"]
    else:
        solution = ms["solution"]
        wide = {name: doubts.mark(doubts.is_wide(entry)) for name, entry in ms.items()}
        row.append(f"{solution['median']:.3g} ({solution['iqr']:.2g}){wide['solution']}")
        row += [f"{ms[n]['median']:.3g}{wide[n]}" if n in ms else "–" for n in baselines]
        row += [_cold(record)] * cold
        spread = f" ({fastest['low']:.2f}–{fastest['high']:.2f})" if fastest else ""
        row.append(f"**{fastest['speedup']:.2f}×**{spread}" if fastest else "–")
        in_16_bits = rates.get("share_16_bit")
        share = f"{rates['share']:.0%}" + (f" ({in_16_bits:.0%})" if in_16_bits else "")
        row += [f"{rates['tflops']:.3g}", share + doubts.mark(doubts.is_high(rates))]
    own = record["error"]["cases"].get("own")
    row.append(f"{own['rel_l2']:.1e} ({own['pytorch_rel_l2']:.1e})" if own else "–")
    return row


def _cold(record: dict) -> str:
    ours, eager = report_data.cold_calls(record)
    told = f"{ours:.3g}" if ours else "–"
    return told + (f" ({eager:.3g})" if eager else "")


def _footer(found: list[dict]) -> str:
    devices = sorted({_device_line(record) for record in found})
    accepted = sum(record["verdict"] == "accepted" for record in found)
    speedups = [record["fastest"]["speedup"] for record in found if record["fastest"]]
    lowest = f"; smallest speedup {min(speedups):.2f}×" if speedups else ""
    legend = f" {doubts.LEGEND}." if any(map(doubts.found, found)) else ""
    return f"{'; '.join(devices)}. {accepted} of {len(found)} accepted{lowest}.{legend}"


def _device_line(record: dict) -> str:
    gpu = record["versions"]["gpu"]
    tf32 = f", TF32 {record['tf32']}" if gpu and record["dtype"] == "float32" else ""
    timed = report_data.passes(record)
    return f"{records.machine(record)}; {record['dtype']}{tf32}, {timed}; {record['date']}"


def rendered(text: str, results: Path) -> str:
    """`text` with every table replaced by the one its records give.

    Raises UsageError for a table whose folder has no record, and for markers that do not pair.
    """
    if len(_TABLE.findall(text)) != text.count("<!-- table:"):
        raise UsageError("a '<!-- table:NAME -->' without its '<!-- /table -->'")

    def replace(match: re.Match) -> str:
        folder = results / match["name"]
        if match["optional"] and not folder.is_dir():
            return f"{match['open']}{page_tables.NOT_RECORDED.capitalize()}.\n{match['close']}"
        return match["open"] + render(records.read_records(folder)) + match["close"]

    return page_tables.rendered(_TABLE.sub(replace, text), results)


def pages(given: argparse.Namespace) -> dict[Path, bytes]:
    """The files that `--html` and `--pictures` ask for, and their contents.

    Raises UsageError for wrong records.
    """
    from harness.report import html_report, pictures  # matplotlib, which the tables do without

    groups = report_data.read_groups(given.records or [given.results])
    files = {}
    for picture in pictures.draw_all(groups) if given.pictures else ():
        for form in ("svg", "png") if given.format == "both" else (given.format,):
            path = given.pictures / f"{picture.name}.{form}"
            files[path] = picture.png if form == "png" else picture.svg.encode()
    if given.html:
        files[given.html] = html_report.page(groups, pictures.draw_all(groups, compact=True))
    return files


def main(arguments: list[str] | None = None) -> int:
    """Command line; returns the exit status."""
    given = _parser().parse_args(arguments)
    return status_of("harness.report", lambda: _run(given))


def _run(given: argparse.Namespace) -> int:
    if given.html and not given.check:
        require_file(given.html, "--html", given.records)
    if given.pictures and not given.check:
        require_folder(given.pictures, "--pictures")
    if given.html or given.pictures:
        files = pages(given)
    elif given.records:
        raise UsageError("records are for --html and --pictures; the README takes --results")
    else:
        files = {}
        for page in [given.readme] if given.readme else PAGES:
            if not page.is_file():
                raise UsageError(f"{page}: no such file")
            files[page] = rendered(page.read_text(), given.results).encode()
    if not given.check:
        write_files(files)
        return 0
    stale = [path for path, content in files.items() if _content(path) != content]
    for path in stale:
        print(f"{path}: differs from the records", file=sys.stderr)
    return int(bool(stale))


def _content(path: Path) -> bytes | None:
    return path.read_bytes() if path.is_file() else None


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m harness.report",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("records", type=Path, nargs="*", help="records or folders, for pages")
    parser.add_argument("--html", type=Path, metavar="FILE", help="write one self-contained page")
    parser.add_argument("--pictures", type=Path, metavar="DIR", help="write pictures")
    parser.add_argument("--format", choices=["both", "svg", "png"], default="both")
    parser.add_argument("--check", action="store_true", help="exit 1 on a difference")
    parser.add_argument("--readme", type=Path, metavar="PAGE", help="this page alone")
    parser.add_argument("--results", type=Path, default=ROOT / "results")
    return parser


if __name__ == "__main__":
    sys.exit(main())
