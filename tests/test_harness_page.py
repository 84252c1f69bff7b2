"""The page of a run: whole, self-contained, accessible, and it says what the records say."""

import base64
import functools
import hashlib
import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from harness.report import page_writer, report_data
from tests.html_tools import Page
from tests.made_records import GPU, record, rejected, timed, untimed, written
from tests.solution_tools import ROOT

pytest.importorskip("matplotlib")  # pinned; a machine that only runs GPU tests may lack it
from harness.report import html_report, pictures  # noqa: E402
from harness.report.picture_style import COLOURS  # noqa: E402

RESULTS = ROOT / "results"
PART = timed("2_11_convolution", 77.0, name="2_11_convolution")


@pytest.fixture
def folder(tmp_path):
    """Writes records, one file each, and gives their folder."""
    return functools.partial(written, tmp_path)


def drawn(path: Path) -> str:
    """The page of these records, as the command makes it."""
    groups = report_data.read_groups([path])
    return html_report.page(groups, pictures.draw_all(groups, compact=True)).decode()


def made(path: Path) -> str:
    """The page without pictures, which take the time."""
    return html_report.page(report_data.read_groups([path]), []).decode()


CASES = {
    "one device": lambda folder: RESULTS / "nvidia-h200",
    "all results": lambda folder: RESULTS,
    "one record": lambda folder: RESULTS / "cpu" / "1_65.json",
    "a suite": lambda folder: RESULTS / "suites",
    "mixed": lambda folder: folder(
        timed("1/1", 2.0), untimed("1/2"), rejected("1/3", "crash: x"), PART
    ),
    "rejected": lambda folder: folder(rejected("1/3", "crash: x", error={"cases": {}})),
    "parts": lambda folder: folder(PART),
}


@pytest.fixture(scope="module", params=CASES)
def page(request, tmp_path_factory) -> Page:
    folder = functools.partial(written, tmp_path_factory.mktemp("page"))
    return Page(drawn(CASES[request.param](folder)))


# Form -------------------------------------------------------------------------------------------


def test_it_needs_no_other_file(page):
    names = [tag for tag, _ in page.tags]
    assert names.count("script") == names.count("style") == 1
    assert not {"link", "img", "iframe", "object", "base", "form"} & set(names)
    for tag, attributes in page.tags:
        assert not {"src", "srcset", "onclick"} & set(attributes), tag
        links = [attributes[key] for key in ("href", "xlink:href") if key in attributes]
        assert all(link.startswith("#") for link in links), links
    assert "@import" not in page.source and not re.search(r"url\((?!#)", page.source)
    script = re.search(r"<script>(.*?)</script>", page.source, re.S)[1]
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in page.source


def test_what_is_referred_to_is_there_once(page):
    assert len(page.ids) == len(set(page.ids))
    links = [link[1:] for _, tag in page.tags if (link := tag.get("href") or tag.get("xlink:href"))]
    named = [name for _, tag in page.tags for name in tag.get("aria-labelledby", "").split()]
    used = [*links, *named, *re.findall(r"url\(#([^)]+)\)", page.source)]
    assert links and named and not set(used) - set(page.ids)


def test_no_heading_stands_over_nothing(page):
    assert page.headings and page.headings[0] == ("h1", "Transposed convolutions: results")
    assert page.empty_headings == []
    figures = re.findall(r"<figure.*?</figure>", page.source, re.S)
    assert all("<h3 " in figure and "<svg " in figure for figure in figures)
    assert len(figures) == page.source.count("<svg ")


def test_contents_lead_to_every_section_and_tables_to_every_card(page):
    contents = re.search(r"<nav.*?</nav>", page.source, re.S)[0]
    linked = set(re.findall(r'href="#([^"]+)"', contents + _overview(page)))
    sections = set(re.findall(r'<h2 id="([^"]+)"', page.source))
    assert sections <= linked and {"overview", "results", "method"} <= sections
    cards = re.findall(r'<details class="card" id="([^"]+)"', page.source)
    rows = [row for table in _results(page) for row in table]
    assert sorted(re.findall(r'href="#(c-[^"]+)"', "".join(rows))) == sorted(cards)
    assert len(rows) == len(cards) >= 1


