"""Both gradients from one packing of the output's gradient, and kernels of one tap, which pack what
they multiply: on the CPU, thread by thread.
"""

import pytest
import torch

from tests.emulated_tools import forced, needs_cuda_headers
from tests.gradient_tools import DISTRIBUTIONS, call, check, output_gradient
from tests.solution_tools import Case
from tests.sweeps import not_finite, swept

pytestmark = needs_cuda_headers
BOTH, X, WEIGHT = (True, True, False), (True, False, False), (False, True, False)

CASES = {
    "plain": Case(in_channels=40, out_channels=72, size=(6, 20), kernel=(3, 3), padding=(1, 1)),
    "strided": Case(in_channels=24, out_channels=20, size=(7, 21), kernel=(3, 3), stride=(2, 2)),
    "rgb": Case(in_channels=64, out_channels=3, size=(4, 40), kernel=(4, 4), stride=(2, 2)),
    "thirds": Case(
        in_channels=8, out_channels=16, size=(5, 33), kernel=(5, 5), stride=(3, 3), padding=(1, 1)
    ),
    "groups": Case(
        in_channels=32, out_channels=48, size=(4, 36), kernel=(4, 4), stride=(2, 1), groups=2
    ),
    "strips": Case(batch=1, in_channels=16, out_channels=16, size=(3, 150), kernel=(2, 5)),
    "dilated": Case(
        in_channels=16, out_channels=8, size=(5, 70), kernel=(3, 3), stride=(2, 2), dilation=(2, 3)
    ),
    "abreast": Case(
        batch=9, in_channels=80, out_channels=24, size=(7, 7), kernel=(3, 3), padding=(1, 1)
    ),
    "narrow": Case(
        batch=5, in_channels=8, out_channels=8, size=(3, 5), kernel=(2, 2), stride=(2, 2)
    ),
}
# Rows of aligned pairs that fill segments of 64 pixels, one or two blocks of channels; of g enough
# that no pixel has small values alone, which lose bits beside large ones (docs/precision.md).
ONE_TAP = {
    "1x1": Case(in_channels=40, out_channels=24, size=(5, 64), kernel=(1, 1)),
    "1x2": Case(batch=3, in_channels=64, out_channels=128, size=(3, 128), kernel=(1, 1)),
    "2x1": Case(in_channels=72, out_channels=56, size=(4, 60), kernel=(1, 1), stride=(2, 1)),
    "2x2": Case(batch=1, in_channels=100, out_channels=66, size=(66, 64), kernel=(1, 1)),
    "two": Case(in_channels=48, out_channels=96, size=(3, 128), kernel=(1, 1), groups=2),
    "padded": Case(in_channels=8, out_channels=48, size=(6, 128), kernel=(1, 1), padding=(1, 2)),
}
# What has its own way to a number: absent taps, a third plane, images side by side, blocks, groups.
NUMBERS = ("strided", "thirds", "abreast", "1x1", "1x2", "2x1", "two")


@pytest.mark.parametrize("name", CASES)
def test_one_packing_for_both(emulated_gradients, name):
    """Right, in fewer launches than one by one; and the weight's gradient has the same bits."""
    case = CASES[name]
    x, weight, _ = case.tensors()
    grad, launches = output_gradient(case), {}
    with emulated_gradients.on(seed=3, detect_races=True), forced("hopper"):
        _, found, _ = check(emulated_gradients.backward, case, grad, x, weight, True, BOTH)
        launches[BOTH] = emulated_gradients.launches()
        assert emulated_gradients.races() == []
    for needs in (X, WEIGHT):
        with emulated_gradients.on(), forced("hopper"):
            alone = call(emulated_gradients.backward, case, grad, x, weight, True, needs)
            launches[needs] = emulated_gradients.launches()
    assert torch.equal(found, alone[1])
    assert launches[BOTH] < launches[X] + launches[WEIGHT]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", swept(CASES, ("rgb", "groups").__contains__))
def test_16_bits(emulated_gradients, name, dtype):
    case = CASES[name]
    x, weight, _ = case.tensors(dtype)
    with emulated_gradients.on(seed=4, detect_races=True), forced("hopper"):
        check(emulated_gradients.backward, case, output_gradient(case, dtype), x, weight, True)
        assert emulated_gradients.races() == []


@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
@pytest.mark.parametrize("name", swept(NUMBERS, ("strided", "1x2").__contains__))
def test_magnitudes(emulated_gradients, name, distribution):
    case = {**CASES, **ONE_TAP}[name]
    x, weight, _ = case.tensors()
    grad = DISTRIBUTIONS[distribution](output_gradient(case))
    with emulated_gradients.on(), forced("hopper"):
        check(emulated_gradients.backward, case, grad, x, weight, True)


@pytest.mark.parametrize(("of_x", "value"), not_finite([True, False]))
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize("name", swept(NUMBERS, ("strided", "1x1").__contains__))
def test_non_finite_values_stay_where_their_products_are(
    emulated_gradients, name, dtype, of_x, value
):
    case = {**CASES, **ONE_TAP}[name]
    x, weight, _ = case.tensors(dtype)
    grad = output_gradient(case, dtype)
    (x if of_x else grad)[1 % case.batch, 1, 2, 1] = value
    found = []
    for kernel in ("hopper", "plain"):
        with emulated_gradients.on(), forced(kernel):
            found.append(call(emulated_gradients.backward, case, grad, x, weight, True, BOTH))
    for got, wanted in zip(found[0][:2], found[1][:2], strict=True):
        assert torch.equal(got.isnan(), wanted.isnan())
        assert torch.equal(got.isfinite(), wanted.isfinite())


@pytest.mark.parametrize("needs", [BOTH, WEIGHT], ids=["both", "weight"])
@pytest.mark.parametrize("name", ONE_TAP)
def test_one_tap(emulated_gradients, name, needs):
    """Right, and the same as what is packed before: where an address is odd, rows have no pairs."""
    case = ONE_TAP[name]
    x, weight, _ = case.tensors()
    grad = output_gradient(case)
    odd_x = torch.empty(x.numel() + 1)[1:].view(x.shape).copy_(x)
    with emulated_gradients.on(seed=5, detect_races=True), forced("hopper"):
        found = check(emulated_gradients.backward, case, grad, x, weight, True, needs)
        launches = emulated_gradients.launches()
        assert emulated_gradients.races() == []
    with emulated_gradients.on(), forced("hopper"):
        check(emulated_gradients.backward, case, grad, odd_x, weight, True, needs)
        assert launches < emulated_gradients.launches()
    with emulated_gradients.on(seed=6), forced("hopper"):
        again = call(emulated_gradients.backward, case, grad, x, weight, True, needs)
    assert all(torch.equal(a, b) for a, b in zip(found, again, strict=True))
