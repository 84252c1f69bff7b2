"""Operands of the output's shape in the chain of a transposed convolution: which are taken, results
and gradients on a CPU for random layers of one to three dimensions, what is refused.
"""

import pytest
import torch

from generator.emit import generate
from generator.explain import explained
from tests.random_chains import random_reference, with_tensors
from tests.solution_tools import REFERENCES, generated, load_text, program_of
from tests.sweeps import swept
from tests.tensor_operand_tools import (
    MADE,
    SHARED,
    Given,
    called,
    given,
    shared_gradients,
    shared_truth,
    wrong,
)

LAYERS = 40


@pytest.fixture(scope="module")
def solution(shelf) -> dict:
    return shelf["residual_blocks"].solution


def results(solution: dict, of: Given) -> list:
    """The result and the gradients of the leaves."""
    y = called(solution, of)
    return [y, *torch.autograd.grad(y, of.leaves, of.grad)]


@pytest.mark.parametrize("dimensions", MADE)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
def test_random_layers(solution, dtype, dimensions):
    told, computed = [], 0
    for seed in range(LAYERS):
        of = given(MADE[dimensions](seed), dtype)
        if of is None:
            continue
        told += [f"{of.layer}: {what}" for what in wrong(of, results(solution, of))]
        computed += 1
    assert told == [] and computed > LAYERS / 2


def test_gradients_of_gradients(solution):
    of = given(MADE[2](4), torch.float64)
    names = ("x", "gate", "skip")
    leaves = [t for name, t in zip(of.names, of.leaves, strict=True) if name in names]

    def result(*tensors):
        operands = [*of.operands]
        for place, tensor in zip((0, 3, 4), tensors, strict=True):
            operands[place] = tensor
        return called(solution, Given(of.layer, operands, of.grad))

    assert torch.autograd.gradcheck(result, leaves)
    assert torch.autograd.gradgradcheck(result, leaves)


@pytest.mark.parametrize("again", [False, True], ids=["gradients", "of gradients"])
@pytest.mark.parametrize("how", SHARED)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("dimensions", MADE)
def test_operands_that_share(solution, dimensions, dtype, how, again):
    """One tensor in two places, or one that is computed from others: each place has its own part
    of the gradient, once.
    """
    told, computed = [], 0
    for seed in range(12):
        of = given(MADE[dimensions](seed), dtype)
        if of is None:
            continue

        def result(operands, layer=of.layer, grad=of.grad):
            return called(solution, Given(layer, list(operands), grad))

        found, exact = shared_gradients(result, of, how, again), shared_truth(of, how, again)
        largest = max(float(true.norm()) for true in exact)
        for index, (got, true) in enumerate(zip(found, exact, strict=True)):
            off, size = float((got.double() - true).norm()), float(true.norm())
            if not off <= (1e-10 if dtype is torch.float64 else 1e-4) * (size + 0.01 * largest):
                told.append(f"{of.layer}: {index}: {off} of {size}")
        computed += 1
    assert told == [] and computed > 6


@pytest.mark.parametrize("left_out", ["gate", "skip"])
def test_an_operand_without_gradient(solution, left_out):
    of = given(MADE[2](4))
    place = of.names.index(left_out)
    of.leaves[place].requires_grad_(False)
    y = called(solution, of)
    leaves = [t for t in of.leaves if t.requires_grad]
    found = list(torch.autograd.grad(y, leaves, of.grad))
    found.insert(place, None)
    of.leaves[place].requires_grad_(True)
    assert wrong(of, [y, *found]) == []


BAD = [
    ((2, 3, 4), r"must have the output's shape \(.*\), got \(2, 3, 4\)"),
    ((), r"must have the output's shape"),
    ((1, 16, 1, 1), r"must have the output's shape"),
]


@pytest.mark.parametrize(("shape", "message"), BAD)
def test_another_shape_is_refused(solution, shape, message):
    of = given(next(case for case in map(MADE[2], range(99)) if case.batch == 2))
    operands = [*of.operands]
    operands[3] = torch.zeros(shape)
    with pytest.raises(RuntimeError, match=message):
        called(solution, Given(of.layer, operands, of.grad))


