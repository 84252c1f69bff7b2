"""Pictures of records: what they say, that they are whole or absent, and that they repeat."""

import functools
import io
import re
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from harness.report import compare_tables, page_writer, report_data, scores
from tests.made_records import GPU, record, rejected, timed, times, untimed, written
from tests.test_harness_results import RESULTS

pytest.importorskip("matplotlib")  # pinned; a machine that only runs GPU tests may lack it
from harness.report import pictures  # noqa: E402


@pytest.fixture
def folder(tmp_path):
    """Writes records, one file each, and gives their folder."""
    return functools.partial(written, tmp_path)


def left_in(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


# Numbers ----------------------------------------------------------------------------------------


def test_fast_p_counts_all_and_does_not_guess(folder):
    made = folder(timed("1/1", 2.0), timed("1/2", 1.0), rejected("1/3", "crash: x"), untimed("1/4"))
    rows = report_data.read_groups([made])[0].rows
    assert [row.problem for row in rows] == ["1/1", "1/2", "1/3", "1/4"]
    steps = (0, 0.99, 1, 1.99, 2)
    shares = [report_data.fast_p(rows[:3], "eager", p) for p in steps]
    assert shares == pytest.approx([2 / 3, 2 / 3, 1 / 3, 1 / 3, 0])  # faster than p, not as fast
    assert [report_data.fast_p(rows, "eager", p) for p in steps] == [3 / 4, *[None] * 4]
    assert report_data.fast_p(rows[:1], "compile", 0) == 1  # accepted; how fast is not known
    assert report_data.fast_p(rows[:1], "compile", 0.5) is None
    assert report_data.fast_p(rows[2:3], "compile", 1) == 0
    assert report_data.fast_p([], "compile", 0) is None
    assert report_data.compared(rows) == ["eager", report_data.FASTEST]


def page_fast_p(path: Path) -> dict[str, str]:
    """The shares over the fastest baseline, by p, as the page shows them."""
    table = re.search(r"<caption><span>Share accepted.*?</table>", path.read_text(), re.S)[0]
    heads = re.findall(r">p\s=\s([\d.]+)<", table)
    row = re.search(r"fastest of these</th>(.*?)</tr>", table, re.S)[1]
    return dict(zip(heads, re.findall(r">([^<]+)</td>", row), strict=True))


MIXED = [untimed(f"1/{n}") for n in (1, 2, 3)]
MIXED += [rejected(f"1/{n}", "crash: x", ms={}, fastest=None) for n in range(4, 9)]
TIMED = [timed("1/1", 1.6), timed("1/2", 0.9), rejected("1/3", "crash: x", ms={}, fastest=None)]


@pytest.mark.parametrize(
    ("found", "at_0", "at_1"), [(MIXED, "38%", "–"), (TIMED, "67%", "33%"), (MIXED[3:], "0%", "0%")]
)
def test_page_and_terminal_show_the_same_fast_p(tmp_path, folder, found, at_0, at_1):
    assert page_writer.main([str(folder(*found)), "--html", str(tmp_path / "page.html")]) == 0
    shown = page_fast_p(tmp_path / "page.html")
    assert (shown["0"], shown["1"]) == (at_0, at_1)
    console = Console(file=io.StringIO(), width=200)
    compare_tables.print_scores(console, {"all": scores.summary(found)})
    lines = [line for line in console.file.getvalue().splitlines() if "all" in line]
    cells = [cell.strip() for cell in lines[1].strip("│").split("│")][1:]
    terminal = dict(zip((f"{p:g}" for p in scores.THRESHOLDS), cells, strict=True))
    assert shown == {p: terminal[p].replace("n/a", "–") for p in shown}


def test_fast_p_of_the_committed_records_is_their_share():
    for group in report_data.read_groups([RESULTS]):
        faster = [row for row in group.rows if row.fastest and row.fastest["speedup"] > 1]
        known = all(row.fastest or not row.accepted for row in group.rows)
        share = len(faster) / len(group.rows) if known else None
        assert report_data.fast_p(group.rows, report_data.FASTEST, 1) == share


def test_groups_by_setting_and_orders_by_number(folder):
    ten, nine, bf16 = timed("1/10", 2.0), timed("1/9", 2.0), timed("1/9", 2.0, dtype="bfloat16")
    strict = timed("1/9", 2.0, tf32="forbid", backward=True)
    groups = report_data.read_groups([folder(ten, nine, bf16, strict, ten)])
    assert [(group.slug, [row.problem for row in group.rows]) for group in groups] == [
        ("nvidia-h200", ["1/9", "1/10"]),
        ("nvidia-h200-bfloat16", ["1/9"]),
        ("nvidia-h200-tf32-forbid-backward", ["1/9"]),
    ]


# Pictures ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def drawn():
    """Of the settings that are usual on a device: the others have tables."""
    folders = [RESULTS / "cpu", RESULTS / "nvidia-h200", RESULTS / "nvidia-h200-backward"]
    groups = report_data.read_groups(folders)
    return groups, pictures.draw_all(groups)


def test_committed_pictures_are_drawn_again_byte_for_byte(drawn):
    made = {f"{picture.name}.svg": picture.svg for picture in drawn[1]}
    committed = {str(path.relative_to(RESULTS)) for path in RESULTS.rglob("*.svg")}
    assert set(made) == committed - {"training_curves.svg"}  # tests/test_lab.py
    stale = [name for name, svg in made.items() if (RESULTS / name).read_text() != svg]
    command = "python -m harness.report results/cpu results/nvidia-h200{,-backward}"
    assert not stale, f"run: {command} --pictures results --format svg"
    assert sum(len(svg.encode()) for svg in made.values()) < 200_000


def test_pictures_are_whole_and_described(drawn):
    for picture in drawn[1]:
        assert picture.png.startswith(b"\x89PNG\r\n") and picture.png.endswith(b"IEND\xaeB`\x82")
        root = ElementTree.fromstring(picture.svg)
        name = "{http://www.w3.org/2000/svg}"
        assert root.get("role") == "img"
        title, text = root.find(f"{name}title"), root.find(f"{name}desc")
        assert root.get("aria-labelledby").split() == [title.get("id"), text.get("id")]
        assert title.text == picture.title and text.text == picture.text
        assert "date" not in picture.svg.lower()


def test_pictures_show_the_records_numbers(drawn):
    groups, made = drawn
    svgs = {picture.name: picture.svg for picture in made}
    for group in groups:
        bars = re.findall(r"<text[^>]*>([\d.]+)</text>", svgs[f"{group.slug}/speedups"])
        expected = [f"{row.speedup(b):.2f}" for row in group.rows for b in row.baseline_ms]
        assert expected and not set(expected) - set(bars)
        points = svgs[f"{group.slug}/roofline"]
        assert all(f">{row.problem}</text>" in points for row in group.rows)
        assert "GB/s" in points and "TFLOP/s" in points


def test_rejected_has_no_speedup_in_a_picture(folder):
    groups = report_data.read_groups([folder(timed("1/1", 2.0), rejected("1/2", "crash: x"))])
    made = {p.name: p for p in pictures.draw_all(groups)}
    bars = made["nvidia-h200/speedups"]
    assert "rejected: crash" in bars.svg and "1/2: rejected, crash" in bars.text
    assert f"{GPU['speedup']['eager']:.2f}" not in bars.svg
    assert ">1/2<" not in made["nvidia-h200/roofline"].svg


def test_only_rejected_records_have_a_picture_too(folder):
    groups = report_data.read_groups([folder(rejected("1/2", "crash: x"))])
    made = pictures.draw_all(groups)
    assert [picture.name for picture in made] == ["nvidia-h200/fast_p"]


def test_parts_of_problems_are_in_no_picture(folder):
    part = timed("2_11_convolution", 77.0)
    both = report_data.read_groups([folder(timed("1/1", 2.0), part)])
    for picture in pictures.draw_all(both):
        assert "1/1" in picture.text or picture.name.endswith("fast_p")
        assert "2_11" not in picture.svg and "77" not in picture.text
    alone = pictures.draw_all([replace(both[0], rows=both[0].others)])
    assert any("2_11_convolution" in picture.svg for picture in alone)


def test_compact_pictures_fit_a_telephone_and_say_the_same(drawn):
    groups, usual = drawn
    compact = pictures.draw_all(groups, compact=True)
    for small, large in zip(compact, usual, strict=True):
        assert (small.name, small.title, small.text) == (large.name, large.title, large.text)
        assert _points(small) < 320 < _points(large)
        assert f">{large.title.partition(',')[0]}: " not in small.svg  # the page has the title


def _points(picture) -> float:
    return float(re.search(r'<svg [^>]*width="([\d.]+)pt"', picture.svg)[1])


# The command ------------------------------------------------------------------------------------


def test_command_writes_page_and_pictures_and_checks_them(tmp_path, folder):
    made, out = folder(timed("1/1", 2.0)), tmp_path / "out"
    command = [str(made), "--html", str(out / "a.html"), "--pictures", str(out)]
    assert page_writer.main(command) == 0
    names = ["fast_p", "roofline", "speedups"]
    expected = [f"nvidia-h200/{name}.{form}" for name in names for form in ("png", "svg")]
    assert left_in(out) == sorted(["a.html", *expected])
    assert page_writer.main([*command, "--check"]) == 0
    (out / "nvidia-h200" / "fast_p.svg").write_text("old")
    assert page_writer.main([*command, "--check"]) == 1
    assert (out / "nvidia-h200" / "fast_p.svg").read_text() == "old"


WRONG = {
    "verdict": (record(verdict="fine"), "verdict is 'fine'"),
    "no time": (record(ms={"eager": {"median": 1.0, "iqr": 0.1}}), "ms.solution"),
    "zero": (record(ms=times(0.0)), "ms.solution.median is 0.0"),
    "nan": (record(ms=times(float("nan"))), "ms.solution.median is nan"),
    "text": (record(ms={"solution": {"median": "1", "iqr": 0.1}}), "ms.solution.median is '1'"),
    "rates": (record(roofline={"gflop": 1.0}), "'gbyte'"),
    "ceilings": (record(roofline={**GPU["roofline"], "ceiling_tflops": {}}), "ceiling_tflops"),
    "no device": ({k: v for k, v in GPU.items() if k != "device_name"}, "'device_name'"),
    "path": (record(device="../../elsewhere"), "cannot name a folder"),
    "list": (record(ms=[1.0]), "record of problem"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_record_is_one_error_and_nothing_written(name, tmp_path, folder, capsys):
    wrong, told = WRONG[name]
    made, out = folder(timed("1/1", 2.0), wrong), tmp_path / "out"
    command = [str(made), "--html", str(out / "a.html"), "--pictures", str(out)]
    assert page_writer.main(command) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and told in error
    assert not out.exists()


def test_wrong_paths_are_one_error_and_nothing_written(tmp_path, folder, capsys):
    made, out = folder(timed("1/1", 2.0)), tmp_path / "out"
    empty = tmp_path / "empty"
    empty.mkdir()
    broken = tmp_path / "broken.json"
    broken.write_text("{")
    for command in (
        [str(empty), "--html", str(out / "a.html")],
        [str(tmp_path / "missing"), "--html", str(out / "a.html")],
        [str(broken), "--html", str(out / "a.html")],
        [str(made), "--html", str(empty), "--pictures", str(tmp_path / "new")],
        [str(made), "--pictures", str(broken)],
        [str(made)],
    ):
        before = left_in(tmp_path)
        assert page_writer.main(command) == 2, command
        error = capsys.readouterr().err
        assert error.startswith("harness.report: error: ") and error.count("\n") == 1
        assert left_in(tmp_path) == before
