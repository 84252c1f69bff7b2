"""GroupNorm, InstanceNorm and BatchNorm with steps behind them, and BatchNorm with each plane's
mean taken away, by kernels of ours on a Hopper GPU: each beside PyTorch's in float64, and in
training steps of models.
"""

import pytest
import torch

from tests.builds_ahead import VOLUME_ONLY
from tests.norm_tail_tools import (
    BATCH_RELU,
    CASES,
    CENTRED,
    CENTRED_CASES,
    NormTail,
    NormTailCase,
    random_case,
)
from tests.sanitizer_cases import CENTRED as CENTRED_NORMS
from tests.sanitizer_cases import GROUPED

pytestmark = pytest.mark.gpu
# The first tails of references, with the steps as the generator wrote them.
OWN = {
    GROUPED: NormTail("kGroupNorm", [], lambda v: v * torch.sigmoid(v)),
    VOLUME_ONLY: NormTail("kBatchNorm", [], lambda v: torch.nn.functional.leaky_relu(v, 0.2)),
    CENTRED_NORMS: NormTail("kCentredBatchNorm", [], lambda v: v),
}


class Library:
    """The operators of a namespace, as plain functions."""

    def __init__(self, namespace):
        self._namespace = namespace

    def __getattr__(self, name):
        if not hasattr(self._namespace, name):
            raise AttributeError(name)
        return getattr(self._namespace, name).default


def libraries(solution):
    return tuple(Library(solution[f"_tail{which}_library"]()) for which in ("", "_gradient"))


def checked(shelf, case):
    """Number 0 of its solution, whatever the steps of the case's own tail are."""
    name, own = next((n, own) for n, own in OWN.items() if own.kind == case.tail.kind)
    values = {field: getattr(case, field) for field in case.__dataclass_fields__}
    made = NormTailCase(**(values | {"place": 0, "tails": (own,)}))
    return made.check(*libraries(shelf[name].solution), 0, "cuda")


LARGE = [
    NormTailCase(0, (4, 32, 24, 64, 64), 8),
    *(NormTailCase(0, (4, 32, 24, 64, 64), 8, dtype) for dtype in (torch.float16, torch.bfloat16)),
    NormTailCase(0, (256, 64, 16, 16), 16),  # a warp for each channel
    NormTailCase(0, (3, 7, 451, 449), 7, mean=3.0, shift=(1, 2)),
    *(
        case
        for place in (BATCH_RELU, CENTRED)
        for case in (
            NormTailCase(place, (16, 64, 96, 96)),
            NormTailCase(place, (5, 6, 31, 63, 63), mean=3.0, momentum=None),
            NormTailCase(place, (9, 4, 70001), affine=False, tracks=False),
        )
    ),
    NormTailCase(CENTRED, (16, 32, 31, 63, 63), mean=1000.0),
    NormTailCase(CENTRED, (16, 32, 31, 31, 31), spread=100.0),
    NormTailCase(CENTRED, (2, 3, 1 << 21), spread=1.0),
]


@pytest.mark.parametrize("case", [*CASES, *CENTRED_CASES, *LARGE], ids=str)
def test_right(shelf, case):
    checked(shelf, case)


@pytest.mark.parametrize("first", range(0, 400, 100))
def test_random_cases(shelf, first):
    for seed in range(first, first + 100):
        checked(shelf, random_case(seed))


@pytest.mark.parametrize("case", [LARGE[0], LARGE[4], LARGE[6], LARGE[-1]], ids=str)
def test_two_runs_give_the_same_bits(shelf, case):
    found = [checked(shelf, case) for _ in range(2)]
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


@pytest.mark.parametrize(
    ("name", "shapes", "least"),
    [
        (GROUPED, [(2, 16, 16, 62, 31), (2, 8, 32, 64, 63)], "_MANY_NORMED"),
        (VOLUME_ONLY, [(8, 4, 32, 64, 64)], "_MANY_VALUES"),
        ("instance_normed", [(2, 8, 300, 301)], "_MANY_NORMED"),
        (CENTRED_NORMS, [(8, 4, 16, 32, 32)], "_MANY_VALUES"),
    ],
)
def test_a_training_step_calls_them(shelf, name, shapes, least, monkeypatch):
    """Its output, gradients and statistics beside eager's in float64; and captured in a graph."""
    if torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("tails are ours on Hopper alone")
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    solution = shelf[name].solution
    reference, ours = (model.cuda() for model in shelf[name].pair())
    reference.double()
    given = [torch.rand(shape, device="cuda", requires_grad=True) for shape in shapes]
    exact = [t.detach().double().requires_grad_() for t in given]
    profile = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA])
    with profile:
        y = ours(*given)
        grad = torch.randn_like(y)
        found = torch.autograd.grad(y, [*given, *ours.parameters()], grad)
        torch.cuda.synchronize()
    exact_y = reference(*exact)
    assert exact_y.numel() >= solution[least]
    wanted = torch.autograd.grad(exact_y, [*exact, *reference.parameters()], grad.double())
    for mine, theirs in zip((y, *found), (exact_y, *wanted), strict=True):
        # What is nothing but for float64's roundings is compared with nothing.
        assert float((mine.double() - theirs).norm()) <= 1e-2 * float(theirs.norm()) + 1e-9
    for mine, theirs in zip(ours.buffers(), reference.buffers(), strict=True):
        torch.testing.assert_close(mine.double(), theirs.double(), rtol=1e-5, atol=1e-6)
    seen = " ".join({event.name for event in profile.events()})
    if "tconv" in seen:
        assert "StepsBehind" in seen and "NormTailInner" in seen
    with torch.no_grad():
        eager = ours(*given)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            captured = ours(*given)
        graph.replay()
    torch.testing.assert_close(captured, eager, rtol=1e-5, atol=1e-5)
