"""What a stranger reads can be followed: paths exist, links resolve, commands run.

Every command of a page stands in one of the tables below, which say how it is tried here: run as it
is or with small arguments (RUN), taken by the program's own parser (PARSED, with the reason why it
is not run), or found as tests (pytest's).
"""

import argparse
import importlib
import re
import shlex

import pytest

from harness.run import cli
from tests import readme_session
from tests.page_tools import PAGES, anchors, code_spans, commands, prose
from tests.solution_tools import ROOT

PATH = re.compile(r"^[\w./-]+(?:/|\.(?:py|md|h|cuh|cu|cpp|txt|json|svg))$|^LICENSE$|^\.ci/run$")
LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
# Of the reader's own files, and patterns of names.
NOT_HERE = {"my_model.py", "my_solution.py", "mine.json", "avx2.json", "eval_results.json"}

REFERENCE = "harness/problems/level1/65_conv_transpose_3x7.py"
RECORD = "results/cpu/1_65.json"
# A command, and what runs in its place; TMP is a folder of the test's.
RUN = {
    "python run_eval.py --help": "python run_eval.py --help",
    "python run_eval.py --compare A.json B.json": f"python run_eval.py --compare {RECORD} {RECORD}",
    "python run_eval.py --compare A.json B.json --sort ratio --fail-below 0.95": "python "
    f"run_eval.py --compare {RECORD} {RECORD} --sort ratio --fail-below 0.95",
    "python run_eval.py --show RECORD": f"python run_eval.py --show {RECORD}",
    "python run_eval.py --export-kernelbench RECORDS --output DIR": "python run_eval.py "
    "--export-kernelbench results/cpu --output TMP/export",
    "python -m generator REF.py -o SOL.py": f"python -m generator {REFERENCE} -o TMP/solution.py",
    "python -m generator REF.py -o SOL.py --pytorch-gradients": f"python -m generator {REFERENCE} "
    "-o TMP/own.py --pytorch-gradients",
    "python -m generator REF.py -o SOL.py --device cuda": f"python -m generator {REFERENCE} "
    "-o TMP/cuda.py --device cuda",
    "python -m generator KernelBench --explain": "python -m generator harness/problems --explain",
    "python -m harness.report": "python -m harness.report --check",
    "python -m harness.report results/nvidia-h200 --html FILE": "python -m harness.report "
    "results/nvidia-h200 --html TMP/page.html",
    "python -m harness.shapes --list": "python -m harness.shapes --list",
    "python -m harness.shapes --dimensions 3 --list": (
        "python -m harness.shapes --dimensions 3 --list"
    ),
}
MINUTES = "takes minutes; tests/test_readme_session.py runs a small evaluation"
GPU = "needs a GPU"
PARSED = {
    "python run_eval.py --problem 65": MINUTES,
    "python run_eval.py --all": MINUTES,
    "python run_eval.py --all --check-only": MINUTES,
    "python run_eval.py --all --dtype float16": MINUTES,
    "python run_eval.py --all --backward": MINUTES,
    "python run_eval.py --all --eval": MINUTES,
    "python run_eval.py --all --record": MINUTES,
    "python run_eval.py --all --backward --record": MINUTES,
    "python run_eval.py --all --backward --dtype float16 --record": MINUTES,
    "python run_eval.py --all --device cpu --record": MINUTES,
    "python run_eval.py --problem 2/11 --eval --record": MINUTES,
    "python run_eval.py --all --dtype float16 --record": MINUTES,
    "python run_eval.py --all --dtype bfloat16 --record": MINUTES,
    "python run_eval.py --reference harness/problems/parts/2_11_convolution.py": MINUTES,
    "python run_eval.py --reference harness/problems/parts/2_19_convolution_gelu.py": MINUTES,
    "python run_eval.py --all --tf32 forbid": GPU,
    "python run_eval.py --all --check-only --tf32 forbid --record": GPU,
    "TCONV_KERNEL=portable python run_eval.py --problem 65": GPU,
    "TCONV_KERNEL=portable python run_eval.py --all --baselines eager --record": GPU,
    "TCONV_KERNEL=portable python run_eval.py --all --check-only --dtype float16 --record": GPU,
    "TCONV_KERNEL=portable python run_eval.py --problem 1/65 --backward --record": GPU,
    "python run_eval.py --problem 1/65 --backward --tf32 forbid --record": GPU,
    "python run_eval.py --all --backward --dtype bfloat16 --record": MINUTES,
    "python run_eval.py --family KernelBench/KernelBench": "tests/test_harness_family.py",
    "python -m harness.shapes --backward --record": "tests/test_harness_shapes.py runs it",
    "TCONV_KERNEL=portable python run_eval.py --all --check-only --dtype bfloat16 --record": GPU,
    "python run_eval.py --reference REF.py --solution SOL.py": "the session is one",
    "python run_eval.py --reference REF.py": "the session does it in two steps",
    "python run_eval.py --reference REF.py --keep SOL.py": "tests/test_harness_cli.py keeps one",
    "python run_eval.py --suite DIR": "tests/test_harness_suite.py runs suites",
    "python run_eval.py --family DIR": "tests/test_harness_family.py runs families",
    "python run_eval.py --family DIR --backward": "tests/test_harness_family.py runs families",
    "python run_eval.py --suite DIR --ray": "tests/test_harness_ray.py runs suites over Ray",
    "python -m generator --all": "writes into the checkout; tests/test_solution_files.py compares",
    "python -m generator --check": "tests/test_solution_files.py compares",
    "python -m harness.host_time": "builds all solutions; tests/test_harness_host_time.py runs it",
    "python -m harness.host_time --record": "builds all solutions",
    "python -m harness.gradient_times --record": "builds all solutions",
    "python -m harness.gradient_times": "builds all; tests/test_harness_gradient_times.py runs it",
    "python -m harness.shapes": "takes minutes; tests/test_harness_shapes.py runs it",
    "python -m harness.shapes --record": "takes minutes; tests/test_harness_shapes.py runs it",
    "python -m harness.shapes --shapes 5x5,7x7 --dtype float16": GPU,
    "python -m harness.profile --record": GPU,
    "python -m harness.profile --build-dir builds --record": GPU,
    "python -m harness.profile --problems 65 --dtypes float16": GPU,
    "python -m harness.machine_code --check results/nvidia-h200": "needs nvcc, and minutes",
    "python -m harness.machine_code --stamp results/nvidia-h200": "needs nvcc, and minutes",
    "python -m tests.fuzz_operator --seed 1 --count 1000": "tests/test_random_layers.py runs it",
}
ALL = sorted({command for page in PAGES for command in commands(page)})


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_paths_exist(page):
    paths = [span for span in code_spans(page) if PATH.match(span) and span not in NOT_HERE]
    assert paths, "no path found: has the page's style changed?"
    assert [path for path in paths if not (ROOT / path).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_resolve(page):
    for link in LINK.findall(page.read_text()):
        if link.startswith(("http://", "https://")):
            continue
        path, _, anchor = link.partition("#")
        target = page.parent / path if path else page
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link


def test_every_page_is_linked_from_the_readme():
    linked = set(LINK.findall((ROOT / "README.md").read_text()))
    assert {f"docs/{page.name}" for page in PAGES if page.parent.name == "docs"} <= linked


def test_pages_are_short():
    lengths = {page.name: page.read_text().count("\n") for page in PAGES}
    assert lengths["README.md"] <= 180 and lengths["kernels.md"] <= 250


def test_the_two_commands_install_then_run():
    text = (ROOT / "README.md").read_text()
    install = "python3 -m pip install -r requirements.txt && "
    assert f"{install}python run_eval.py --problem 65" in text
    assert f"{install}python -m pytest -q" in text
    assert (ROOT / "requirements.txt").is_file()


def test_every_command_is_tried():
    """Here or in tests/test_readme_session.py; nothing is listed that no page has."""
    session = readme_session.commands(readme_session.README.read_text())
    known = {*RUN, *PARSED, "python3 -m pip install -r requirements.txt"}
    unknown = [
        command
        for command in ALL
        if command not in known and command not in session and "-m pytest" not in command
    ]
    assert unknown == [], "say in RUN or PARSED how it is tried"
    assert known - set(ALL) == set()


@pytest.mark.parametrize("command", RUN)
def test_command_runs(command, tmp_path):
    words = shlex.split(RUN[command].replace("TMP", str(tmp_path)))
    try:
        status = _main(words)(_arguments(words))
    except SystemExit as ended:  # --help
        status = ended.code
    assert status == 0
    assert "TMP" not in RUN[command] or any(tmp_path.iterdir())


class Parsed(Exception):
    """Arguments were understood: the program goes no further."""


@pytest.mark.parametrize("command", PARSED)
def test_command_is_understood(command, monkeypatch):
    words = [word for word in shlex.split(command) if "=" not in word]
    parse = argparse.ArgumentParser.parse_args

    def parse_only(parser, arguments=None, namespace=None):
        parse(parser, arguments, namespace)  # exits 2 on an unknown option
        raise Parsed

    monkeypatch.setattr(argparse.ArgumentParser, "parse_args", parse_only)
    with pytest.raises(Parsed):
        _main(words)(_arguments(words))


def _main(words: list[str]):
    """The function that a command calls."""
    if words[1] == "run_eval.py":
        return cli.main
    programs = {"generator": "generator.__main__", "harness.report": "harness.report.page_writer"}
    return importlib.import_module(programs.get(words[2], words[2])).main


def _arguments(words: list[str]) -> list[str]:
    return words[2:] if words[1] == "run_eval.py" else words[3:]


@pytest.mark.parametrize("command", [c for c in ALL if "-m pytest" in c])
def test_tests_that_are_named_exist(command):
    words = shlex.split(command)
    files = [word for word in words[3:] if word.endswith(".py")]
    assert all((ROOT / name).is_file() for name in files)
    options = {"-q", "-m", "gpu", "sweep", "sweep or not sweep", "--sweep-share=128"}
    assert set(words[3:]) - set(files) <= options


def test_forced_kernels_are_those_that_the_build_knows():
    """TCONV_KERNEL's names, wherever a page forces one."""
    named = {
        name
        for page in PAGES
        for name in re.findall(r"TCONV_KERNEL=(\w+)", prose(page) + page.read_text())
    }
    sources = (ROOT / "kernels_src" / "binding").glob("*.*")
    known = {name for path in sources for name in re.findall(r'\{"(\w+)", k', path.read_text())}
    assert named and named <= known
