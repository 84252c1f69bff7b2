"""The page of a run in a real browser: sorting, filter, links, colours, a telephone's width."""

import pytest

from harness.report import report_data
from tests import browser
from tests.made_records import rejected, timed, untimed, written

pytest.importorskip("matplotlib")  # pinned; a machine that only runs GPU tests may lack it
from harness.report import html_report, pictures  # noqa: E402

pytestmark = browser.needed


@pytest.fixture
def asked(tmp_path):
    """What a script returns in the page of these records."""

    def ask(records: list[dict], script: str, **window):
        groups = report_data.read_groups([written(tmp_path, *records)])
        page = html_report.page(groups, pictures.draw_all(groups, compact=True))
        return browser.asked(page, script, tmp_path, **window)

    return ask


RECORDS = [timed("1/9", 2.0), timed("1/10", 10.0), timed("2/1", 9.0), rejected("1/3", "crash: x")]
SORTED = """
const table = document.querySelector("#results ~ .wide table"), told = [];
for (const place of [2, 2, 0]) {
  const head = table.tHead.rows[0].cells[place], button = head.querySelector("button");
  button.focus();
  button.click();
  const links = [...table.tBodies[0].rows].map((row) => row.cells[0].querySelector("a"));
  const order = links.map((link) => link.textContent);
  const heads = table.tHead.querySelectorAll("[aria-sort]").length;
  const focused = document.activeElement === button;
  told.push([head.getAttribute("aria-sort"), heads, focused, order.join(" ")]);
}
return told;
"""


def test_a_head_sorts_its_table(asked):
    assert asked(RECORDS, SORTED) == [
        ["ascending", 1, True, "1/9 2/1 1/10 1/3"],
        ["descending", 1, True, "1/10 2/1 1/9 1/3"],
        ["ascending", 1, True, "1/3 1/9 1/10 2/1"],
    ]


SIZES = """
for (const details of document.querySelectorAll("details")) details.open = true;
const wide = [...document.querySelectorAll(".wide")];
const small = [...document.querySelectorAll("p, td, th, dd, li, figcaption")].map(
  (element) => parseFloat(getComputedStyle(element).fontSize));
const texts = [...document.querySelectorAll("figure svg text")].map(
  (text) => text.getBoundingClientRect()).filter((box) => box.width > 0);
return {
  window: innerWidth,
  page: document.documentElement.scrollWidth,
  scrolling: wide.filter((box) => box.scrollWidth > box.clientWidth).length,
  outside: wide.filter((box) => box.getBoundingClientRect().right > innerWidth).length,
  font: Math.min(...small),
  picture: Math.min(...texts.map((box) => box.height)),
  cut: texts.filter((box) => box.left < 0 || box.right > innerWidth).length,
};
"""


@pytest.mark.parametrize(("width", "scrolling"), [(1280, 0), (400, 3)])
def test_the_page_fits_its_window_and_can_be_read(asked, width, scrolling):
    made = asked(
        [*RECORDS, untimed("2/2"), rejected("3/1", "crash: " + "x" * 999)], SIZES, width=width
    )
    assert made["window"] == width and made["page"] <= width and made["outside"] == 0
    assert made["scrolling"] >= scrolling
    assert made["font"] >= 11 and made["picture"] >= 8 and made["cut"] == 0


def test_the_results_of_one_run_need_no_scrolling_on_a_desk(asked):
    script = """const box = document.querySelector("#results ~ .wide");
    return [box.scrollWidth, box.clientWidth];"""
    needed, there = asked(RECORDS, script)
    assert needed <= there


OPENED = """
const link = document.querySelector("#results ~ .wide a"), card = document.querySelector(link.hash);
const before = card.open;
link.click();
await new Promise((done) => setTimeout(done, 50));
const all = document.querySelector(".all"), cards = [...document.querySelectorAll(".card")];
const told = [before, card.open];
all.click();
told.push(cards.every((other) => other.open), all.textContent);
all.click();
return [...told, cards.some((other) => other.open), all.textContent];
"""


def test_cards_open_by_link_and_all_at_once(asked):
    assert asked(RECORDS, OPENED) == [False, True, True, "Close all", False, "Open all"]


FILTERED = """
const input = document.querySelector("input"), told = [];
const rows = [...document.querySelectorAll("#results ~ .wide tbody tr")];
for (const words of ["crash", "1/1 accepted", ""]) {
  input.value = words;
  input.dispatchEvent(new Event("input"));
  const left = rows.filter((row) => row.checkVisibility()).length;
  told.push([left, document.querySelector("output").textContent]);
}
return [input.checkVisibility(), ...told];
"""


def test_many_rows_can_be_filtered(asked):
    many = [timed(f"1/{number}", 2.0) for number in range(10, 20)]
    found = asked([*many, rejected("2/1", "crash: x")], FILTERED)
    assert found == [True, [1, "1 of 11"], [10, "10 of 11"], [11, ""]]


def test_a_few_rows_have_no_filter(asked):
    assert asked(RECORDS, FILTERED)[0] is False


COLOURS = """
const button = document.getElementById("theme"), told = [];
for (const click of [false, true, true]) {
  if (click) button.click();
  const paper = getComputedStyle(document.body).backgroundColor;
  const words = getComputedStyle(document.querySelector("figure svg text")).fill;
  told.push([paper, words, button.textContent]);
}
return told;
"""
LIGHT = ["rgb(255, 255, 255)", "rgb(27, 31, 36)", "Dark colours"]
DARK = ["rgb(20, 24, 29)", "rgb(232, 235, 238)", "Light colours"]


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_colours_follow_the_system_and_the_button(asked, dark):
    first, second = (DARK, LIGHT) if dark else (LIGHT, DARK)
    found = asked(RECORDS, COLOURS, dark=dark)
    # Words of axes are muted, so that only the ground and the button are told in full.
    assert [(paper, name) for paper, _, name in found] == [
        (state[0], state[2]) for state in (first, second, first)
    ]
    assert found[0][1] == found[2][1] != found[1][1]
