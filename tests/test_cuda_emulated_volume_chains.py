"""Gradients through volumes' convolution and a chain of element-wise steps by one operator, which
forms the output's gradient as it packs it: on the CPU, thread by thread.
"""

from types import SimpleNamespace

import pytest
import torch

from tests.chain_gradient_tools import ALLOWED
from tests.cuda_emulator import emulator
from tests.emulated_tools import forced, needs_cuda_headers
from tests.gradient_tools import DISTRIBUTIONS
from tests.norm_gradient_tools import CHAINS
from tests.random_dimensions import volume
from tests.sweeps import not_finite, swept
from tests.test_cuda_emulated_volume_gradients import check as check_volumes
from tests.test_cuda_emulated_volume_gradients import exact, for_weight_alone, found_in, operands
from tests.volume_chain_tools import (
    DECLINED,
    PACKED,
    call,
    check,
    given_value,
    layer,
    random_call,
    tensors_of,
    truth,
)

pytestmark = needs_cuda_headers

GRID = [(name, chain) for name in PACKED for chain in range(len(CHAINS))]
USUAL = [("two_apart", 3), ("classes", 2), ("strips", 1), ("many_rows", 2)]
PLACES = {"input": 0, "weight": 1}


@pytest.mark.parametrize("given", swept(GRID, USUAL.__contains__), ids=str)
def test_right(emulated_volume_chain_gradients, given):
    """And nothing of the output's size is written but packed pixels, unless it has to be."""
    name, chain = given
    case, library = PACKED[name], emulated_volume_chain_gradients
    given = tensors_of(case, chain)
    with library.on(seed=3, detect_races=True), forced("hopper"):
        found = call(library, case, given, chain)
        assert library.races() == []
    check(found, truth(case, given, chain), torch.float32, name)


@pytest.mark.parametrize(
    "dtype", swept(ALLOWED, (torch.float32, torch.float16).__contains__), ids=str
)
@pytest.mark.parametrize("name", swept(PACKED, ("groups",).__contains__))
def test_nothing_behind_is_a_packing_of_what_comes_in(emulated_volume_chain_gradients, name, dtype):
    """The same bits as of a gradient that lies in memory; in 16 bits what lacks taps may be
    declined by both.
    """
    case, library = PACKED[name], emulated_volume_chain_gradients
    given = tensors_of(case, 0, dtype)
    with library.on(seed=5, detect_races=True), forced("hopper"):
        found = call(library, case, given, 0)
        wanted = found_in(library, "both", case, given["x"], given["weight"], given["grad"])
        assert library.races() == []
    assert (found is None) == (wanted is None)
    assert found is not None or dtype != torch.float32
    if found is not None:
        assert all(torch.equal(found[PLACES[of]], made) for of, made in wanted.items())


@pytest.mark.parametrize("name", ["two_apart", "many_rows"])
def test_what_reads_no_value_may_be_given_the_gradient(emulated_volume_chain_gradients, name):
    case, library = PACKED[name], emulated_volume_chain_gradients
    given = tensors_of(case, 0)
    with library.on(seed=7, detect_races=True), forced("hopper"):
        found = call(library, case, given, 0, value=given["grad"])
        wanted = call(library, case, given, 0)
        assert library.races() == []
    assert all(map(torch.equal, found, wanted))


@pytest.mark.parametrize("factor", swept([1.0, 1e-9], (1e-9).__eq__))
@pytest.mark.parametrize("name", swept(PACKED, ("rows",).__contains__))
def test_a_given_value_is_read_in_the_place_of_the_convolutions_output(
    emulated_volume_chain_gradients, name, factor
):
    """It stays as it is, where the gradient is written after all, too: samples of two magnitudes
    do not fit one scale.
    """
    case, library = PACKED[name], emulated_volume_chain_gradients
    given = tensors_of(case, 1)
    given["grad"][0] *= factor
    value = given_value(given)
    kept = value.clone()
    behind = value.double().requires_grad_()
    (slope,) = torch.autograd.grad(torch.nn.functional.gelu(behind).sum(), behind)
    wanted = truth(case, {**given, "grad": given["grad"] * slope}, 0)
    with library.on(seed=4, detect_races=True), forced("hopper"):
        found = call(library, case, given, 1, value=value)
        assert library.races() == []
    check(found, wanted, torch.float32, name)
    assert torch.equal(value, kept)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", swept(PACKED, ("columns_apart",).__contains__))
