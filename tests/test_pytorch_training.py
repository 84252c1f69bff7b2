"""A model in training: autocast, modules of several dtypes, memory formats, checkpointing, batches
and outputs of no size, each as PyTorch's own layers.
"""

import copy
import subprocess
import sys

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from tests.pytorch_tools import (
    MODE_IDS,
    MODES,
    assert_no_worse,
    assert_same,
    assert_same_state,
    gradients,
    input_of,
    pair_of,
)
from tests.solution_tools import ROOT

modes = pytest.mark.parametrize(("name", "training"), MODES, ids=MODE_IDS)
low_precisions = pytest.mark.parametrize("low", [torch.bfloat16, torch.float16], ids=str)
# Gradients in 16 bits: of a sum that cancels, against a truth whose intermediates are not rounded.
FLOOR = {torch.bfloat16: 2e-2, torch.float16: 3e-3, torch.float32: 2e-5}


def assert_gradients_no_worse(new, model, exact, x, through, floor, factor=2.0):
    """Output and gradients; `through` is how a model is called."""
    got, got_grads = gradients(new, x, through=through)
    theirs, their_grads = gradients(model, x, through=through)
    truth, true_grads = gradients(exact, x.double())
    assert_no_worse(got, theirs, truth, floor, factor)
    wide = max(float(g.norm()) for g in true_grads[1:])
    for g, t, e in zip(got_grads, their_grads, true_grads, strict=True):
        if float(e.norm()) > 1e-6 * wide:  # else zero up to rounding, like a bias before BatchNorm
            assert_no_worse(g, t, e, floor, factor)
        assert g.dtype == t.dtype


@low_precisions
@modes
def test_autocast(shelf, name, training, low):
    model, new = pair_of(shelf, name, training, torch.float32)
    exact = copy.deepcopy(model).double()

    def through(candidate, x):
        with torch.autocast("cpu", dtype=low):
            return candidate(x)

    x = input_of(name, torch.float32)
    assert_gradients_no_worse(new, model, exact, x, through, FLOOR[low])
    if name == "11":
        assert_same_state(new, model, rtol=2e-2, atol=2e-2)


@modes
def test_autocast_of_a_double_input_and_switched_off(shelf, name, training):
    """autocast leaves float64 alone, and a region inside that switches it off is as none."""
    model, new = pair_of(shelf, name, training)
    x = input_of(name)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert_same(new(x), model(x))
    model, new = pair_of(shelf, name, training, torch.float32)
    x = input_of(name, torch.float32)
    with torch.autocast("cpu"), torch.autocast("cpu", enabled=False):
        assert_same(new(x), model(x), rtol=1e-4, atol=1e-5)


def test_autocast_of_a_16_bit_input_on_a_32_bit_model(shelf):
    for name in ("65", "19", "11"):
        model, new = pair_of(shelf, name, dtype=torch.float32)
        x = input_of(name, torch.bfloat16)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y, expected = new(x), model(x)
        exact = pair_of(shelf, name)[0](x.double())
        assert_no_worse(y, expected, exact, FLOOR[torch.bfloat16])


