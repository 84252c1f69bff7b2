"""References with several outputs: each is held against bounds of its own, in the structure that
they come in.
"""

import copy

import pytest
import torch
from torch import nn

from harness.judge.joined import JoinsOutputs, join_outputs, layout_of, sections
from tests.harness_references import evaluated
from tests.sweeps import swept

# A large output beside one a millionth as large.
PAIR = "(self.conv(x), self.conv(x).mean((2, 3)) * 1e-6)"
NESTED = '{"images": [self.conv(x), x * 2], "means": self.conv(x).mean((2, 3))}'


SAME = [
    (PAIR, "(*, *)", ("--backward",)),
    (NESTED, "{'images': [*, *], 'means': *}", ("--backward",)),
    ("[self.conv(x)]", "[*]", ("--backward",)),
    (NESTED, "{'images': [*, *], 'means': *}", ()),
]


@pytest.mark.parametrize(("result", "structure", "mode"), swept(SAME, (1,), names=3))
def test_the_same(result, structure, mode, tmp_path):
    status, record = evaluated(tmp_path, result, result, "--check-only", *mode)
    assert status == 0 and record["verdict"] == "accepted"
    assert record["error"]["outputs"] == structure
    assert record["other_size"]["verdict"] == record["second_instance"]["verdict"] == "right"
    assert record["non_finite"]["verdict"] == "as the reference"


@pytest.mark.parametrize("baselines", swept(["eager", "eager,compile"]))
def test_times(tmp_path, baselines):
    arguments = ("--backward", "--baselines", baselines, "--batch", "2")
    status, record = evaluated(tmp_path, PAIR, PAIR, *arguments)
    assert status == 0 and record["verdict"] == "accepted" and record["baseline_errors"] == {}
    assert set(record["speedup"]) == set(baselines.split(","))


WRONG = [
    # Of the larger output's norm an error that is not to be seen.
    ("(self.conv(x), self.conv(x).mean((2, 3)) * 1.01e-6)", "inaccurate: own inputs, output 1"),
    ("(self.conv(x) * 1.01, self.conv(x).mean((2, 3)) * 1e-6)", "own inputs, output 0 of"),
    (PAIR.replace("1e-6", "float('nan')"), "non_finite: own inputs, output 1"),
    ("(self.conv(x).mean((2, 3)) * 1e-6, self.conv(x))", "wrong_type: forward returned (*, *)"),
    ("(self.conv(x).mT, self.conv(x).mean((2, 3)) * 1e-6)", "wrong_type"),
    ("list" + PAIR.replace("(self", "((self", 1) + ")", "wrong_type: forward returned [*, *]"),
    ("self.conv(x)", "wrong_type: forward returned one tensor, expected (*, *)"),
    (PAIR.replace("mean((2, 3)) * 1e-6", "mean((2, 3)).double() * 1e-6"), "runtime_error"),
    ("(self.conv(x), 3)", "runtime_error"),
    ("None", "runtime_error"),
]


@pytest.mark.parametrize(("wrong", "reason"), swept(WRONG, (0, 2, 4, 6, 7), names=2))
def test_what_is_wrong(wrong, reason, tmp_path):
    status, record = evaluated(tmp_path, PAIR, wrong, "--check-only")
    assert status == 1 and record["verdict"] == "rejected"
    assert reason in record["reasons"][0]


def test_several_outputs_for_one_are_wrong(tmp_path):
    status, record = evaluated(tmp_path, "self.conv(x)", PAIR, "--check-only")
    assert status == 1 and record["reasons"][0].startswith("wrong_type: forward returned a tuple")


@pytest.mark.parametrize(
    ("result", "told"),
    [
        ("(self.conv(x), self.conv(x) > 0)", "are of torch.bool, torch.float32"),
        ("(self.conv(x), 'name')", "forward returns a str"),
        ("()", "are of nothing"),
    ],
)
def test_what_is_refused(result, told, tmp_path, capsys):
    assert evaluated(tmp_path, result, result, "--check-only") == (2, None)
    assert told in capsys.readouterr().err


class Two(nn.Module):
    def forward(self, x):
        return {"a": x, "b": (x.sum(), x[0])}


def test_a_layout():
    model = join_outputs(Two())
    other = copy.deepcopy(model)
    joined = other(torch.arange(6.0).view(2, 3))
    assert joined.tolist() == [0, 1, 2, 3, 4, 5, 15, 0, 1, 2]
    layout = layout_of(other)
    assert layout == {"structure": "{'a': *, 'b': (*, *)}", "shapes": [[2, 3], [], [3]]}
    assert [at for _, at in sections(layout)] == [slice(0, 6), slice(6, 7), slice(7, 10)]
    assert layout_of(model) is None and layout_of(Two()) is None
    hook = JoinsOutputs()
    hook(model, (), (joined, joined))
    assert hook(model, (), joined) is None and hook.layout is None