def test_16_bits(emulated_volume_chain_gradients, name, dtype):
    case, library = PACKED[name], emulated_volume_chain_gradients
    given = tensors_of(case, 3, dtype)
    with library.on(seed=4, detect_races=True), forced("hopper"):
        found = call(library, case, given, 3)
        assert library.races() == []
    if found is None:
        pytest.skip("absent taps, in 16 bits")
    check(found, truth(case, given, 3), dtype, name)


@pytest.mark.parametrize("name", swept(DISTRIBUTIONS, (5,)))
@pytest.mark.parametrize("case", swept(("two_apart", "one_apart"), ("two_apart",).__contains__))
def test_magnitudes(emulated_volume_chain_gradients, case, name):
    """Value by value no larger error than rounding operands to TF32 makes, where containers hold
    them or not.
    """
    case, library = PACKED[case], emulated_volume_chain_gradients
    given = tensors_of(case, 0)
    given["grad"] = DISTRIBUTIONS[name](given["grad"])
    with library.on(), forced("hopper"):
        found = call(library, case, given, 0)
        in_its_place = _Found(dict(zip(PLACES, found[:2], strict=True)))
        assert check_volumes(in_its_place, "both", case, given["x"], given["weight"], given["grad"])


class _Found:
    """A library whose operator for both gradients gives these."""

    def __init__(self, found: dict):
        operator = SimpleNamespace(default=lambda *_: (found["input"], found["weight"]))
        self.namespace = SimpleNamespace(depth_gradients=operator)


@pytest.mark.parametrize("factor", swept([1e-9, 1e9, 1e-36]))
@pytest.mark.parametrize(
    "name", swept(("two_apart", "rows", "strips"), ("two_apart",).__contains__)
)
def test_samples_of_other_magnitudes(emulated_volume_chain_gradients, name, factor):
    """What fp16 containers cannot hold is formed after all, for the strict kernels."""
    case, library = PACKED[name], emulated_volume_chain_gradients
    given = tensors_of(case, 1)
    given["grad"][0] *= factor
    with library.on(), forced("hopper"):
        found = call(library, case, given, 1)
    wanted = truth(case, given, 1)
    for got, right in zip(found[0], wanted[0], strict=True):
        assert float((got.double() - right).norm()) <= 2e-3 * float(right.norm())
    for got, right in zip(found[1:], wanted[1:], strict=True):
        assert float((got.double() - right).norm()) <= 2e-3 * float(right.norm())


@pytest.mark.parametrize("size", swept([1e-5, 1e-8], (1,)))
@pytest.mark.parametrize("name", swept(("two_apart", "one_apart"), ("two_apart",).__contains__))
def test_a_lone_small_value(emulated_volume_chain_gradients, name, size):
    """Beside zeros alone, as behind steps that clamp: what fp16 containers hold with 11 bits is no
    matter for the guard; the strict kernels, which err by a thousandth as much, take the rest.
    """
    case, library = PACKED[name], emulated_volume_chain_gradients
    given = tensors_of(case, 0)
    last = given["grad"].shape[-1] - 1
    given["grad"].zero_()
    given["grad"][0, 0, 0, 0, 0] = 1.0
    given["grad"][0, 7, 1, 2, last] = size
    with library.on(), forced("hopper"):
        found = call(library, case, given, 0)
    got, right = (t[0][..., -1:].double() for t in (found, truth(case, given, 0)))
    error = float((got - right).norm() / right.norm())
    assert error <= 2e-3
    assert (error > 1e-5) == (size > 1e-6)


