"""GroupNorm and BatchNorm with steps behind them by the CUDA kernels, forward and backward, on the
CPU, thread by thread.
"""

import types

import pytest
import torch
import torch.nn.functional as F

from generator.sources import gradient_cuda_source
from generator.step_table import tail_header
from tests.cuda_emulator import emulator
from tests.emulated_tools import needs_cuda_headers
from tests.norm_tail_tools import CASES, CENTRED_CASES, GROUP_RELU, random_case, tails_of_steps
from tests.sweeps import swept
from tests.tail_tools import OF_NORMS, TAILS, first_tail_of

pytestmark = needs_cuda_headers
BATCH = next(case for case in CASES if not case.groups)


@pytest.fixture
def libraries(emulated_tail, emulated_tail_gradients):
    return emulated_tail, emulated_tail_gradients


@pytest.mark.parametrize("case", [*CASES, *CENTRED_CASES], ids=str)
def test_right(libraries, case):
    forward, backward = libraries
    with forward.on(detect_races=True), backward.on(detect_races=True):
        case.check(*libraries, OF_NORMS)
        assert forward.races() == backward.races() == []


@pytest.mark.parametrize("first", swept(range(0, 200, 20), [0]))
def test_random_cases(libraries, first):
    forward, backward = libraries
    with forward.on(), backward.on():
        for seed in range(first, first + 20):
            random_case(seed).check(*libraries, OF_NORMS)


ORDERED = [CASES[0], CASES[2], BATCH, *(CENTRED_CASES[i] for i in (2, 6, 7))]


@pytest.mark.parametrize("case", ORDERED, ids=str)
def test_the_same_bits_in_any_order_of_warps(libraries, case):
    found = []
    for seed in (1, 2):
        with libraries[0].on(seed=seed), libraries[1].on(seed=seed):
            found.append(case.check(*libraries, OF_NORMS))
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("case", [CASES[0], CASES[2], BATCH, CENTRED_CASES[0]], ids=str)
def test_what_is_not_finite_stays_in_its_group(libraries, case, bad):
    """As PyTorch has it, forward and backward: a group, or a channel, of NaN."""
    value, weight, bias, grad = case.tensors()
    value[1, 2, 1, 2] = bad
    number, running = OF_NORMS + case.place, case.running()
    with libraries[0].on(), libraries[1].on():
        found, maps = case.forward(libraries[0], number, value, weight, bias, running)
        grads = case.backward(libraries[1], number, grad, value, weight, bias, maps, 3)
    leaves = [t.double().requires_grad_() for t in (value, weight, bias)]
    if case.groups:
        normed = F.group_norm(leaves[0], case.groups, *leaves[1:])
    else:
        normed = F.batch_norm(leaves[0], None, None, *leaves[1:], True)
    if case.operator == "centred_batch_norm":
        normed = normed - normed.mean((2, 3), keepdim=True)
    exact = case.tail.run(normed)
    wanted = torch.autograd.grad(exact, leaves, grad.double())
    made = (found, grads[0], *grads[1])
    for mine, theirs in zip(made, (exact.detach(), *wanted), strict=True):
        assert torch.equal(mine.isnan(), theirs.isnan()) and bool(mine.isfinite().any())
        finite = theirs.isfinite()
        torch.testing.assert_close(mine[finite], theirs[finite].float(), rtol=1e-4, atol=1e-4)


def test_a_gradient_that_is_not_finite_stays_in_its_group(libraries):
    case = CASES[0]
    value, weight, bias, grad = case.tensors()
    number = OF_NORMS + case.place
    with libraries[0].on(), libraries[1].on():
        found, maps = case.forward(libraries[0], number, value, weight, bias, [])
        kept = found > 0
        bad = torch.where(kept, grad, torch.full_like(grad, float("inf")))
        wanted = case.backward(libraries[1], number, grad, value, weight, bias, maps, 3)
        # ReLU hands no gradient on there, whatever it is.
        same = case.backward(libraries[1], number, bad, value, weight, bias, maps, 3)
        assert all(torch.equal(a, b) for a, b in zip(wanted, same, strict=True))
        grad[0, 0][kept[0, 0]] = float("nan")
        found = case.backward(libraries[1], number, grad, value, weight, bias, maps, 3)[0]
    assert bool(found[0, :2].isnan().all()) and bool(found[0, 2:].isfinite().all())
    assert bool(found[1].isfinite().all())


def test_tensors_that_are_not_contiguous(libraries):
    for case in (CASES[0], BATCH, CENTRED_CASES[0]):
        value, weight, bias, grad = case.tensors()
        strided = [t.transpose(1, -1).contiguous().transpose(1, -1) for t in (value, grad)]
        number, found = OF_NORMS + case.place, []
        with libraries[0].on(), libraries[1].on():
            for v, g in ((value, grad), strided):
                made = case.forward(libraries[0], number, v, weight, bias, case.running())
                rest = v, weight, bias, made[1], 3
                found.append([*made, *case.backward(libraries[1], number, g, *rest)])
        assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))
        assert all(t.is_contiguous() for t in found[1])