def test_another_dtype_is_refused(solution):
    of = given(next(case for case in map(MADE[2], range(99)) if case.batch == 2))
    operands = [*of.operands]
    operands[4] = operands[4].double()
    with pytest.raises(RuntimeError, match="element-wise operand must have the input's dtype"):
        called(solution, Given(of.layer, operands, of.grad))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_autocast(solution, dtype):
    """Beside a 16-bit convolution operands in fp32 make the result fp32, as PyTorch's do."""
    of = given(next(case for case in map(MADE[2], range(99)) if case.batch == 2))
    operands = [*of.operands]
    operands[3] = operands[3].detach().to(dtype)
    operands[4], operands[5] = operands[4].detach().to(dtype), operands[5].detach().to(dtype)
    with torch.autocast("cpu", torch.bfloat16):
        y = called(solution, Given(of.layer, operands, of.grad))
    assert y.dtype == dtype
    assert wrong(of, [y.float(), *[None] * len(of.leaves)], torch.bfloat16) == []


@pytest.mark.parametrize("name", swept(["residual_sums", "residual_blocks"], (0,)))
def test_compiled(shelf, name):
    """The whole model as one graph, with its gradients, in training mode."""
    reference = shelf.reference(name)
    torch.manual_seed(0)
    model = reference["Model"]().double()
    new = shelf[name].solution["ModelNew"]().double()
    new.load_state_dict(model.state_dict())
    torch._dynamo.reset()
    found = []
    for call in (model, torch.compile(new, fullgraph=True, backend="aot_eager")):
        torch.manual_seed(1)
        inputs = [x.double().requires_grad_() for x in reference["get_inputs"]()]
        out = call(*inputs)
        out = out if isinstance(out, tuple) else (out,)
        module = model if call is model else new
        leaves = [*inputs, *module.parameters()]
        grads = torch.autograd.grad(sum(y.square().sum() for y in out), leaves)
        found.append([*out, *grads])
    torch.testing.assert_close(*found)


def test_operator_as_pytorch_wants_it(solution):
    of = given(MADE[2](4), torch.float64)
    x, weight, bias, *more = of.operands
    operands = x, weight, bias, *(list(values) for values in of.layer.parameters[:4])
    torch.library.opcheck(solution["_traced"], (*operands, of.layer.groups, *more))


def test_what_backward_reads_is_kept(shelf):
    """Behind relu(v + tensor) forward keeps the result alone, as PyTorch does."""
    solution = shelf["residual_sums"].solution
    x, skip = (torch.randn(2, 6, 5, 7, requires_grad=True) for _ in range(2))
    weight = torch.randn(6, 6, 3, 3, requires_grad=True)
    (number,) = (
        n for n in range(5) if len(solution[f"_CHAIN_{n}"]) == 2 and solution[f"_TENSORS_{n}"]
    )
    y = solution[f"_operator_{number}"](x, weight, None, 1, 1, 0, 1, 1, skip)
    kept = [t for t in y.grad_fn.saved_tensors if t is not None]
    assert not any(t is skip for t in kept)
    assert {t.data_ptr() for t in kept} <= {t.data_ptr() for t in (x, weight, y)}


@pytest.mark.parametrize("name", swept(["residual_blocks", "residual_sums"], (0,)))
def test_without_the_half_for_a_cpu(shelf, name, tmp_path):
    """--device cuda: the library builds, and refuses tensors on a CPU."""
    text = generate(REFERENCES / f"{name}.py", tmp_path / "own.py", cuda_alone=True)
    model = load_text(text)["ModelNew"]()
    with pytest.raises(RuntimeError, match="on a CPU.*--device cuda; allowed are CUDA tensors"):
        model(*shelf.reference(name)["get_inputs"]())