@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
@pytest.mark.parametrize("name", ["19", "11"])
@low_precisions
def test_norms_left_in_fp32(shelf, name, training, low):
    model, new = pair_of(shelf, name, training, torch.float32)
    for candidate in (model, new):
        candidate.to(low)
        for module in candidate.modules():
            if isinstance(module, (torch.nn.GroupNorm, torch.nn.BatchNorm2d)):
                module.float()
    exact = copy.deepcopy(model).double()
    x = input_of(name, low)
    assert_gradients_no_worse(new, model, exact, x, lambda m, x: m(x), FLOOR[low])
    assert_same_state(new, model, rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("name", ["65", "19", "11", "every_step"])
@pytest.mark.parametrize("wrong", [torch.float64, torch.bfloat16], ids=str)
def test_an_input_of_another_dtype_is_refused_by_name(shelf, name, wrong):
    model, new = pair_of(shelf, name, dtype=torch.float32)
    for candidate in (model, new):
        with pytest.raises(RuntimeError):
            candidate(input_of(name, wrong))
    with pytest.raises(RuntimeError, match="(?i)double|float64|bfloat16") as caught:
        new(input_of(name, wrong))
    assert "weight" in str(caught.value) or "input" in str(caught.value)


LAYOUTS = {
    "channels_last": lambda x: x.to(memory_format=torch.channels_last),
    "transposed": lambda x: x.transpose(2, 3).contiguous().transpose(2, 3),
    "expanded": lambda x: x[:1].expand(x.shape),
    "sliced": lambda x: x[..., 1:-1, ::2],
}


@pytest.mark.parametrize("layout", LAYOUTS)
@modes
def test_layouts(shelf, name, training, layout):
    """Values and gradients; for channels_last the layout of both, too."""
    model, new = pair_of(shelf, name, training)
    x = LAYOUTS[layout](input_of(name))
    got, expected = [], []
    for candidate, results in ((new, got), (model, expected)):
        leaf = x.detach().requires_grad_()
        y = candidate(leaf)
        direction = torch.linspace(-1, 1, y.numel(), dtype=y.dtype).view(y.shape)
        results += [y, *torch.autograd.grad(y, [leaf, *candidate.parameters()], direction)]
    for index, (mine, theirs) in enumerate(zip(got, expected, strict=True)):
        assert_same(mine, theirs)
        if layout == "channels_last" and index < 2:
            assert mine.stride() == theirs.stride(), ("output", "gradient")[index]


@modes
def test_a_channels_last_model(shelf, name, training):
    model, new = pair_of(shelf, name, training)
    x = input_of(name).to(memory_format=torch.channels_last)
    for candidate in (model, new):
        candidate.to(memory_format=torch.channels_last)
    y, expected = new(x), model(x)
    assert_same(y, expected)
    assert y.stride() == expected.stride()
    assert_same(gradients(new, x), gradients(model, x))


@pytest.mark.parametrize("reentrant", [True, False], ids=["reentrant", "not reentrant"])
@modes
def test_checkpointing(shelf, name, training, reentrant):
    """Gradients, and the running statistics that a second forward moves again."""
    model, new = pair_of(shelf, name, training)

    def through(candidate, x):
        return checkpoint(candidate, x, use_reentrant=reentrant)

    results = []
    for candidate in (model, new):
        x = input_of(name).requires_grad_()
        through(candidate, x).square().sum().backward()
        results.append([x.grad, *(p.grad for p in candidate.parameters())])
    assert_same(results[1], results[0])
    assert_same_state(new, model)


def test_backward_after_another_batch_moved_the_statistics(shelf):
    """The gradient of the forward in eval mode that was called, whose statistics were read then."""
    model, new = pair_of(shelf, "11", training=False)
    x = input_of("11").requires_grad_()
    (expected,) = torch.autograd.grad(model(x).square().sum(), x)
    y = new(x)
    new.train()
    new(input_of("11", seed=5) * 3 + 1)
    (got,) = torch.autograd.grad(y.square().sum(), x)
    assert_same(got, expected)


def test_two_training_forwards_then_both_backwards(shelf):
    model, new = pair_of(shelf, "11")

    def both(candidate):
        outputs = [candidate(input_of("11", seed=seed)) for seed in (1, 2)]
        loss = sum(y.square().sum() for y in outputs)
        return torch.autograd.grad(loss, list(candidate.parameters()))

    assert_same(both(new), both(model))
    assert_same_state(new, model)


@modes
def test_gradients_accumulate_and_steps_agree(shelf, name, training):
    """Two backward calls a step, two steps of SGD with momentum."""
    model, new = pair_of(shelf, name, training)
    for candidate in (model, new):
        optimizer = torch.optim.SGD(candidate.parameters(), lr=1e-3, momentum=0.9)
        for step in range(2):
            optimizer.zero_grad()
            for part in range(2):
                candidate(input_of(name, seed=10 * step + part)).square().mean().backward()
            optimizer.step()
    assert_same_state(new, model)


EMPTY = """
import sys, torch
from pathlib import Path
sys.path.insert(0, {root!r})
from tests.pytorch_tools import MODES, gradients, input_of, pair_of
from tests.solution_tools import SolutionShelf
shelf = SolutionShelf(Path({folder!r}))
for name, training in MODES:
    outcomes, pair = [], pair_of(shelf, name, training)
    for candidate in pair:
        try:
            y, grads = gradients(candidate, input_of(name)[:0])
            zeros = [bool((g == 0).all()) for g in grads]
            outcomes.append([y.shape, *(g.shape for g in grads), *zeros])
        except RuntimeError as error:
            outcomes.append(f"RuntimeError {{error}}")
    same = all(torch.equal(*b) for b in zip(*(m.state_dict().values() for m in pair)))
    print(name, training, outcomes[0] == outcomes[1] and same, outcomes[1], flush=True)
"""


def test_backward_of_an_empty_batch(shelf, tmp_path):
    """In a process of its own, which a division by zero would end."""
    script = EMPTY.format(root=str(ROOT), folder=str(tmp_path))
    with shelf.build_folder():
        command = [sys.executable, "-c", script]
        run = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    lines = run.stdout.splitlines()
    assert all(line.split()[2] == "True" for line in lines), lines
    assert (run.returncode, len(lines)) == (0, len(MODES)), run.stderr[-600:]


@pytest.mark.parametrize("name", ["65", "19", "11"])
@pytest.mark.parametrize("size", [(0, 5), (1, 1)], ids=str)
def test_images_and_outputs_of_no_size(shelf, name, size):
    """An output of no rows: kernel 2, padding 1, one row of input."""
    outcomes = []
    for candidate in pair_of(shelf, name):
        conv = next(m for m in candidate.modules() if isinstance(m, torch.nn.ConvTranspose2d))
        groups = conv.groups
        with torch.no_grad():
            weight = torch.ones(64, conv.out_channels // groups, 2, 2, dtype=torch.float64)
            conv.weight = torch.nn.Parameter(weight)
        conv.kernel_size, conv.padding = (2, 2), (1, 1)
        try:
            outcomes.append(candidate(torch.ones(2, 64, *size, dtype=torch.float64)).shape)
        except (RuntimeError, ValueError):
            outcomes.append("refused")
    assert outcomes[0] == outcomes[1], outcomes


@pytest.mark.parametrize("name", ["65", "19", "11"])
def test_attributes_of_the_convolution_set_later(shelf, name):
    """An int where the constructor keeps a pair, as PyTorch's own layer takes it."""
    model, new = pair_of(shelf, name)
    for candidate in (model, new):
        conv = next(m for m in candidate.modules() if isinstance(m, torch.nn.ConvTranspose2d))
        conv.stride, conv.dilation, conv.padding = 2, 1, (1, 0)
    assert_same(new(input_of(name)), model(input_of(name)))
