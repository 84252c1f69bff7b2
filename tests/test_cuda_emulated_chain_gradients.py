"""Gradients through a convolution, a chain of element-wise steps and GroupNorm by one operator,
which forms the output's gradient as it packs it: on the CPU, thread by thread.
"""

from types import SimpleNamespace

import pytest
import torch

from tests.chain_gradient_tools import (
    ALL,
    ALLOWED,
    FORMED_FIRST,
    PACKED,
    call,
    check,
    check_with_tensors,
    given_value,
    num_groups_of,
    random_call,
    random_call_of_pairs,
    tensors_of,
    truth,
)
from tests.emulated_tools import forced, needs_cuda_headers
from tests.norm_gradient_tools import TENSOR_CHAINS
from tests.sweeps import not_finite, swept

pytestmark = needs_cuda_headers


# Chains with GroupNorm behind them and without: what differs between layers does so for each.
BEHIND = [(0, True), (1, True), (1, False), (2, False), (3, True)]
USUAL = [("whole", *BEHIND[1]), ("strided", *BEHIND[3]), ("gaps", *BEHIND[3])]


@pytest.mark.parametrize(
    "given",
    swept([(n, *b) for n in (*PACKED, *FORMED_FIRST) for b in BEHIND], USUAL.__contains__),
    ids=str,
)
def test_right(plain_chained_gradients, given):
    """And what is formed as it is packed (one more launch for x's pixels, two for what asks whether
    the gradient is wanted after all) the same as when it is formed first, but for rounding.
    """
    name, chain, normed = given
    case = {**PACKED, **FORMED_FIRST}[name]
    num_groups = num_groups_of(case) if normed else 0
    given = tensors_of(case, chain, num_groups)
    library, launches, found = plain_chained_gradients, {}, {}
    for needs in (ALL, (True, False, True), (False, True, True), (False, False, True)):
        with library.on(seed=3, detect_races=True), forced("hopper"):
            found[needs] = call(library.chain_backward, case, given, chain, num_groups, needs=needs)
            launches[needs] = library.launches()
            assert library.races() == []
        exact = truth(case, given, chain, num_groups)
        check(found[needs], exact, num_groups, ALLOWED[torch.float32], needs)
    both, of_x, of_weight, of_chain = launches.values()
    assert (both > of_x + of_weight - of_chain) == (name in PACKED)
    of_x, of_weight = (found[needs] for needs in list(found)[1:3])
    for got, other in zip(found[ALL], (of_x[0], of_weight[1], *of_x[2:]), strict=True):
        assert float((got - other).norm()) <= 2e-4 * float(other.norm())


# Layers and what samples of the gradient are multiplied by: fp16 containers hold those of one
# magnitude, the strict kernels take the others.
GIVEN = [(name, factor) for name in (*PACKED, *FORMED_FIRST) for factor in (1.0, 1e-9)]
USUAL_GIVEN = [("whole", 1.0), ("strided", 1e-9), ("abreast", 1.0)]


@pytest.mark.parametrize("given", swept(GIVEN, USUAL_GIVEN.__contains__), ids=str)
def test_a_given_value_is_read_in_the_place_of_the_convolutions_output(
    plain_chained_gradients, given
):
    """The gradients are those of a chain behind that value, which stays as it is."""
    name, factor = given
    case = {**PACKED, **FORMED_FIRST}[name]
    given, library = tensors_of(case, 1, 0), plain_chained_gradients
    given["grad"][0] *= factor
    value, exact = given_value(case, given)
    kept = value.clone()
    for needs in (ALL, (True, False, True), (False, True, True), (False, False, True)):
        with library.on(seed=5, detect_races=True), forced("hopper"):
            args = library.chain_backward, case, given, 1, 0
            found = call(*args, needs=needs, value=value)
            assert library.races() == []
        check(found, exact, 0, ALLOWED[torch.float32], needs)
        assert torch.equal(value, kept)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", swept(PACKED, ("even",).__contains__))
def test_16_bits(plain_chained_gradients, name, dtype):
    case, chain = PACKED[name], 3
    num_groups = num_groups_of(case)
    given = tensors_of(case, chain, num_groups, dtype)
    library = plain_chained_gradients
    with library.on(seed=4, detect_races=True), forced("hopper"):
        found = call(library.chain_backward, case, given, chain, num_groups)
        assert library.races() == []
    check(found, truth(case, given, chain, num_groups), num_groups, ALLOWED[dtype])