def test_tables_are_whole_and_in_boxes_that_scroll(page):
    tables = re.findall(r"<table>.*?</table>", page.source, re.S)
    assert tables and len(tables) == len(
        re.findall(r'<div class="wide"[^>]*>\s*<table>', page.source)
    )
    for table in tables:
        heads = table.count('<th scope="col"')
        for row in re.findall(r"<tr>(.*?)</tr>", table.partition("<tbody>")[2], re.S):
            assert row.count("<td") + row.count('<th scope="row"') == heads
    boxes = [tag for name, tag in page.tags if tag.get("class") == "wide"]
    assert all(tag["tabindex"] == "0" and tag["role"] == "region" for tag in boxes)


def test_sorting_is_said_and_done_by_buttons(page):
    heads = re.findall(r"<thead>.*?</thead>", page.source, re.S)
    sortable = [head for head in heads if "<button" in head]
    assert sortable
    for head in sortable:
        assert head.count("<button") == head.count("<th ")
        assert head.count("aria-sort=") <= 1
    assert any('aria-sort="ascending"' in head for head in sortable)


def _overview(page: Page) -> str:
    return re.search(r'<section aria-labelledby="overview">.*?</section>', page.source, re.S)[0]


def _results(page: Page) -> list[list[str]]:
    """The rows of the tables of results: of full problems, and of everything else."""
    section = re.search(r'<section aria-labelledby="results">.*?</section>', page.source, re.S)[0]
    bodies = re.findall(r"<tbody>(.*?)</tbody>", section, re.S)
    return [re.findall(r"<tr>.*?</tr>", body, re.S) for body in bodies]


def _cells(row: str) -> list[str]:
    cells = re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row, re.S)
    return [_words(cell) for cell in cells]


def _words(source: str) -> str:
    return " ".join(re.sub(r"<[^>]*>", " ", source.replace("<wbr>", "")).split())


# Colours ----------------------------------------------------------------------------------------


def schemes() -> dict[str, tuple[str, str]]:
    """Every colour of the page: in light, in dark."""
    style = (ROOT / "harness" / "report" / "report_page.css").read_text()
    pairs = re.findall(r"--([\w-]+): light-dark\((#\w{6}), (#\w{6})\)", style)
    return {name: (light, dark) for name, light, dark in pairs}


def test_pictures_take_the_colours_of_the_page():
    found = schemes()
    text = drawn(RESULTS / "nvidia-h200")
    for name, colour in COLOURS.items():
        assert found[name][0] == colour != found[name][1]
        assert colour not in text.partition("</style>")[2]
    assert "color-scheme: light dark" in text
    used = set(re.findall(r"var\(--([\w-]+)\)", text))
    assert used <= set(found)


def contrast(one: str, other: str) -> float:
    """Formula: WCAG 2.2, relative luminance and contrast ratio."""

    def luminance(colour: str) -> float:
        parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        red, green, blue = (
            part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts
        )
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("scheme", [0, 1], ids=["light", "dark"])
def test_words_and_bars_stand_out(scheme):
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    found = {name: pair[scheme] for name, pair in schemes().items()}
    for ground in ("paper", "stripe"):
        for name in ("ink", "muted", "link", "good", "bad"):
            assert contrast(found[name], found[ground]) >= 4.5, (name, ground)
    for name in ("eager", "compile", "channels-last", "compile-channels-last"):
        assert contrast(found[name], found["paper"]) >= 3, name


# What it says -----------------------------------------------------------------------------------


def test_numbers_at_a_glance(folder):
    one, two = timed("1/1", 2.0), timed("1/2", 0.5)
    overview = _overview(Page(made(folder(one, two, PART))))
    assert "<b>2 of 2</b>" in overview and "<b>1.00×</b> over the fastest" in overview
    assert "<b>0.50×</b> 1/2, over the fastest" in overview and "<b>50%</b>" in overview
    overview = _overview(Page(made(folder(one, two, rejected("1/3", "crash: x")))))
    assert "<b>2 of 3</b>" in overview and "<b>33%</b>" in overview
    assert overview.count("not all were accepted and timed") == 2  # no mean of the survivors


def test_parts_of_problems_are_apart_and_do_not_count(folder):
    page = Page(made(folder(timed("1/1", 2.0), PART)))
    full, parts = _results(page)
    assert [_cells(row)[0].split()[0] for row in full] == ["1/1"]
    assert "2_11_convolution" in _cells(parts[0])[0] and "77.00×" in parts[0]
    assert "<b>1 of 1</b>" in _overview(page) and "77" not in _overview(page)