@pytest.mark.parametrize(("of", "value"), not_finite(["grad", "x"]))
@pytest.mark.parametrize(
    "dtype", swept([torch.float32, torch.float16], (torch.float32,).__contains__), ids=str
)
@pytest.mark.parametrize(
    "name", swept(("two_apart", "columns_apart", "groups"), ("columns_apart",).__contains__)
)
def test_not_finite_where_their_products_are(
    emulated_volume_chain_gradients, name, dtype, of, value
):
    case, library = PACKED[name], emulated_volume_chain_gradients
    given = tensors_of(case, 0, dtype)
    given[of][0, -1, 1, -1, 1] = value
    with library.on(), forced("hopper"):
        found = call(library, case, given, 0)
    if found is None:
        pytest.skip("absent taps, in 16 bits")
    for part, place in PLACES.items():
        wanted = exact(part, case, given["x"], given["weight"], given["grad"])
        there = wanted.isfinite()
        if part == "weight" or of == "grad":
            assert not bool(there.all())
        assert torch.equal(found[place].isfinite(), there)
        same = {"rtol": 0, "atol": 0, "equal_nan": True}
        torch.testing.assert_close(found[place].double()[~there], wanted[~there], **same)
        off = float((found[place].double() - wanted)[there].norm())
        assert off <= ALLOWED[dtype] * float(wanted[there].norm())
    sums = given["grad"].sum((0, 2, 3, 4))
    assert torch.equal(found[2].isnan(), sums.isnan())
    assert torch.equal(found[2].isfinite(), sums.isfinite())


@pytest.mark.parametrize("name", swept(("two_apart", "rows", "strips"), (0, 1)))
def test_the_same_bits_in_any_order_of_warps(emulated_volume_chain_gradients, name):
    case, library, found = PACKED[name], emulated_volume_chain_gradients, []
    given = tensors_of(case, 3)
    for seed in (1, 2):
        with library.on(seed=seed), forced("hopper"):
            found.append(call(library, case, given, 3))
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


GO_LAUNCHES = 5  # x's pixels, planes, a kernel for each gradient, the weights of one


@pytest.mark.parametrize(("batch", "goes"), swept([(2, 1), (3, 3), (4, 2), (5, 3)], (2,), names=2))
def test_goes_of_whole_volumes(emulated_volume_chain_gradients, batch, goes):
    """Of one volume each, of two, and of what is left."""
    case, library, launches = layer(batch=batch), emulated_volume_chain_gradients, []
    given = tensors_of(case, 2)
    for count in (1, batch):
        some = {name: given[name][:count] for name in ("grad", "x")}
        with library.on(seed=batch), forced("hopper"):
            found = call(library, case, {**given, **some}, 2)
            launches.append(library.launches())
    check(found, truth(case, given, 2), torch.float32)
    assert launches[1] - launches[0] == GO_LAUNCHES * (goes - 1)


@pytest.mark.parametrize("name", DECLINED)
def test_declined(emulated_volume_chain_gradients, name):
    library, case = emulated_volume_chain_gradients, DECLINED[name]
    with library.on(emulator.HOPPER), forced("auto"):
        assert call(library, case, tensors_of(case, 1), 1) is None
        assert library.launches() == 0


@pytest.mark.parametrize(
    "change",
    [
        {"tf32": False},
        {"dtype": torch.float64},
        {"grad": lambda t: t.transpose(3, 4).contiguous().transpose(3, 4)},
        {"grad": lambda t: t[..., 1:]},
        {"value": lambda t: t[..., 1:].contiguous()},
        {"value": lambda t: t.half()},
        {"chain": 9},
        {"device": emulator.AMPERE},
        {"kernel": "plain"},
    ],
    ids=str,
)
def test_what_it_does_not_serve(emulated_volume_chain_gradients, change):
    library, case = emulated_volume_chain_gradients, PACKED["one_apart"]
    given = tensors_of(case, 1, change.get("dtype", torch.float32))
    value = change["value"](given["grad"]) if "value" in change else None
    given["grad"] = change.get("grad", torch.clone)(given["grad"])
    with library.on(change.get("device", emulator.HOPPER)), forced(change.get("kernel", "auto")):
        args = change.get("chain", 1), value, change.get("tf32", True)
        assert call(library, case, given, *args) is None
        assert library.launches() == 0