@pytest.mark.parametrize("factor", [1e-9, 1e9, 1e-36])
@pytest.mark.parametrize("name", swept(("whole", "strided", "strips"), ("strided",).__contains__))
def test_samples_of_other_magnitudes(plain_chained_gradients, name, factor):
    """What fp16 containers cannot hold is formed after all, for the strict kernels."""
    case = PACKED[name]
    given = tensors_of(case, 1, 0)
    given["grad"][0] *= factor
    library = plain_chained_gradients
    with library.on(), forced("hopper"):
        found = call(library.chain_backward, case, given, 1, 0)
    exact, _ = truth(case, given, 1, 0)
    for got, wanted in zip(found[0], exact[0], strict=True):
        assert float((got.double() - wanted).norm()) <= 2e-3 * float(wanted.norm())
    assert float((found[1].double() - exact[1]).norm()) <= 2e-3 * float(exact[1].norm())


@pytest.mark.parametrize("size", [1e-5, 1e-8])
@pytest.mark.parametrize("name", swept(("strided", "strips"), ("strided",).__contains__))
def test_a_lone_small_value(plain_chained_gradients, name, size):
    """Beside zeros alone, as behind steps that clamp: what fp16 containers hold with 11 bits is no
    matter for the guard; the strict kernels, which err by a thousandth as much, take the rest.
    """
    case, library = PACKED[name], plain_chained_gradients
    given = tensors_of(case, 0, 0)
    last = given["grad"].shape[-1] - 1
    given["grad"].zero_()
    given["grad"][0, 0, 0, 0] = 1.0
    given["grad"][0, 7, 2, last] = size
    with library.on(), forced("hopper"):
        found = call(library.chain_backward, case, given, 0, 0)
    exact, _ = truth(case, given, 0, 0)
    got, wanted = (t[..., -1:].double() for t in (found[0], exact[0]))
    error = float((got - wanted).norm() / wanted.norm())
    assert error <= 2e-3
    assert (error > 1e-5) == (size > 1e-6)


@pytest.mark.parametrize(("of", "value"), not_finite(["grad", "x"]))
@pytest.mark.parametrize(
    "dtype", swept([torch.float32, torch.float16], (torch.float32,).__contains__), ids=str
)
@pytest.mark.parametrize("name", swept(("whole", "even", "groups"), ("even",).__contains__))
def test_not_finite_where_their_products_are(plain_chained_gradients, name, dtype, of, value):
    case = PACKED[name]
    given, found = tensors_of(case, 1, 0, dtype), []
    given[of][0, 1, 2, 1] = value
    for kernel in ("hopper", "plain"):
        with plain_chained_gradients.on(), forced(kernel):
            found.append(call(plain_chained_gradients.chain_backward, case, given, 1, 0))
    for got, wanted in zip(found[0][:3], found[1][:3], strict=True):
        assert torch.equal(got.isnan(), wanted.isnan())
        assert torch.equal(got.isfinite(), wanted.isfinite())


@pytest.mark.parametrize("name", swept(("strips", "even"), ("strips",).__contains__))
def test_the_same_bits_in_any_order_of_warps(plain_chained_gradients, name):
    case, found = PACKED[name], []
    num_groups = num_groups_of(case)
    given = tensors_of(case, 3, num_groups)
    for seed in (1, 2):
        with plain_chained_gradients.on(seed=seed), forced("hopper"):
            args = case, given, 3, num_groups
            found.append(call(plain_chained_gradients.chain_backward, *args))
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


def test_what_is_refused_is_named(plain_chained_gradients):
    case = PACKED["whole"]
    given = tensors_of(case, 1, 4)
    short = {**given, "grad": given["grad"][..., 1:]}
    wide = {**given, "norm_weight": given["norm_weight"].double()}
    for args, said in (
        ((short, 1, 4), r"grad must have the output's shape"),
        ((given, 1, 5), r"num_groups must divide 24 channels or be 0, got 5"),
        ((given, 1, 0), r"where nothing is normalised there is no weight"),
        ((wide, 1, 4), r"norm_weight must have the input's dtype"),
        ((given, 9, 4), r"cannot run this layer"),
    ):
        with plain_chained_gradients.on(), pytest.raises(RuntimeError, match=said):
            call(plain_chained_gradients.chain_backward, case, *args)
    said = r"value must have the output's shape \(.*\), got \(.*\)"
    with plain_chained_gradients.on(), pytest.raises(RuntimeError, match=said):
        given = tensors_of(case, 1, 0)
        args = plain_chained_gradients.chain_backward, case, given, 1, 0
        call(*args, value=given["grad"][..., 1:])


