"""How the weight gradient's operands are packed, on the CPU, thread by thread: 16-bit pixels in
pairs, and several images side by side.
"""

import pytest
import torch

from tests.emulated_tools import forced, needs_cuda_headers
from tests.gradient_tools import call, check, output_gradient
from tests.solution_tools import Case
from tests.sweeps import not_finite, swept

pytestmark = needs_cuda_headers
WEIGHT = (False, True, False)

# Rows of both tensors are aligned pairs of pixels.
PAIRS = {
    "strips": Case(in_channels=24, out_channels=40, size=(5, 70), kernel=(3, 5)),
    "runs": Case(batch=1, in_channels=8, out_channels=16, size=(70, 6), kernel=(3, 3)),
    "groups": Case(in_channels=144, out_channels=32, size=(3, 66), kernel=(3, 7), groups=2),
    "blocks": Case(in_channels=16, out_channels=136, size=(4, 64), kernel=(2, 5)),
    "dilated": Case(
        in_channels=8, out_channels=8, size=(9, 40), kernel=(3, 3), padding=(3, 2), dilation=(2, 5)
    ),
    "beyond": Case(batch=3, in_channels=8, out_channels=8, size=(2, 128), kernel=(1, 31)),
    "padded": Case(
        batch=3, in_channels=72, out_channels=8, size=(6, 52), kernel=(5, 5), padding=(2, 2)
    ),
}
# An image's row in less than half a segment of 64 pixels.
ABREAST = {
    "seven": Case(batch=9, in_channels=9, out_channels=16, size=(7, 7), padding=(1, 1)),
    "full": Case(batch=15, in_channels=5, out_channels=3, size=(2, 7), kernel=(1, 3)),  # 7 x 9 + 1
    "strided": Case(
        batch=5, in_channels=4, out_channels=24, size=(4, 15), kernel=(4, 4), stride=(2, 2)
    ),
    "pairs": Case(batch=4, in_channels=16, out_channels=8, size=(5, 14), padding=(2, 2)),
    "narrow": Case(batch=70, in_channels=3, out_channels=3, size=(2, 1), kernel=(2, 1)),
}


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", swept({**PAIRS, "abreast": ABREAST["pairs"]}, (0, 1, 4, 5)))
def test_pairs_of_16_bits(emulated_gradients, name, dtype):
    """The same bits as where an odd address keeps them from being read in pairs."""
    case = {**PAIRS, "abreast": ABREAST["pairs"]}[name]
    x, weight, _ = case.tensors(dtype)
    grad = output_gradient(case, dtype)
    odd_x, odd_grad = (
        torch.empty(t.numel() + 1, dtype=dtype)[1:].view(t.shape).copy_(t) for t in (x, grad)
    )
    with emulated_gradients.on(seed=1, detect_races=True), forced("hopper"):
        found = check(emulated_gradients.backward, case, grad, x, weight, True, WEIGHT)[1]
        wanted = call(emulated_gradients.backward, case, odd_grad, odd_x, weight, True, WEIGHT)[1]
        assert emulated_gradients.races() == []
    assert torch.equal(found, wanted)


@pytest.mark.parametrize(("of_x", "value"), not_finite([True, False]))
@pytest.mark.parametrize("name", swept([*PAIRS, *ABREAST], (0, 7)))
def test_non_finite_values_stay_where_their_products_are(emulated_gradients, name, of_x, value):
    case = {**PAIRS, **ABREAST}[name]
    x, weight, _ = case.tensors(torch.float16)
    grad = output_gradient(case, torch.float16)
    (x if of_x else grad)[1 % case.batch, 1, 0, 0] = value
    found = []
    for kernel in ("hopper", "plain"):
        with emulated_gradients.on(), forced(kernel):
            found.append(call(emulated_gradients.backward, case, grad, x, weight, True, WEIGHT)[1])
    assert torch.equal(found[0].isnan(), found[1].isnan())
    assert torch.equal(found[0].isfinite(), found[1].isfinite())


@pytest.mark.parametrize(
    ("kernel", "dtype", "allow_tf32"),
    swept(
        [
            ("hopper", torch.float32, True),
            ("hopper", torch.bfloat16, True),
            ("portable", torch.float32, True),
            ("portable", torch.float16, True),
            ("portable", torch.float32, False),
        ],
        (0, 4),
        names=3,
    ),
)
@pytest.mark.parametrize("name", ABREAST)
def test_images_side_by_side(emulated_gradients, name, kernel, dtype, allow_tf32):
    case = ABREAST[name]
    x, weight, _ = case.tensors(dtype)
    grad = output_gradient(case, dtype)
    with emulated_gradients.on(seed=2, detect_races=kernel == "hopper"), forced(kernel):
        check(emulated_gradients.backward, case, grad, x, weight, allow_tf32, WEIGHT)


def test_small_values_of_one_image_beside_large_ones(emulated_gradients):
    """What the guard asks of a row, it asks of all images in it: either answer is within bounds."""
    case = ABREAST["seven"]
    x, weight, _ = case.tensors()
    for size in (1e-12, 1e-30):
        mixed = x.clone()
        mixed[::2] *= size
        with emulated_gradients.on(), forced("hopper"):
            check(emulated_gradients.backward, case, output_gradient(case), mixed, weight, True)


def test_a_tensor_of_samples_far_apart(emulated_gradients):
    """Images side by side in a segment, not in memory."""
    case = ABREAST["pairs"]
    x, weight, _ = case.tensors()
    apart = x.new_zeros(case.batch, 3, *x.shape[1:])
    apart[:, 1] = x
    grad = output_gradient(case)
    grads = grad.new_zeros(case.batch, 2, *grad.shape[1:])
    grads[:, 0] = grad
    with emulated_gradients.on(), forced("hopper"):
        found = call(emulated_gradients.backward, case, grads[:, 0], apart[:, 1], weight, True)
        wanted = call(emulated_gradients.backward, case, grad, x, weight, True)
    assert all(torch.equal(a, b) for a, b in zip(found, wanted, strict=True))