def test_what_is_refused(libraries):
    forward, backward = libraries
    value, weight, bias, grad = CASES[0].tensors()
    group, batch = OF_NORMS + GROUP_RELU, OF_NORMS + BATCH.place
    maps, none = torch.zeros(8, 4), (None, None, None)
    wrong = [
        (lambda: forward.group_norm(group, value, weight, bias, 3, 1e-5), "must divide 4 channels"),
        (lambda: forward.group_norm(group, value, weight[1:], bias, 2, 1e-5), "weight must have"),
        (lambda: forward.group_norm(group, value.double(), None, None, 2, 1e-5), "must be float32"),
        (lambda: forward.group_norm(batch, value, None, None, 2, 1e-5), "another kind|cannot run"),
        (lambda: forward.group_norm(0, value, None, None, 2, 1e-5), "another kind|cannot run"),
        (
            lambda: forward.batch_norm(batch, value.half(), None, None, *none, 0.1, 1e-5),
            "value must be float32",
        ),
        (
            lambda: forward.batch_norm(
                batch, value[:1, :, :1, :1, :1], None, None, *none, 0.1, 1e-5
            ),
            "more than 1 value per channel",
        ),
        (
            lambda: forward.batch_norm(
                batch, value, None, None, torch.zeros(8)[::2], bias, None, 0.1, 1e-5
            ),
            "running_mean must be contiguous",
        ),
        (
            lambda: backward.group_norm(group, grad[:1], value, None, None, maps, 2, 1e-5, 0),
            "grad must have the shape",
        ),
        (
            lambda: backward.group_norm(group, grad, value, None, None, maps[:4], 2, 1e-5, 0),
            r"maps must be forward's, \(8, 4\)",
        ),
        (
            lambda: backward.batch_norm(batch, grad, value, None, None, maps, 1e-5, 0),
            r"maps must be forward's, \(4, 4\)",
        ),
        (
            lambda: backward.group_norm(group, grad, value, None, None, maps, 2, 1e-5, 4),
            "wanted must be 0 to 3",
        ),
    ]
    for call, message in wrong:
        with forward.on(), backward.on(), pytest.raises((RuntimeError, ValueError), match=message):
            call()
    with forward.on():
        empty, maps = forward.group_norm(group, value[:0], weight, bias, 2, 1e-5)
    assert empty.shape == (0, *value.shape[1:]) and maps.shape == (0, 4)
    assert len(TAILS) == OF_NORMS


OF_MODELS = {
    "grouped_volumes": "group_norm",
    "volume_only": "batch_norm",
    "centred_norms": "centred_batch_norm",
}


@pytest.mark.parametrize("name", OF_MODELS)
def test_a_training_step_of_a_model(shelf, libraries, name, monkeypatch):
    """Its steps as the generator wrote them; statistics move once."""
    solution, kind = shelf[name].solution, OF_MODELS[name]
    forward, backward = libraries

    def numbered(operator):
        def call(number, *rest):
            return operator(number + first_tail_of(name), *rest)

        return types.SimpleNamespace(default=call)

    one, other = numbered(getattr(forward, kind)), numbered(getattr(backward, kind))
    library = types.SimpleNamespace(**{kind: one})
    gradients = types.SimpleNamespace(**{f"{kind}_backward": other})
    monkeypatch.setitem(solution, "_tail_library", lambda: library)
    monkeypatch.setitem(solution, "_tail_gradient_library", lambda: gradients)
    if kind != "group_norm":
        monkeypatch.setitem(solution, "_norm_pays", lambda module, x: True)
    else:
        monkeypatch.setitem(
            solution, "_group_norm_pays", lambda module, x: module.weight is not None
        )
    reference, ours = shelf[name].pair()
    given = [t.requires_grad_() for t in shelf[name].reference["get_inputs"]()]
    exact = [t.detach().double().requires_grad_() for t in given]
    with forward.on():
        y = ours(*given)
        assert forward.launches() > 0
    grad = torch.randn(y.shape)
    with backward.on():
        found = torch.autograd.grad(y, [*given, *ours.parameters()], grad)
        assert backward.launches() > 2
    exact_y = reference.double()(*exact)
    assert float((y.double() - exact_y).detach().abs().max()) < 1e-5
    wanted = torch.autograd.grad(exact_y, [*exact, *reference.parameters()], grad.double())
    for mine, theirs in zip(found, wanted, strict=True):
        assert float((mine.double() - theirs).norm()) <= 1e-4 * float(theirs.norm()) + 1e-6
    for mine, theirs in zip(ours.buffers(), reference.buffers(), strict=True):
        torch.testing.assert_close(mine.double(), theirs.double(), rtol=1e-5, atol=1e-6)


@pytest.mark.sweep
@pytest.mark.parametrize("part", range(4))
def test_every_step(tmp_path, part):
    """Each operator, and chains of several, behind either norm."""
    tails = tuple(tails_of_steps(range(40))[part::4])
    made = []
    for entry in ("tail", "tail_gradient"):
        steps = [(tail.kind, tail.steps) for tail in tails]
        source = gradient_cuda_source(entry, tails=tail_header(steps, entry != "tail"))
        (folder := tmp_path / entry).mkdir()
        kernels = emulator.build_source(source, folder, "-O1")
        made.append(emulator.EmulatedGradients(kernels, entry, named=f"steps_{part}_"))
    kinds = set()
    with made[0].on(), made[1].on():
        for seed in range(4 * len(tails)):
            case = random_case(seed, tails)
            kinds.add(case.place)
            case.check(*made, 0)
    assert len(kinds) > len(tails) * 3 // 4