@pytest.fixture
def asks(shelf, plain_chained_gradients, monkeypatch):
    """Has a solution's gradients by the emulated kernels, though its tensors are on the CPU."""
    kernels = plain_chained_gradients
    operators = {name: getattr(kernels.namespace, name) for name in ("backward", "convolve")}

    def set_in(name: str) -> tuple:
        solution = shelf[name].solution
        monkeypatch.setitem(solution, "_GRADIENT_DEVICES", ("cpu",))
        monkeypatch.setitem(solution, "_gradient_library", lambda: SimpleNamespace(**operators))
        monkeypatch.setitem(solution, "_chain_kernels", lambda: _with_chain_of_the_tests(kernels))
        return shelf[name].pair()

    return set_in


def test_a_step_asks_the_operator(asks, plain_chained_gradients):
    """The whole backward of a solution; `trunk` has GELU."""
    kernels = plain_chained_gradients
    model, new = asks("two_heads")
    x = torch.randn(2, 5, 4, 5, generator=torch.Generator().manual_seed(2))
    grads = []
    for of in (model, new):
        given = x.clone().requires_grad_()
        with kernels.on():
            _, heads = of(given)
            heads["alpha"].square().sum().backward()
            assert (kernels.launches() > 0) == (of is new)
        grads.append([given.grad, *[p.grad for p in of.trunk.parameters()]])
    for got, wanted in zip(grads[1], grads[0], strict=True):
        assert float((got - wanted).norm()) <= 2e-3 * float(wanted.norm())


def test_a_step_through_group_norm_asks_the_operator(asks, plain_chained_gradients):
    """The whole backward of 2/19: output once more, GroupNorm, GELU, convolution."""
    model, new = asks("19")
    x = torch.randn(2, 64, 6, 34, generator=torch.Generator().manual_seed(2))
    exact_x, model = x.double().requires_grad_(), model.double()
    y = model(exact_x)
    grad = torch.randn(y.shape, generator=torch.Generator().manual_seed(4))
    y.backward(grad.double())
    x.requires_grad_()
    with plain_chained_gradients.on():
        new(x).backward(grad)
        assert plain_chained_gradients.launches() > 0
    exact = [exact_x.grad, *[p.grad for p in model.parameters()]]
    found = [x.grad, *[p.grad for p in new.parameters()]]
    for got, wanted in zip(found, exact, strict=True):
        assert float((got - wanted).norm()) <= 2e-3 * float(wanted.norm())


def _with_chain_of_the_tests(kernels):
    """The operator, whose last argument but one is the chain's number: GELU is the tests' first."""
    return lambda *args: kernels.chain_backward(*args[:-2], 1, args[-1])


@pytest.mark.parametrize("first", swept(range(0, 60, 10), (0,).__contains__))
def test_random_layers(plain_chained_gradients, first):
    """Of ten layers all are right that the Hopper kernels serve; every third with a gradient of few
    values, as clamps leave them.
    """
    assert of_random(plain_chained_gradients, random_call, range(first, first + 10)) >= 5


@pytest.mark.parametrize("first", swept(range(0, 48, 6), (0,).__contains__))
def test_random_layers_of_two_columns_planes(plain_chained_gradients, first):
    """Likewise of layers whose planes are packed two at a time."""
    seeds = range(first, first + 6)
    assert of_random(plain_chained_gradients, random_call_of_pairs, seeds) >= 3


def of_random(library, call_of, seeds: range) -> int:
    """How many of these layers the Hopper kernels serve: all right."""
    served = 0
    for seed in seeds:
        case, chain, num_groups, dtype = call_of(seed)
        given = tensors_of(case, chain, num_groups, dtype)
        if seed % 3 == 0:
            generator = torch.Generator().manual_seed(seed)
            given["grad"] *= torch.rand(given["grad"].shape, generator=generator) < 0.01
        with library.on(seed=seed, detect_races=True), forced("hopper"):
            try:
                found = call(library.chain_backward, case, given, chain, num_groups)
            except RuntimeError as error:
                assert "cannot run this layer" in str(error)
                continue
            assert library.races() == [], seed
        served += 1
        exact = truth(case, given, chain, num_groups)
        check(found, exact, num_groups, ALLOWED[dtype], told=f"seed {seed}: {case}")
    return served


@pytest.mark.parametrize("dtype", ALLOWED, ids=str)
@pytest.mark.parametrize("chain", range(len(TENSOR_CHAINS)))
@pytest.mark.parametrize("name", swept([*PACKED, *FORMED_FIRST], ("whole", "twelve").__contains__))
def test_with_operands_of_the_output_s_shape(emulated_chained_gradients, name, chain, dtype):
    """Read and their gradients written in the pass that forms the output's gradient."""
    library, case = emulated_chained_gradients, {**PACKED, **FORMED_FIRST}[name]
    with library.on(seed=5, detect_races=True), forced("hopper"):
        check_with_tensors(library.chain_backward, case, chain, dtype)
        assert library.races() == []