def test_parts_alone_are_what_counts(folder):
    page = Page(made(folder(PART)))
    ((row,),) = _results(page)
    assert "2_11_convolution" in row and "<b>1 of 1</b>" in _overview(page)
    assert "Parts of problems" not in page.source


def test_a_row_says_what_the_record_says(folder):
    page = Page(made(folder(record(cold_call_ms={"solution": {"median": 4.5, "iqr": 1.0}}))))
    assert _cells(_results(page)[0][0]) == [
        "2/19 conv_transpose_gelu_group_norm",
        "accepted",
        "1.62× 1.58–1.63",
        "2.64×",
        "1.89×",
        "3.817 IQR 0.11",
        "6.167 compile + channels_last",
        "4.5",
        "40% 16-bit 27%",
        "3.5e-04 PyTorch’s 3.5e-04",
    ]


def test_one_table_for_all_settings(folder):
    page = Page(made(folder(timed("1/9", 2.0), timed("1/10", 3.0, dtype="bfloat16"))))
    (rows,) = _results(page)
    assert [_cells(row)[:2] for row in rows] == [
        ["1/9 conv_transpose_gelu_group_norm", "NVIDIA H200 float32, TF32 allow, forward"],
        ["1/10 conv_transpose_gelu_group_norm", "NVIDIA H200 bfloat16, forward"],
    ]
    assert "2.00×" in _overview(page) and "3.00×" in _overview(page)


def test_where_it_comes_from(folder):
    head = made(folder(timed("1/1", 2.0))).partition("<nav")[0]
    for told in ("NVIDIA H200", "2026-11-21", "PyTorch 2.11.0+cu130", "CUDA 13.0", "not recorded"):
        assert told in head
    assert "python run_eval.py --problem 2/19" in head
    commit = {"sha": "0123456789abcdef0123", "dirty": True}
    head = made(folder(timed("1/1", 2.0, commit=commit))).partition("<nav")[0]
    assert "0123456789ab with changes" in head and "not recorded" not in head


def card(text: str, place: int = 0) -> str:
    """The card at this place, without tags."""
    source = re.findall(r'<details class="card".*?</pre>\s*</details>\s*</details>', text, re.S)[
        place
    ]
    shown = source.partition("The whole record, JSON")[0]
    return _words(shown)


def test_a_card_has_both_clocks_errors_memory_and_build(folder):
    cold = {"solution": {"median": 4.5, "iqr": 0.25}, "eager": {"median": 11.5, "iqr": 0.5}}
    spread = {"solution": {"min": 3.7, "max": 4.1, "mean": 3.8, "std": 0.1, "num_trials": 88}}
    changes = {"cold_call_ms": cold, "statistics": spread, "build_s": 16.7}
    told = card(made(folder(record(**changes, baseline_errors={"compile": "no compiler"}))))
    assert "device time, median ms" in told and "cold call, median ms" in told
    assert "solution 3.817 0.107 3.7 4.1 88 – 4.5 0.25" in told
    assert "eager 10.08 0.0266 – – 32 2.64× 11.5 0.5" in told
    assert "1.62× over the fastest baseline, compile + channels_last; in half" in told
    assert "own 3.55e-04 3.55e-04 1.42e-03 4.12e-03 4.12e-03 1.65e-02" in told
    assert "Build 16.7 s" in told and "Peak memory 4434 MB" in told
    assert "compile: not timed: no compiler" in told and "Why it was rejected" not in told


def test_passes_have_times_of_their_own(folder):
    alone = {key: GPU[key] for key in ("ms", "fastest", "speedup", "roofline", "calls_timed")}
    forward = {**alone, "baseline_errors": {"compile": "no graph"}, "peak_bytes": 5_000_000}
    backward = {**alone, "baseline_errors": {}, "peak_bytes": None, "fastest": None, "speedup": {}}
    told = card(made(folder(record(passes={"forward": forward, "backward": backward}))))
    together, forward, backward = re.split(r"Times, \w+ alone ", told)
    assert "Times of 2/19, forward and backward together" in together
    assert "solution 3.817" in forward and "compile: not timed: no graph" in forward
    assert "Peak memory 5 MB" in forward and "1.62× over the fastest baseline" in forward
    assert "No baseline was timed." in backward and "1134 GB/s" in backward
    assert "Roofline, forward and backward together Work" in backward
    alone = card(made(folder(record())))
    assert "alone" not in alone and "slowest" not in alone  # an older record has no extremes