TAKEN = {  # lines of forward, and what is told of its last operator
    "sum": ("return self.conv(x) + s", "in the kernel"),
    "sum on the left": ("return s - self.conv(x)", "in the kernel"),
    "in place": ("y = self.conv(x)\ny += s\nreturn y", "in the kernel"),
    "late": ("y = self.conv(x)\nreturn y * s.exp()", "in the kernel"),
    "another call": ("return torch.maximum(self.conv(x), self.conv(x))", "in kernel"),
    "beside branches": ("y = self.conv(x)\nreturn y * y.sigmoid() + s", "in the kernel"),
    "within branches": ("y = self.conv(x)\nreturn (y + s) * (y * s)", "in the kernel"),
    "into the operand": (
        "s2 = s * 1\ns2 += self.conv(x)\nreturn s2",
        "left, it writes to its oper",
    ),
    "broadcast": ("return self.conv(x) + s[:1]", "left, its operand is no para"),
    "of images": ("return self.conv(x) + s.mean((2, 3), True)", "left, its operand is no param"),
    "another dtype": (
        "return self.conv(x) + s.double()",
        "left, its operand is no parameter or buffer",
    ),
    "twice": ("y = self.conv(x)\nreturn (y + s) / (y.mean() + 2)", "left, "),
    "written between": (
        "y = self.conv(x)\ns2 = s * 1\ns2.mul_(2)\nreturn y + s2",
        "left, mul_ writes to a tensor in between",
    ),
}
REFERENCE = """
import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.ConvTranspose2d(4, 6, 3, padding=1)

    def forward(self, x, s):
        {body}


def get_inputs():
    return [torch.randn(2, 4, 5, 6), torch.randn(2, 6, 5, 6)]


def get_init_inputs():
    return []
"""


@pytest.mark.parametrize("name", TAKEN)
def test_what_is_taken(name, tmp_path):
    body, expected = TAKEN[name]
    path = tmp_path / "own.py"
    path.write_text(REFERENCE.format(body=body.replace("\n", "\n        ")))
    lines = [line.text for line in explained(program_of(path))]
    assert expected in lines[-1], lines


@pytest.mark.parametrize("start", swept(range(0, 120, 20), (0,)))
def test_random_chains(start, tmp_path):
    """Of every operator that takes an operand: results and gradients are the reference's, which the
    generator itself compares in float64 before it gives a text.
    """
    path, joined = tmp_path / "own.py", 0
    for seed in range(start, start + 20):
        path.write_text(with_tensors(random_reference(seed), seed))
        joined += "_TENSORS" in generate(path, tmp_path / "solution.py")
    assert joined > 10


def test_sizes_that_follow_from_others_are_cut_with_them(tmp_path):
    """The proof runs on small inputs, though the operand alone would be too large for it."""
    path = tmp_path / "own.py"
    text = REFERENCE.format(body="return self.conv(x) + s").replace("3, padding=1", "2, stride=2")
    text = text.replace("(2, 4, 5, 6)", "(3, 4, 350, 350)").replace(
        "(2, 6, 5, 6)", "(3, 6, 700, 700)"
    )
    path.write_text(text)
    assert "torch.add" not in generate(path, tmp_path / "solution.py")


@pytest.mark.parametrize("name", swept(["residual_operands", "residual_sums"], ()))
def test_the_places_of_operands(name):
    """An operand is called late, where it is computed late, and stays in the order of forward."""
    program = program_of(REFERENCES / f"{name}.py")
    for plan in program.plans:
        known = set()
        for item in plan.items:
            nodes = item.nodes if hasattr(item, "conv") else [item]
            made = {node.result for node in nodes}
            read = {v for node in nodes for v in node.operands() if v.kind == "result"} - made
            assert read <= known
            known |= made


def test_whose_gradient_is_that_of_the_convolution():
    """Of what is added ahead of all else, and of one alone: accumulated gradients are changed in
    place.
    """
    made = load_text(generated(REFERENCES / "joined_volumes.py"))
    shared, whole, channel = (made[n] for n in ("_shared_operand", "_Whole", "_Channel"))
    add, multiply = made["_Add"], made["_Multiply"]
    assert shared(made["_CHAIN"], [0]) == 0 and shared(made["_CHAIN"], []) is None
    both = add(whole(0), 1, 1), add(whole(1), 1, 1)
    assert shared(both, [0, 1]) == 0 and shared(both, [1]) == 1
    assert shared((add(channel(0), 1, 1), add(2.0, 1, 1), add(whole(1), 1, 1)), [1]) == 1
    assert shared((add(whole(0), 1, -1), add(whole(1), 1, 1)), [0, 1]) == 1  # v - operand
    assert shared((add(whole(0), -1, 1), add(whole(1), 1, 1)), [0, 1]) is None  # operand - v
    assert shared((multiply(whole(0)), add(whole(1), 1, 1)), [0, 1]) is None
