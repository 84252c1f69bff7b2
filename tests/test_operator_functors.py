"""The functors of the element-wise operators on the CPU, every one against PyTorch in each dtype.
On a GPU: tests/test_gpu_elementwise.py.
"""

import pytest
import torch

from tests.operator_cases import CASES, OPERAND, dense_sample, units
from tests.operator_library import SOURCES, VECTORS, Functors
from tests.sweeps import swept


@pytest.fixture(scope="module")
def functors(tmp_path_factory):
    folder = tmp_path_factory.mktemp("functors")
    chains = [[case.step] for case in CASES]
    return {source: Functors(source, chains, folder) for source in SOURCES}


def exact(case, x: torch.Tensor, operand: float = OPERAND) -> torch.Tensor:
    """In float64; GELU without the cancellation of 1 + erf, or of 1 + tanh."""
    x = x.double()
    if case.name == "gelu()":
        return x * 0.5 * torch.special.erfc(-x / 2**0.5)
    if case.name.startswith("gelu"):
        return x * torch.sigmoid((8 / torch.pi) ** 0.5 * (x + 0.044715 * x**3))
    return case.function(x, torch.tensor(operand, dtype=torch.float64))


SAMPLE = dense_sample()
OTHERS = [case for case in CASES if not case.name.startswith("gelu")]


@pytest.mark.parametrize("case", swept(OTHERS, range(0, len(OTHERS), 3)), ids=str)
def test_fp32_within_2_units_in_the_last_place(functors, case):
    """Of PyTorch's result, or of the exact one where PyTorch's is further off. NaN and Inf as
    PyTorch has them.
    """
    pytorch = case.function(SAMPLE, torch.tensor(OPERAND))
    right = exact(case, SAMPLE)
    for vectors in VECTORS:
        ours = functors["cpu"](CASES.index(case), SAMPLE, [OPERAND], vectors)
        off = torch.minimum(units(ours, pytorch.double()), units(ours, right))
        worst = int(off.argmax())
        assert off[worst] <= 2, (SAMPLE[worst], ours[worst], pytorch[worst], right[worst])
        assert torch.equal(ours.isnan(), pytorch.isnan())
        assert torch.equal(ours.isinf(), pytorch.isinf())


@pytest.mark.parametrize("case", [c for c in CASES if c.name.startswith("gelu")], ids=str)
def test_gelu_in_fp32_at_most_2_units_worse_than_pytorch(functors, case):
    """In each interval of 1/8: the largest error against PyTorch's, whose 1 + erf cancels, too."""
    for low in torch.arange(-6, 6, 0.125).tolist():
        x = torch.linspace(low, low + 0.125, 5001)
        right = exact(case, x)
        pytorch = units(case.function(x, None), right).max()
        for vectors in VECTORS:
            ours = functors["cpu"](CASES.index(case), x, [OPERAND], vectors)
            assert units(ours, right).max() <= pytorch + 2, (low, pytorch)
    special = torch.tensor([float("inf"), -float("inf"), float("nan"), 0.0, 3.4e38, -3.4e38])
    ours = functors["cpu"](CASES.index(case), special, [1.0])
    # PyTorch's fp32 function is the machine's: on some, GELU(Inf) is NaN. Its fp64 one is not.
    pytorch = case.function(special, None), case.function(special.double(), None).float()
    same = [(ours == wanted) | (ours.isnan() & wanted.isnan()) for wanted in pytorch]
    assert bool((same[0] | same[1]).all()), (ours, pytorch)


@pytest.mark.parametrize("case", swept(OTHERS, range(0, len(OTHERS), 3)), ids=str)
def test_gpu_formulas_with_the_platforms_functions(functors, case):
    """What a GPU computes in fp32, on the host, whose functions are as exact as CUDA's: no more
    than 2 units worse than PyTorch's worst in each quarter of a binade.
    """
    pytorch = case.function(SAMPLE, torch.tensor(OPERAND))
    right = exact(case, SAMPLE)
    ours = functors["platform"](CASES.index(case), SAMPLE, [OPERAND])
    assert torch.equal(ours.isnan(), pytorch.isnan())
    assert torch.equal(ours.isinf(), pytorch.isinf())
    bins = (SAMPLE.view(torch.int32) >> 21).long() + 2**10
    theirs = torch.minimum(units(ours, pytorch.double()), units(ours, right))
    most = torch.zeros(2**11, dtype=torch.float64)
    limit = most.scatter_reduce(0, bins, units(pytorch, right), "amax")
    assert (theirs <= 2 + limit[bins]).all()


@pytest.mark.parametrize("case", CASES, ids=str)
def test_fp64(functors, case):
    """Within 8 units in the last place of PyTorch's."""
    x = SAMPLE.double()
    operand = torch.tensor(OPERAND, dtype=torch.float64)
    wanted = case.function(x, operand)
    for source in SOURCES:
        ours = functors[source](CASES.index(case), x, [OPERAND])
        # GELU's 1 + erf and 1 + tanh cancel: as much as 1 has digits.
        slack = x.abs() * 2.0**-52 if case.name.startswith("gelu") else 0.0
        good = (ours - wanted).abs() <= 8 * 2.0**-52 * wanted.abs() + slack + 1e-300
        good |= (ours == wanted) | (ours.isnan() & wanted.isnan())
        assert good.all(), (x[~good][0], ours[~good][0], wanted[~good][0])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_16_bits(functors, case, dtype):
    """Every number there is: one unit from the exact result or from PyTorch's, which rounds between
    operators where it has several.
    """
    x = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(dtype)
    operand = torch.tensor(OPERAND, dtype=dtype)
    pytorch = case.function(x, operand).double()
    right = exact(case, x, operand.item()).to(dtype).double()
    ours = functors["cpu"](CASES.index(case), x, [operand.item()]).double()
    info = torch.finfo(dtype)
    good = torch.zeros(x.numel(), dtype=torch.bool)
    for wanted in (right, pytorch):
        unit = info.eps * torch.exp2(torch.floor(torch.log2(wanted.abs().clamp_min(info.tiny))))
        good |= (ours - wanted).abs() <= unit
        good |= (ours == wanted) | (ours.isnan() & wanted.isnan())
    if case.name == "gelu()":  # 1 + erf cancels, as in PyTorch
        good |= (ours - right).abs() <= 2.0**-23 * x.double().abs()
    assert good.all(), (x[~good][0], ours[~good][0], pytorch[~good][0], right[~good][0])