@pytest.mark.parametrize(
    ("first", "count"), swept([(0, 3), (3, 3), *((f, 12) for f in range(6, 102, 12))], names=2)
)
def test_random_layers(emulated_volume_chain_gradients, first, count):
    """All are right that are served; every third with a gradient of few values, as clamps leave
    them.
    """
    library, served = emulated_volume_chain_gradients, 0
    for seed in range(first, first + count):
        case, chain, dtype = random_call(seed)
        given = tensors_of(case, chain, dtype)
        if given is None or given["grad"].numel() == 0:
            continue
        if seed % 3 == 0:
            generator = torch.Generator().manual_seed(seed)
            given["grad"] *= torch.rand(given["grad"].shape, generator=generator) < 0.01
        with library.on(seed=seed, detect_races=True), forced("hopper"):
            found = call(library, case, given, chain)
            assert library.races() == [], seed
        if found is not None:
            check(found, truth(case, given, chain), dtype, (seed, case))
            served += 1
    assert served >= count // 3


@pytest.mark.parametrize("first", swept(range(0, 40, 10), ()))
def test_gradients_by_themselves(emulated_volume_chain_gradients, first):
    """Of x or the weight, in the same library, which launches some kernels otherwise."""
    library, served = emulated_volume_chain_gradients, {"weight": 0, "input": 0}
    for seed in range(first, first + 10):
        case = for_weight_alone(volume(seed))
        made = operands(case, torch.float32)
        for of in served if made is not None else ():
            with library.on(seed=seed, detect_races=True), forced("hopper"):
                served[of] += check_volumes(library, of, case, *made)
                assert library.races() == [], case
    assert min(served.values()) >= 3


@pytest.mark.parametrize("stride", [1, 2])
def test_a_step_asks_the_operator(shelf, emulated_volume_chain_gradients, monkeypatch, stride):
    """The whole backward of a solution, whose steps are the tests' third chain; where the operator
    declines, it goes on to others.
    """
    library, solution = emulated_volume_chain_gradients, shelf["packed_volumes"].solution
    asked, declining = [], solution["_declining_operator"]

    def operator(namespace, name, *rest):
        kernels = declining(namespace, name, *rest)

        def run(*args, **kept):
            asked.append(name)
            return kernels(*args, **kept | ({"chain": 2} if "chain" in kept else {}))

        return run

    monkeypatch.setitem(solution, "_GRADIENT_DEVICES", ("cpu",))
    monkeypatch.setitem(solution, "_gradient_library", lambda: library.namespace)
    monkeypatch.setitem(solution, "_declining_operator", operator)
    new, reference = (
        solution["ModelNew"](16, 64, stride),
        shelf["packed_volumes"].reference["Model"],
    )
    model = reference(16, 64, stride)
    model.load_state_dict(new.state_dict())
    x = torch.randn(3, 16, 2, 3, 18, generator=torch.Generator().manual_seed(2))
    grads = []
    for of, given in ((model.double(), x.double()), (new, x.clone())):
        given = given.to(memory_format=torch.channels_last_3d).requires_grad_()
        with library.on():
            of(given).pow(3).sum().backward()
            assert (library.launches() > 0) == (of is new)
        grads.append([given.grad, *[p.grad for p in of.parameters()]])
    assert asked == ["run_depth", "depth_chain_gradients"]
    for got, wanted in zip(grads[1], grads[0], strict=True):
        assert got.shape == wanted.shape
        assert float((got - wanted).norm()) <= 2e-3 * float(wanted.norm())


def test_flops_are_counted(shelf):
    """As many as of the convolution for each gradient, and for the output once more."""
    count = shelf["packed_volumes"].solution["_count_packed_flops"]
    grad, x, weight = (2, 64, 5, 5, 5), (2, 8, 3, 3, 3), (8, 64, 3, 3, 3)
    of_one, out = 2 * 2 * 27 * 8 * 64 * 27, ((1,), (1,), (64,), (2, 64))
    assert count(grad, x, weight, None, value=None, out_shape=out) == 3 * of_one
    assert count(grad, x, weight, None, value=grad, out_shape=out) == 2 * of_one
    assert count(grad, x, weight, None, value=grad, out_shape=((0,),) * 4) == 0
