"""The mask that a training step of a volume keeps for a chain like clamp's: written by the
forward's kernels, read by those of the gradients, thread by thread on the CPU. Operands are small
integers, so that outputs are exact and many of them lie on the bound.
"""

import dataclasses
import random

import pytest
import torch

from tests.emulated_tools import forced, needs_cuda_headers
from tests.gpu_tools import tf32
from tests.norm_gradient_tools import CHAINS, MASKED_CHAINS
from tests.random_dimensions import Layer, volume
from tests.sweeps import swept
from tests.volume_chain_tools import PACKED, call, tensors_of

pytestmark = needs_cuda_headers
BOUND = -1.0  # tests/references/clamped_volumes.py
DTYPES = torch.float32, torch.float16, torch.bfloat16
SAME = {"rtol": 0, "atol": 0, "equal_nan": True}
CLAMP, LEAKY = (len(CHAINS) + nth for nth in range(len(MASKED_CHAINS)))


@pytest.fixture(scope="module")
def emulated(emulated_clamped):
    emulated_clamped.solution["_VOLUME_DEVICES"] = ("cpu",)
    return emulated_clamped


def clamped_layer(seed: int) -> Layer:
    """Random, of columns two apart, in rows of an even number or an odd one."""
    rng, case = random.Random(f"mask {seed}"), volume(seed)
    kernel = *case.kernel[:2], rng.choice((2, 3, 3, 4))
    return dataclasses.replace(
        case,
        batch=case.batch or 1,
        out_channels=case.groups * rng.choice((16, 24, 40, 64, 130)),
        kernel=kernel,
        size=(*case.size[:2], rng.choice((4, 8, 9, 12, 40))),
        stride=(*case.stride[:2], 2),
        padding=(*case.padding[:2], rng.randint(0, 1)),
        output_padding=(*case.output_padding[:2], rng.randint(0, 1)),
        dilation=(*case.dilation[:2], 1),
    )


def integers(case: Layer, dtype, size: float = 1.0) -> list:
    """Operands; `size` multiplies the input and the bias."""
    made = torch.Generator().manual_seed(case.seed)
    shapes = (case.batch, case.channels, *case.size), (case.out_channels,)
    x, bias = (size * torch.randint(-2, 3, shape, generator=made) for shape in shapes)
    of_weight = case.channels, case.out_channels // case.groups, *case.kernel
    weight = 2 * torch.randint(0, 2, of_weight, generator=made) - 1
    weight *= torch.rand(of_weight, generator=made) < 4 / case.channels  # sums near the bound
    return [x.to(dtype), weight.to(dtype), bias.to(dtype) if case.bias else None]


def masked(emulated, case: Layer, operands: list) -> tuple:
    """(result, mask or None) of the operator that leaves one, or None where it declines, and the
    result of the other one
    """
    *axes, groups = case.parameters
    numbers = [number for axis in axes for number in axis]
    namespace = getattr(torch.ops, emulated.solution["_NAMESPACE"])
    alone = namespace.run_depth.default(*operands, *numbers, groups, True)
    found, mask = namespace.run_depth_masked.default(*operands, *numbers, groups, True)
    torch.testing.assert_close(found, alone, **SAME)
    if found.numel() == 0:
        return None
    shape = case.batch, case.out_channels, *found.shape[1:]
    return found.view(shape), mask.view(shape) if mask.numel() > 0 else None


def check(emulated, case: Layer, operands: list) -> bool:
    """Is there a mask? Then it is right."""
    exact = [None if t is None else t.double() for t in operands]
    try:
        value = case.reference(*exact)
    except RuntimeError:  # no output
        return False
    with emulated.on(seed=case.seed, detect_races=True), forced("hopper"):
        found = masked(emulated, case, operands)
        assert emulated.races() == [], case
    if found is None:
        return False
    out, mask = found
    wanted = (value.clamp(min=BOUND) / 2).to(out.dtype)
    torch.testing.assert_close(out, wanted, **SAME)
    if mask is None:
        return False
    assert mask.dtype == torch.uint8
    assert torch.equal(mask, (value.to(out.dtype) >= BOUND).to(torch.uint8)), case
    return True


LAYERS = 16


@pytest.mark.parametrize(
    ("dtype", "first"), swept([(d, n) for n in (0, 40) for d in DTYPES], (0, 1), names=2)
)
def test_random_layers(emulated, dtype, first):
    """In place: by twin columns and by the kernel of slices that no tap reaches."""
    cases = [clamped_layer(seed) for seed in range(first, first + LAYERS)]
    kept = [check(emulated, case, integers(case, dtype)) for case in cases]
    assert sum(kept) >= LAYERS // 2


