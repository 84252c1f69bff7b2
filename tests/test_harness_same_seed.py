"""Weights that are not copied: what of a state is judged then, and what is told."""

import io

import pytest
import torch
from rich.console import Console

from harness.catalog import ROOT, find_problem
from harness.errors import Rejected
from harness.judge import same_seed
from harness.judge.drawn import Drawn, drawn
from harness.judge.reference import Reference
from harness.judge.truth import Expected
from harness.report import records, tables

VALUES = torch.arange(4.0)


def answer(**buffers) -> Expected:
    exact = {name: value.double() for name, value in buffers.items()}
    return Expected(truth=torch.ones(1), own=torch.ones(1), buffers=exact, own_buffers=buffers)


def test_drawn_weights_are_those_of_their_seed():
    reference = Reference(find_problem("1/65").reference)
    made, again, other = (drawn(reference, seed, torch.float32) for seed in (3, 3, 4))
    assert isinstance(made, Drawn) and (made.seed, other.seed) == (3, 4)
    assert all(torch.equal(made[name], again[name]) for name in made)
    assert not all(torch.equal(made[name], other[name]) for name in made)


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({}, None),
        ({"packed": VALUES + 1}, "weights_mutated"),
        ({"running": VALUES}, "wrong_buffer"),
        ({"cache": VALUES + 1}, None),  # of no name of the reference's
        ({"more": VALUES}, "weights_mutated"),
    ],
)
def test_parameters_and_buffers_of_the_references_names_are_judged(changes, code):
    before = {"packed": VALUES, "running": VALUES, "cache": VALUES}
    after = {**before, "running": VALUES + 2, **changes}
    expected = answer(running=VALUES + 2)

    def judge():
        same_seed.require_right_state(after, before, {"packed"}, expected, "float32", 1.0)

    if code is None:
        judge()
    else:
        with pytest.raises(Rejected) as caught:
            judge()
        assert caught.value.code == code


@pytest.mark.parametrize(
    ("how", "told"),
    [
        (same_seed.HOW, "weights not copied: both models are constructed from the same seed"),
        ("by values", "weights copied by values"),
        ("by name", None),
    ],
)
def test_the_table_says_how(how, told):
    record = records.read_records(ROOT / "results" / "nvidia-h200" / "1_65.json")[0]
    stream = io.StringIO()
    tables.print_record(Console(file=stream, width=200), record | {"weights_copied": how})
    found = [line for line in stream.getvalue().splitlines() if line.startswith("weights ")]
    assert found == ([told] if told else [])
