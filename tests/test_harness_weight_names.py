"""Entries of two state_dicts matched by name, by values, by order."""

import pytest
import torch

from harness.judge.weight_names import ALIASES_APART, BY_NAME, BY_VALUES, matched

A, B = torch.arange(6.0).view(2, 3), torch.arange(6.0, 12.0).view(2, 3)
ONES = torch.ones(3)
WANTED = {"a": A, "b": B, "c": ONES, "d": ONES}


def test_the_same_names():
    assert matched({"a": A, "b": B}, {"b": A, "a": B}, {}) == (BY_NAME, {"b": "b", "a": "a"})


def test_further_names_of_the_same_tensors():
    drawn = {"x": A, "a": A, "b": B}
    how, names = matched({"a": A, "b": B}, drawn, {"a": "x"})
    assert (how, names) == (ALIASES_APART, {"x": "a", "a": "a", "b": "b"})


def test_values_go_before_order():
    drawn = {"z": ONES, "y": ONES, "second": B, "again": B, "first": A}
    how, names = matched(WANTED, drawn, {"again": "second"})
    assert how == BY_VALUES
    assert names == {"z": "c", "y": "d", "second": "b", "again": "b", "first": "a"}


def test_other_values_are_matched_in_order():
    drawn = {"u": A + 1, "v": B + 1, "w": ONES, "x": ONES}
    assert matched(WANTED, drawn, {})[1] == {"u": "a", "v": "b", "w": "c", "x": "d"}


@pytest.mark.parametrize(
    "drawn",
    [
        {"u": A, "v": B, "w": ONES},
        {**WANTED, "more": ONES},
        {**WANTED, "d": torch.ones(4)},
        {"u": A.t(), "v": B, "w": ONES, "x": ONES},
        {"u": A.double(), "v": B, "w": ONES, "x": ONES},
    ],
)
def test_what_fits_nowhere_is_not_matched(drawn):
    assert matched(WANTED, drawn, {}) is None
