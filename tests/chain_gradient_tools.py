"""What the tests of gradients through a convolution and a chain behind it share."""

import math
import random

import torch
from torch.nn import functional

from tests.layer_errors import exact_conv
from tests.norm_gradient_tools import CHAINS, TENSOR_CHAINS, chain_vectors
from tests.solution_tools import Case

ALL = (True, True, True)
NAMES = ("x", "weight", "bias", "norm_weight", "norm_bias")


# Layers whose gradient is formed as it is packed: of one strip and of several, with pixels that
# strips share and without, of several classes, blocks and groups; of two columns' planes at once.
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
    "pairs": Case(
        in_channels=8,
        out_channels=64,
        size=(4, 70),
        kernel=(3, 3),
        stride=(2, 2),
        padding=(1, 1),
        output_padding=(1, 1),
    ),
    "pairs_of_blocks": Case(
        batch=1,
        in_channels=16,
        out_channels=256,
        size=(3, 33),
        kernel=(2, 4),
        stride=(1, 2),
        padding=(0, 1),
        groups=2,
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
# Of PACKED, those whose batch goes by in slices, with the convolution's output computed along.
STRIDE_ONE = ("plain", "whole", "strips", "rows", "dilated")
ALLOWED = {torch.float32: 2e-3, torch.float16: 4e-3, torch.bfloat16: 3e-2}


def num_groups_of(case: Case) -> int:
    return 4 if case.out_channels % 4 == 0 else 1


def tensors_of(case: Case, chain: int, num_groups: int, dtype=torch.float32, device="cpu") -> dict:
    """Of a call of `chain_backward`, by name; no norm_weight where nothing is normalised."""
    x, weight, bias = (t.to(device) for t in case.tensors(dtype))
    # Outputs of about 1: of larger ones steps like tanh amplify what rounding operands changes.
    fan = case.in_channels // case.groups * math.prod(case.kernel) / math.prod(case.stride)
    weight = weight / fan**0.5
    generator = torch.Generator().manual_seed(9)
    shape = (case.batch, case.out_channels, *case.output_size)
    norm_weight = torch.randn(case.out_channels, generator=generator).to(device, dtype)
    return {
        "grad": torch.randn(shape, generator=generator).to(device, dtype),
        "x": x,
        "weight": weight,
        "bias": bias,
        "norm_weight": norm_weight if num_groups else None,
        "vectors": chain_vectors(chain, case.out_channels, dtype, device),
    }


def call(
    chain_backward,
    case: Case,
    given: dict,
    chain: int,
    num_groups: int,
    allow_tf32: bool = True,
    needs=ALL,
    eps: float = 1e-5,
    value: torch.Tensor | None = None,
) -> tuple:
    """The operator's results: gradients of NAMES, then those of the chain's operands."""
    stride, padding, output_padding, dilation, groups = case.parameters
    pairs = (*stride, *padding, *output_padding, *dilation)
    vectors = *given["vectors"], *[None] * (4 - len(given["vectors"]))
    normed = num_groups > 0
    return chain_backward(
        *(given["grad"], given["x"], given["weight"], *pairs, groups, allow_tf32, *needs),
        *(given["bias"], given["norm_weight"], num_groups, eps, *vectors, normed, normed),
        *(chain, value),
    )


def without_tensors(chain_backward):
    """The operator of a library with TENSOR_CHAINS as those without them have it."""

    def run(*args):
        *found, of_vectors, of_tensors = chain_backward(*args, 0, 0)
        assert of_tensors.shape[0] == 0
        return *found, of_vectors[: sum(vector is not None for vector in args[20:24])]

    return run


def call_with_tensors(chain_backward, case: Case, given: dict, chain: int, wanted, needs=ALL):
    """Of the chain of that number in TENSOR_CHAINS: the operator's results, those of operands as a
    list, None where `wanted` has not the index of one of the output's shape.
    """
    kinds = TENSOR_CHAINS[chain][1]
    whole = [i for i, kind in enumerate(kinds) if kind == "T"]
    bits = [sum(1 << i for i in indices) for indices in (whole, wanted)]
    number = len(CHAINS) + chain

    def run(*args):
        return chain_backward(*args, *bits)

    *found, of_vectors, of_tensors = call(run, case, given, number, 0, needs=needs)
    tensors = iter(of_tensors)
    of_whole = {i: next(tensors) if i in wanted else None for i in whole}
    return found, [of_whole[i] if i in whole else of_vectors[i] for i in range(len(kinds))]


def tensors_with_operands(case: Case, chain: int, dtype=torch.float32, device="cpu") -> dict:
    """As tensors_of, for the chain of that number in TENSOR_CHAINS."""
    made = tensors_of(case, 0, 0, dtype, device)
    generator = torch.Generator().manual_seed(11)
    shapes = {"C": (case.out_channels,), "T": made["grad"].shape}
    made["vectors"] = [  # nothing near 0, by which some divide
        (torch.rand(shapes[kind], generator=generator) + 0.5).to(device, dtype)
        for kind in TENSOR_CHAINS[chain][1]
    ]
    return made


def truth_with_operands(case: Case, given: dict, chain: int) -> tuple[list, list]:
    """(gradients of x, weight and bias, those of the operands), in float64."""
    leaves = [given[name] for name in ("x", "weight", "bias")]
    leaves = [t.detach().double().requires_grad_() for t in (*leaves, *given["vectors"])]
    operands = [t if t.dim() == 4 else t.view(-1, 1, 1) for t in leaves[3:]]
    y = TENSOR_CHAINS[chain][2](exact_conv(case, *leaves[:3]), *operands)
    found = torch.autograd.grad(y, leaves, given["grad"].double())
    return list(found[:3]), list(found[3:])


def check_with_tensors(chain_backward, case: Case, chain: int, dtype, device="cpu") -> None:
    """Every gradient, with all of them wanted and with some."""
    given = tensors_with_operands(case, chain, dtype, device)
    exact, of_exact = truth_with_operands(case, given, chain)
    whole = [i for i, kind in enumerate(TENSOR_CHAINS[chain][1]) if kind == "T"]
    some = (ALL, whole), ((True, True, False), whole[-1:]), ((False, True, True), [])
    for needs, wanted in some:
        found, of_operands = call_with_tensors(chain_backward, case, given, chain, wanted, needs)
        pairs = list(zip(found[:3], exact, strict=True))
        pairs = [pair for pair, need in zip(pairs, needs, strict=True) if need]
        pairs += zip(of_operands, of_exact, strict=True)
        for got, right in pairs:
            if got is not None:
                off = float((got.double() - right).norm())
                assert off <= ALLOWED[dtype] * float(right.norm()), (case, needs, off)
        assert [i for i in whole if of_operands[i] is not None] == wanted


def truth(case: Case, given: dict, chain: int, num_groups: int, eps: float = 1e-5) -> tuple:
    """(gradients of NAMES, those of the chain's operands), in float64."""
    leaves = [given[name] for name in ("x", "weight", "bias")]
    affine = [torch.ones(case.out_channels), torch.zeros(case.out_channels)]
    if given["norm_weight"] is not None:
        affine[0] = given["norm_weight"]
    affine = [t.to(given["x"].device) for t in affine]
    leaves = [t.detach().double().requires_grad_() for t in (*leaves, *affine, *given["vectors"])]
    x, weight, bias, norm_weight, norm_bias, *vectors = leaves
    value = exact_conv(case, x, weight, bias)
    y = CHAINS[chain][1](value, *(vector.view(-1, 1, 1) for vector in vectors))
    if num_groups:
        y = functional.group_norm(y, num_groups, norm_weight, norm_bias, eps)
    found = torch.autograd.grad(y, leaves, given["grad"].double(), allow_unused=True)
    return found[:5], found[5:]


def given_value(case: Case, given: dict) -> tuple[torch.Tensor, tuple]:
    """(a value of the output's shape, what `truth` says of GELU, chain 1, behind that in the
    place of the convolution's output).
    """
    grad = given["grad"]
    generator = torch.Generator().manual_seed(2)
    value = torch.randn(grad.shape, generator=generator).to(grad.device, grad.dtype)
    behind = value.double().requires_grad_()
    (slope,) = torch.autograd.grad(functional.gelu(behind).sum(), behind)
    exact, _ = truth(case, {**given, "grad": grad * slope}, 0, 0)
    return value, (exact, ())


def check(
    found: tuple, exact: tuple, num_groups: int, allowed: float, needs=ALL, told: str = ""
) -> None:
    """Every gradient within `allowed` of its size, those that nobody wants empty. Behind GroupNorm
    the bias's, and those of operands that are added, are sums of numbers that cancel: there of the
    size of the weight's.
    """
    asked = (*needs, num_groups > 0, num_groups > 0)
    sizes = [None if t is None else float(t.norm()) for t in exact[0]]
    for name, got, wanted, is_asked, size in zip(
        NAMES, found[:5], exact[0], asked, sizes, strict=True
    ):
        if not is_asked:
            assert got.shape == (0,), name
            continue
        size = max(size, sizes[1]) if name == "bias" and num_groups else size
        error = float((got.double() - wanted).norm())
        assert error <= allowed * size, (told, name, error / size)
    assert found[5].shape[0] == len(exact[1])
    for got, wanted in zip(found[5], exact[1], strict=True):
        size = max(float(wanted.norm()), sizes[1] if num_groups else 0.0)
        assert float((got.double() - wanted).norm()) <= allowed * size, told


def random_axis(draw: random.Random, least: int, most: int) -> tuple[int, int, int, int, int, int]:
    """(size, kernel, stride, padding, output padding, dilation), with an output."""
    stride, dilation = draw.choice((1, 1, 2, 3)), draw.choice((1, 1, 1, 1, 2))
    kernel = draw.randint(draw.choice((1, stride, stride)), 4)
    size = draw.randint(least, most)
    reach = dilation * (kernel - 1)
    padding = draw.randint(0, min(2, ((size - 1) * stride + reach) // 2))
    more = draw.choice((0, 0, 0, draw.randrange(max(stride, dilation))))
    return size, kernel, stride, padding, more, dilation


def case_of(axes: list[tuple], **others) -> Case:
    """Of rows and columns as random_axis has them, and a layer's other numbers."""
    names = ("size", "kernel", "stride", "padding", "output_padding", "dilation")
    return Case(**dict(zip(names, zip(*axes, strict=True), strict=True)), **others)


def random_call(seed: int) -> tuple[Case, int, int, torch.dtype]:
    """(a layer, two in five of which have the gradient formed as it is packed; the number of the
    chain behind it; GroupNorm's groups or 0; the dtype), the same for a seed everywhere.
    """
    draw = random.Random(f"chain gradients {seed}")
    groups = draw.choice((1, 1, 1, 2, 3))
    least = draw.choice((1, 33))
    axes = [random_axis(draw, 1, 6), random_axis(draw, least, 100)]
    case = case_of(
        axes,
        batch=draw.choice((1, 1, 2)),
        in_channels=groups * draw.randint(1, 24),
        out_channels=groups * draw.choice((8, 16, 24, 40, 72, 7)),
        groups=groups,
    )
    num_groups = draw.choice((0, 0, 1, case.out_channels))
    return case, draw.randrange(len(CHAINS)), num_groups, draw.choice(list(ALLOWED))


def random_call_of_pairs(seed: int) -> tuple[Case, int, int, torch.dtype]:
    """As random_call, of layers whose columns are two apart and whose channels fill blocks."""
    draw = random.Random(f"pairs of planes {seed}")
    groups = draw.choice((1, 1, 1, 2))
    kernel, size = draw.randint(2, 5), draw.randint(33, 90)
    columns = size, kernel, 2, draw.randint(0, min(2, kernel - 1)), draw.randint(0, 1), 1
    case = case_of(
        [random_axis(draw, 1, 5), columns],
        batch=draw.choice((1, 1, 2)),
        in_channels=groups * draw.randint(1, 24),
        out_channels=groups * draw.choice((64, 64, 128)),
        groups=groups,
    )
    num_groups = draw.choice((0, 0, 1, case.out_channels // 4))
    return case, draw.randrange(len(CHAINS)), num_groups, draw.choice(list(ALLOWED))