@pytest.mark.parametrize("size", [1e6, float("inf"), float("nan")])
def test_what_containers_cannot_hold(emulated, size):
    """The kernel that computes the outputs again leaves its own mask."""
    kept = 0
    for seed in range(2, 6):
        case = clamped_layer(seed)
        x, weight, bias = integers(case, torch.float32, size if size == 1e6 else 1.0)
        if size != 1e6:
            x[0, -1, 0, -1, 1] = size
            weight = weight + (weight == 0)
        kept += check(emulated, case, [x, weight, bias])
    assert kept >= 2


@pytest.mark.parametrize("dtype", swept(DTYPES, (1,)), ids=str)
@pytest.mark.parametrize("value", [float("inf"), float("nan")])
def test_not_finite_in_16_bits(emulated, dtype, value):
    case = dataclasses.replace(clamped_layer(2), size=(2, 3, 9))
    x, weight, bias = integers(case, dtype)
    x[0, -1, 0, -1, 1] = value
    assert check(emulated, case, [x, weight + (weight == 0), bias])


@pytest.mark.parametrize("bias", [BOUND, BOUND - 1])
def test_bias_alone(emulated, bias):
    """On the bound, and below it."""
    kept = 0
    for seed in range(6):
        case = dataclasses.replace(clamped_layer(seed), bias=True)
        x, weight, _ = integers(case, torch.float32)
        operands = [torch.zeros_like(x), weight, torch.full((case.out_channels,), bias)]
        kept += check(emulated, case, operands)
    assert kept >= 3


def test_the_bound_is_met_by_what_would_be_stored(emulated):
    """In 16 bits, as PyTorch asks it of a stored value: a quarter of the last bit below it."""
    case = dataclasses.replace(clamped_layer(2), bias=True)
    x, weight, bias = map(torch.zeros_like, integers(case, torch.float16))
    x[:, 0], weight[0], bias[:] = 2.0**-6, -(2.0**-6), BOUND
    assert check(emulated, case, [x, weight, bias])
    value = case.reference(x.double(), weight.double(), bias.double())
    assert bool(((value < BOUND) & (value.half() >= BOUND)).any())


@pytest.mark.parametrize("change", [{"stride": (2, 2, 1)}, {"channels": 4}])
def test_other_kernels_leave_none(emulated, change):
    given = {"out_channels": 64, "stride": (2, 2, 2), "padding": (1, 1, 1), "kernel": (3, 3, 3)}
    given |= {"groups": 1, "channels": 16, "output_padding": (0, 0, 0), "dilation": (1, 1, 1)}
    for more, leaves in ((change, False), ({}, True)):
        case = dataclasses.replace(clamped_layer(2), **(given | more))
        assert check(emulated, case, integers(case, torch.float32)) == leaves


def a_mask(given: dict) -> torch.Tensor:
    made = torch.Generator().manual_seed(3)
    return torch.randint(0, 2, given["grad"].shape, generator=made, dtype=torch.uint8)


@pytest.mark.parametrize("chain", [CLAMP, LEAKY])
@pytest.mark.parametrize("dtype", swept(DTYPES, (0, 1)), ids=str)
@pytest.mark.parametrize("name", swept(PACKED, ("two_apart", "strips_of_two", "rows").__contains__))
def test_gradients(emulated_volume_chain_gradients, name, dtype, chain):
    """The same bits as of the gradient that lies in memory: factors are powers of two."""
    case, library = PACKED[name], emulated_volume_chain_gradients
    given = tensors_of(case, 0, dtype)
    mask, (holds, fails) = a_mask(given), MASKED_CHAINS[chain - CLAMP][1]
    formed = given["grad"] * torch.where(mask != 0, holds, fails).to(dtype)
    with library.on(seed=3, detect_races=True), forced("hopper"):
        found = call(library, case, given, chain, value=mask)
        wanted = call(library, case, {**given, "grad": formed}, 0)
        assert library.races() == []
    assert (found is None) == (wanted is None)
    assert found is not None or dtype != torch.float32
    if found is not None:
        assert all(map(torch.equal, found, wanted))


@pytest.mark.parametrize("name", swept(["rows", "two_apart"]))
def test_gradients_that_are_formed_after_all(emulated_volume_chain_gradients, name):
    """Samples of two magnitudes do not fit one scale; the mask stays as it is."""
    case, library = PACKED[name], emulated_volume_chain_gradients
    given = tensors_of(case, 0)
    given["grad"][0] *= 1e-9
    mask = a_mask(given)
    kept, formed = mask.clone(), given["grad"] * mask / 2
    with library.on(seed=4, detect_races=True), forced("hopper"):
        found = call(library, case, given, CLAMP, value=mask)
        launched = library.launches()
        wanted = call(library, case, {**given, "grad": formed}, 0)
        assert library.races() == [] and launched > 0
    assert torch.equal(mask, kept)
    assert all(map(torch.equal, found, wanted))


