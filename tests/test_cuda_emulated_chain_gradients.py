"""Gradients through a convolution, a chain of element-wise steps and GroupNorm by one operator,
which forms the output's gradient as it packs it: on the CPU, thread by thread.
"""

import pytest
import torch

from tests.chain_gradient_tools import ALL, call, check, tensors_of, truth
from tests.emulated_tools import forced, needs_cuda_headers
from tests.norm_gradient_tools import CHAINS
from tests.solution_tools import Case
from tests.sweeps import swept

pytestmark = needs_cuda_headers
_GELU = 1  # its number in the tests' library

# Layers whose gradient is formed as it is packed: of pairs of pixels and not, with pixels behind
# the first 64 of a segment and without, of several strips, classes, blocks and groups.
PACKED = {
    "plain": Case(in_channels=40, out_channels=72, size=(6, 40), kernel=(3, 3), padding=(1, 1)),
    "whole": Case(in_channels=16, out_channels=24, size=(5, 64), kernel=(3, 3)),
    "strips": Case(batch=1, in_channels=16, out_channels=16, size=(3, 150), kernel=(2, 5)),
    "rows": Case(in_channels=8, out_channels=8, size=(19, 42), kernel=(3, 1), padding=(1, 0)),
    "strided": Case(
        in_channels=24,
        out_channels=24,
        size=(7, 42),
        kernel=(3, 3),
        stride=(2, 2),
        padding=(1, 1),
        output_padding=(1, 1),
    ),
    "even": Case(in_channels=64, out_channels=16, size=(4, 40), kernel=(4, 4), stride=(2, 2)),
    "groups": Case(
        in_channels=32, out_channels=48, size=(4, 36), kernel=(4, 4), stride=(2, 1), groups=2
    ),
    "dilated": Case(in_channels=16, out_channels=8, size=(5, 70), kernel=(3, 3), dilation=(2, 3)),
}
# Those where it is formed first: outputs that no tap reaches, images side by side, classes that
# share eight channels, one tap.
FORMED_FIRST = {
    "gaps": Case(
        in_channels=16,
        out_channels=8,
        size=(5, 33),
        kernel=(2, 2),
        stride=(3, 3),
    ),
    "abreast": Case(
        batch=9, in_channels=80, out_channels=24, size=(7, 7), kernel=(3, 3), padding=(1, 1)
    ),
    "twelve": Case(in_channels=8, out_channels=12, size=(5, 33), kernel=(4, 4), stride=(2, 2)),
    "1x1": Case(in_channels=40, out_channels=24, size=(5, 64), kernel=(1, 1)),
}
ALLOWED = {torch.float32: 2e-3, torch.float16: 4e-3, torch.bfloat16: 3e-2}


def num_groups_of(case: Case) -> int:
    return 4 if case.out_channels % 4 == 0 else 1


@pytest.mark.parametrize("normed", [True, False], ids=["norm", "chain"])
@pytest.mark.parametrize("chain", swept(range(len(CHAINS)), (1, 2).__contains__))
@pytest.mark.parametrize("name", [*PACKED, *FORMED_FIRST])
def test_right(emulated_chained_gradients, name, chain, normed):
    """And what is formed as it is packed (one more launch for x's pixels, two for what asks whether
    the gradient is wanted after all) the same as when it is formed first, but for rounding.
    """
    case = {**PACKED, **FORMED_FIRST}[name]
    num_groups = num_groups_of(case) if normed else 0
    given = tensors_of(case, chain, num_groups)
    library, launches, found = emulated_chained_gradients, {}, {}
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