def test_why_a_baseline_was_not_offered(folder):
    offered = {"baselines_not_offered": {"conv2d_channels_last": "stride 2"}}
    alone = record(fastest=None, speedup={}, ms={"solution": GPU["ms"]["solution"]}, **offered)
    told = card(made(folder(alone)))
    assert "convolution, channels_last: no such operator: stride 2" in told
    assert "no such operator" not in card(made(folder(record(**offered))))  # others were timed


def test_the_card_of_a_rejected_one_names_the_case(folder):
    cases = {name: dict(GPU["error"]["cases"][name]) for name in ("own", "normal")}
    cases["normal"]["rel_l2"] = 0.5
    text = made(
        folder(
            rejected("1/1", "inaccurate: x", error={"precision": "tf32", "cases": cases}),
            rejected("1/2", "crash: died while computing wide inputs", error={"cases": {}}),
            rejected("1/3", "timeout: importing", error={"cases": {}}),
        )
    )
    told = [card(text, place) for place in range(3)]
    assert "It failed on normal inputs. inaccurate: x" in told[0]
    assert "normal (failed) 5.00e-01" in told[0] and "own (failed)" not in told[0]
    assert '<td class="bad" data-key="0.5">5.00e-01</td>' in text
    assert "It failed on wide inputs." in told[1] and "It failed" not in told[2]
    for part in told:
        assert "×" not in part.partition("Build,")[0] and "device time" not in part


def test_gradients_have_a_table(folder):
    sizes = {"rms": 2e-7, "pytorch_rms": 3e-7, "rms_bound": 1e-7, "reference_rms": 1.0}
    error = {"precision": "float32", "cases": {"own": {"gradients": {"weight": sizes}}}}
    told = card(made(folder(rejected("1/1", "wrong_gradient: x", error=error))))
    assert "weight, own inputs 2.00e-07 3.00e-07 1.00e-07 1.00e+00" in told
    assert "Gradients" not in card(made(folder(record())))


def test_notes_are_shown_and_drop_in_and_specialised_marked(folder):
    others = {"verdict": "specialised", "arguments": "[1]", "told": "it is wrong there"}
    changes = {"does_not_drop_in": "other values", "other_arguments": others}
    page = Page(made(folder(timed("1/1", 2.0, **changes))))
    assert _cells(_results(page)[0][0])[1] == "accepted, no drop-in, specialised"
    told = card(page.source)
    assert "constructed with [1]: specialised (it is wrong there)" in told
    assert "does not drop into KernelBench: other values" in told


def test_findings_of_the_static_checker_are_told(folder):
    found = {"errors": [], "warnings": ["try is used"]}
    page = Page(made(folder(timed("1/1", 2.0, static_checker=found))))
    assert _cells(_results(page)[0][0])[1] == "accepted, warned"
    assert "static checker warns: try is used" in card(page.source)


def test_page_escapes_what_records_say(folder):
    bad = "</script><script>alert('1')</script> $x_{$"
    values = {"solution": f"{bad}.py", "name": bad, "device_name": bad, "date": bad}
    values |= {"command": bad, "versions": {"torch": bad, "gpu": bad}, "commit": {"sha": bad}}
    values |= {"baseline_errors": {bad: bad}, "does_not_drop_in": bad}
    groups = report_data.read_groups(
        [folder(timed(bad, 2.0, **values), rejected(bad, bad, **values))]
    )
    made = pictures.draw_all(groups)
    text = html_report.page(groups, made).decode()
    assert text.count("<script>") == 1 and "alert(" in text
    for picture in made:
        ElementTree.fromstring(picture.svg)


@pytest.mark.parametrize(
    "changes",
    [
        {"versions": []},
        {"commit": "abc"},
        {"cold_call_ms": {"eager": {"median": "1"}}},
        {"error": {"cases": {"own": {"rel_l2": "small", "rel_l2_bound": 1.0}}}},
        {"build_s": "long"},
        {"passes": {"forward": {"ms": {}}}},
    ],
    ids=str,
)
def test_a_record_of_another_form_is_one_error(changes, folder, tmp_path, capsys):
    command = [str(folder(timed("1/1", 2.0, **changes))), "--html", str(tmp_path / "page.html")]
    assert page_writer.main(command) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and "record of problem '1/1'" in error
    assert not (tmp_path / "page.html").exists()
