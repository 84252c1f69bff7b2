"""What repeated calls, a large bias and other constructor arguments are made of."""

import math

import pytest
import torch
from torch import nn

from harness.judge import bounds, cases
from harness.judge.edits import random_swap, swap_in_place, swapped_weights
from harness.judge.other_arguments import others_for
from harness.judge.reference import Reference
from tests.fixture_judge import FIXTURES

CPU = torch.device("cpu")


@pytest.mark.parametrize("shape", [(2, 3, 4, 5), (2, 3, 7), (4, 6), (9,), (3, 5, 1, 1)])
def test_a_swap_leaves_no_trace_but_the_values(shape):
    x = torch.randn(shape)
    before, place, version = x.clone(), x.data_ptr(), x._version
    swap = random_swap(x)
    swap_in_place(x.data, swap)
    assert (x.data_ptr(), x._version) == (place, version)
    changed = x != before
    channels = shape[1] if len(shape) > 2 and math.prod(shape[2:]) > 1 else 1
    assert changed.sum() == 2 * channels
    assert torch.equal(x.flatten().sort().values, before.flatten().sort().values)
    swap_in_place(x.data, swap)
    assert torch.equal(x, before)


@pytest.mark.parametrize("shape", [(1,), (1, 1), (0, 3), ()])
def test_where_there_is_nothing_to_swap(shape):
    x = torch.zeros(shape)
    assert random_swap(x) == []
    swap_in_place(x, [])


def test_weights_are_swapped_and_statistics_are_not():
    model = nn.Sequential(nn.ConvTranspose2d(1, 4, 3), nn.BatchNorm2d(4))
    state = cases.redraw(model.state_dict(), 3)
    fresh = swapped_weights(state)
    same = {name for name in state if torch.equal(state[name], fresh[name])}
    assert same == {"1.running_mean", "1.running_var", "1.num_batches_tracked"}
    for name in state:
        assert torch.equal(state[name].flatten().sort()[0], fresh[name].flatten().sort()[0])


def test_as_many_arguments_differ_as_the_reference_takes():
    reference = Reference(FIXTURES / "tiny.py")
    inputs = reference.inputs(0, CPU)
    assert others_for(reference, inputs) == [8, 17, (4, 6)]  # 8 channels are what comes in
    assert reference.init_inputs == [8, 16, (3, 5)]
    reference.module.Model = lambda *arguments: nn.ConvTranspose2d(8, 16, (3, 5))
    reference.init_inputs = ["a name"]
    assert others_for(reference, inputs) is None


def test_a_case_with_a_large_bias_has_the_mean_that_it_says():
    reference = Reference(FIXTURES / "tiny_norm.py")
    model = reference.model(1)
    case = cases.make_case("offset", reference, model.state_dict(), CPU, torch.float32, 3, 5)
    model.load_state_dict(case.state)
    y = model.conv(case.inputs[0]).transpose(0, 1).flatten(1)
    ratios = y.mean(1) / y.std(1)
    assert bool(((ratios > case.magnified / 3) & (ratios < 3 * case.magnified)).all())


def test_where_a_large_bias_says_something():
    conv, norm = nn.ConvTranspose2d(2, 4, 3), nn.BatchNorm2d(4)
    model = nn.Sequential(conv, norm)
    assert cases.statistics_matter(model, torch.float32)
    assert cases.statistics_matter(nn.Sequential(conv, nn.GroupNorm(2, 4)).eval(), torch.float64)
    assert not cases.statistics_matter(model, torch.float16)
    assert not cases.statistics_matter(nn.Sequential(conv, norm).eval(), torch.float32)
    assert not cases.statistics_matter(conv, torch.float32)
    bare = nn.Sequential(nn.ConvTranspose2d(2, 4, 3, bias=False), nn.GroupNorm(2, 4))
    assert not cases.statistics_matter(bare, torch.float32)


def test_only_roundings_of_sums_are_magnified():
    plain, magnified = (bounds.relative_bound("tf32", 100, by) for by in (1.0, 4096.0))
    assert magnified - plain == pytest.approx(4095 * 11 * 2.0**-24)
