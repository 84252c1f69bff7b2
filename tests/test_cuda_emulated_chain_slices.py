"""Gradients through chains that compute the convolution's output along, in several slices of the
batch: a large batch's way, with a spare workspace for one image.
"""

from dataclasses import replace

import pytest
import torch

from tests.chain_gradient_tools import (
    ALLOWED,
    FORMED_FIRST,
    PACKED,
    STRIDE_ONE,
    call,
    check,
    num_groups_of,
    random_call,
    tensors_of,
    truth,
)
from tests.emulated_tools import forced, needs_cuda_headers

pytestmark = [needs_cuda_headers, pytest.mark.sweep]


@pytest.mark.parametrize("normed", [True, False], ids=["normed", "alone"])
@pytest.mark.parametrize("name", [*PACKED, *FORMED_FIRST])
def test_right(emulated_sliced_gradients, plain_chained_gradients, name, normed):
    """As one slice finds, but for rounding."""
    case, chain = {**PACKED, **FORMED_FIRST}[name], 3 if normed else 2
    num_groups = num_groups_of(case) if normed else 0
    case = replace(case, batch=case.batch + 1)
    given, found, launches = tensors_of(case, chain, num_groups), [], []
    for library in (emulated_sliced_gradients, plain_chained_gradients):
        with library.on(seed=3, detect_races=True), forced("hopper"):
            found.append(call(library.chain_backward, case, given, chain, num_groups))
            launches.append(library.launches())
            assert library.races() == []
        exact = truth(case, given, chain, num_groups)
        check(found[-1], exact, num_groups, ALLOWED[torch.float32])
    assert launches[0] > launches[1] or name not in STRIDE_ONE
    for got, other in zip(*found, strict=True):
        assert float((got - other).norm()) <= 4e-4 * float(other.norm())


# Not weights of 1e9: GELU's slope jumps where rounding one of their products moves its sign. So it
# does with the second sample's x of 1e9, a slice that containers hold: 2.08e-3. There the chain is
# the identity.
MAGNITUDES = [("x", 1e-9), ("x", 1e9), ("x", 1e-36), ("grad", 1e-9), ("grad", 1e9)]
MAGNITUDES += [("grad", 1e-36), ("weight", 1e-9), ("weight", 1e-36)]


@pytest.mark.parametrize(("of", "factor"), MAGNITUDES)
@pytest.mark.parametrize("sample", [0, 1])
def test_samples_of_other_magnitudes(emulated_sliced_gradients, of, factor, sample):
    """Strict kernels take what fp16 containers cannot hold, in whichever slice."""
    case, library = PACKED["whole"], emulated_sliced_gradients
    chain = 0 if (of, factor, sample) == ("x", 1e9, 1) else 1
    given = tensors_of(case, chain, 0)
    given[of][sample] *= factor
    with library.on(), forced("hopper"):
        found = call(library.chain_backward, case, given, chain, 0)
    exact, _ = truth(case, given, chain, 0)
    for got, wanted in zip(found[:2], exact[:2], strict=True):
        assert float((got.double() - wanted).norm()) <= 2e-3 * float(wanted.norm())


@pytest.mark.parametrize("value", [float("inf"), float("nan")])
@pytest.mark.parametrize("of", ["x", "grad"])
def test_not_finite_where_their_products_are(emulated_sliced_gradients, of, value):
    case, library, found = PACKED["whole"], emulated_sliced_gradients, []
    given = tensors_of(case, 1, 0)
    given[of][0, 1, 2, 1] = value
    for kernel in ("hopper", "plain"):
        with library.on(), forced(kernel):
            found.append(call(library.chain_backward, case, given, 1, 0))
    for got, wanted in zip(found[0][:3], found[1][:3], strict=True):
        assert torch.equal(got.isnan(), wanted.isnan())
        assert torch.equal(got.isfinite(), wanted.isfinite())


@pytest.mark.parametrize("seed", range(100, 160))
def test_random_layers(emulated_sliced_gradients, seed):
    library = emulated_sliced_gradients
    case, chain, num_groups, _ = random_call(seed)
    given = tensors_of(case, chain, num_groups)
    with library.on(seed=seed, detect_races=True), forced("hopper"):
        try:
            found = call(library.chain_backward, case, given, chain, num_groups)
        except RuntimeError as error:
            assert "cannot run this layer" in str(error)
            return
        assert library.races() == []
    exact = truth(case, given, chain, num_groups)
    check(found, exact, num_groups, ALLOWED[torch.float32], told=f"seed {seed}: {case}")
