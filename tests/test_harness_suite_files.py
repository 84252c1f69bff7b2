"""Which candidates and references a folder holds, and the scores of what became of them."""

from pathlib import Path

import pytest

from harness.errors import UsageError
from harness.report import scores
from harness.run.suite_files import find_items

TINY = Path(__file__).resolve().parent / "fixtures" / "tiny.py"


def found(folder: Path, **arguments) -> dict:
    items = find_items(folder, **arguments)
    return {item.label: item.problem.id if item.problem else None for item in items}


def write(folder: Path, *names: str) -> Path:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("# a file\n")
    return folder


def test_references_by_level_and_number_number_and_name(tmp_path):
    names = ["level_2_problem_19_sample_10_kernel.py", "level_2_problem_19_sample_2_kernel.py"]
    names += ["level1/69_mine.py", "65.py", "conv_transpose_gelu_group_norm.py"]
    names += ["conv_transpose_3x7-v2.py", "level1/19_other_level.py", "conv_transpose.py"]
    write(tmp_path, *names, "_helper.py", ".hidden/65.py", "__pycache__/65.py", "notes.txt")
    assert found(tmp_path) == {
        "level_2_problem_19_sample_10_kernel": "2/19",
        "level_2_problem_19_sample_2_kernel": "2/19",
        "level1/69_mine": "1/69",
        "65": "1/65",
        "conv_transpose_gelu_group_norm": "2/19",
        "conv_transpose_3x7-v2": "1/65",
        "level1/19_other_level": None,
        "conv_transpose": None,
    }
    ordered = [item.sample for item in find_items(tmp_path) if item.sample is not None]
    assert ordered == [2, 10]


def test_a_number_in_two_levels_alone_is_no_answer(tmp_path):
    references = write(tmp_path / "references", "level1/7_a.py", "level2/7_b.py", "plain.py")
    folder = write(tmp_path / "suite", "7_b.py", "7_c.py", "plain.py", "level2/7.py")
    assert found(folder, reference=references) == {
        "7_b": "2/7",
        "7_c": None,
        "plain": "plain",
        "level2/7": "2/7",
    }


def test_one_reference_for_all_is_no_candidate_itself(tmp_path):
    write(tmp_path, "a.py", "b.py", "reference.py")
    items = find_items(tmp_path, tmp_path / "reference.py")
    assert [item.label for item in items] == ["a", "b"]
    assert {item.problem.reference for item in items} == {tmp_path / "reference.py"}


def test_no_two_candidates_share_a_record(tmp_path):
    write(tmp_path, "level1/65_a.py", "level1_65_a.py")
    names = [item.record_name for item in find_items(tmp_path, TINY)]
    assert len(set(names)) == 2


@pytest.mark.parametrize(
    ("names", "message"), [([], "no candidate"), (["unknown.py"], "no reference for any")]
)
def test_useless_folders(tmp_path, names, message):
    with pytest.raises(UsageError, match=message):
        find_items(write(tmp_path, *names))


# Scores ----------------------------------------------------------------------------------------


def scored(*speedups) -> list[dict]:
    """Records by speedup; None: rejected."""
    return [
        {"verdict": "accepted", "fastest": {"speedup": value}}
        if value
        else {"verdict": "rejected", "fastest": None}
        for value in speedups
    ]


def test_scores_of_all_accepted():
    score = scores.summary(scored(4.0, 1.0))
    assert (score["accepted"], score["all"], score["minimum"]) == (2, 2, 1.0)
    assert score["geometric_mean"] == pytest.approx(2.0)
    assert score["fast_p"]["1"] == 0.5 and score["fast_p"]["0.8"] == 1.0


@pytest.mark.parametrize(("found", "total"), [((4.0, None), 2), ((4.0,), 2), ((4.0, None), 3)])
def test_a_rejected_or_missing_one_takes_the_mean_away_and_counts_in_fast_p(found, total):
    score = scores.summary(scored(*found), total)
    assert score["geometric_mean"] is None and score["minimum"] is None
    assert score["fast_p"]["1"] == pytest.approx(1 / total)


def test_nothing_timed_has_no_speedups():
    score = scores.summary([{"verdict": "accepted", "fastest": None}])
    assert score["minimum"] is None and score["fast_p"]["1"] is None and score["fast_p"]["0"] == 1