def test_a_chain_takes_what_it_reads(emulated_volume_chain_gradients):
    """No mask where values are read, nor the other way round, nor one of another shape."""
    case, library = PACKED["two_apart"], emulated_volume_chain_gradients
    given = tensors_of(case, 1)
    mask = a_mask(given)
    with library.on(), forced("hopper"):
        for chain, value in ((1, mask), (CLAMP, given["grad"]), (CLAMP, mask[..., 1:].clone())):
            assert call(library, case, given, chain, value=value) is None
        assert call(library, case, given, CLAMP) is None
        assert library.launches() == 0


@pytest.fixture
def stepping(emulated, emulated_volume_chain_gradients, monkeypatch):
    """(the solution, with the gradients' library; what is asked of its operators, by name). Its
    chain is another number in that.
    """
    library, solution, asked = emulated_volume_chain_gradients, emulated.solution, []
    declining = solution["_declining_operator"]

    def operator(namespace, name, *rest):
        kernels = declining(namespace, name, *rest)

        def run(*args, **kept):
            asked.append(name)
            if "chain" in kept:
                assert kept["chain"] == 1 and kept["value"].dtype == torch.uint8
                kept["chain"] = CLAMP
            return kernels(*args, **kept)

        return run

    monkeypatch.setitem(solution, "_GRADIENT_DEVICES", ("cpu",))
    monkeypatch.setitem(solution, "_LEAST_KEPT", 1)
    monkeypatch.setitem(solution, "_gradient_library", lambda: library.namespace)
    monkeypatch.setitem(solution, "_declining_operator", operator)
    with emulated.on(), library.on(), forced("hopper"), tf32(True):
        yield solution, asked


def models(shelf, solution) -> tuple:
    torch.manual_seed(1)
    new = solution["ModelNew"](16, 64)
    with torch.no_grad():
        for parameter in new.parameters():
            parameter.copy_((parameter * 20).round())
    model = shelf["clamped_volumes"].reference["Model"](16, 64)
    model.load_state_dict(new.state_dict())
    x = torch.randint(-2, 3, (2, 16, 2, 3, 18), generator=torch.Generator().manual_seed(2))
    return model.double(), new, x.float()


def test_a_step(shelf, stepping):
    """The convolution is not computed again."""
    solution, asked = stepping
    model, new, x = models(shelf, solution)
    grads = []
    for of, given in ((model, x.double()), (new, x)):
        leaf = given.clone().requires_grad_()
        of(leaf).pow(3).sum().backward()
        grads.append([leaf.grad, *[p.grad for p in of.parameters()]])
    assert asked == ["run_depth_masked", "depth_chain_gradients"]
    for got, wanted in zip(grads[1], grads[0], strict=True):
        assert float((got - wanted).norm()) <= 2e-3 * float(wanted.norm())


def test_a_gradient_asked_for_alone(shelf, stepping, monkeypatch):
    """The kernels that form it first read the mask in their dtype."""
    solution, asked = stepping
    given = []

    def chain_gradients(grad, value, vectors, need_sums, pad_rows, chain):
        given.append((value.dtype, chain))
        made = grad * value / 2
        return made, made.sum((0, 2, 3)) if need_sums else None, []

    monkeypatch.setitem(solution, "_kernel_chain_gradients", chain_gradients)
    model, new, x = models(shelf, solution)
    grads = []
    for of in (model, new):
        leaf = x.to(next(of.parameters()).dtype, copy=True).requires_grad_()
        of.requires_grad_(False)(leaf).pow(3).sum().backward()
        grads.append(leaf.grad)
    assert given == [(torch.float32, 1)]
    assert "run_depth_masked" in asked and "depth_chain_gradients" not in asked
    wanted, got = grads
    assert float((got - wanted).norm()) <= 2e-3 * float(wanted.norm())


def test_where_no_mask_is_kept(shelf, stepping, monkeypatch):
    """For few outputs, and of an input that wants no gradient, as forwards alone are timed; for
    gradients of gradients none is read.
    """
    solution, asked = stepping
    model, new, x = models(shelf, solution)
    found = []
    for of, given in ((model, x.double()), (new, x)):
        leaf = given.clone().requires_grad_()
        (first,) = torch.autograd.grad(of(leaf).pow(3).sum(), leaf, create_graph=True)
        assert "depth_chain_gradients" not in asked
        found += torch.autograd.grad(first.square().sum(), leaf)
    assert float((found[1] - found[0]).norm()) <= 1e-2 * float(found[0].norm())
    asked.clear()
    new(x)
    x.requires_grad_()
    with torch.no_grad():
        new(x)
    monkeypatch.setitem(solution, "_LEAST_KEPT", 1 << 20)
    new(x)
    assert "run_depth_masked" not in asked
