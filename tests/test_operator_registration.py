"""The operator as PyTorch sees it: gradcheck, opcheck, torch.compile, what autograd keeps."""

import pytest
import torch

from tests.solution_tools import Case
from tests.sweeps import swept

CASES = [
    Case(batch=2, in_channels=1, out_channels=4, size=(3, 2), kernel=(1, 2), stride=(1, 2)),
    Case(
        batch=1,
        in_channels=2,
        out_channels=4,
        size=(3, 3),
        dilation=(1, 2),
        groups=2,
        padding=(1, 0),
    ),
]


def operands(name, case=CASES[0], dtype=torch.float64, requires_grad=True):
    """Arguments of the operator of a loaded solution."""
    x, weight, bias = case.tensors(dtype)

    def vector(seed):
        made = torch.randn(case.out_channels, generator=torch.Generator().manual_seed(seed))
        return made.to(dtype).requires_grad_(requires_grad)

    tensors = [None if t is None else t.requires_grad_(requires_grad) for t in (x, weight, bias)]
    arguments = [*tensors, *case.parameters]
    if name == "every_step":
        return [*arguments, *(vector(seed) + 1.5 for seed in range(4))]
    if name == "19":
        return [*arguments, 2, vector(1), vector(2), 1e-5]
    if name in ("11", "11 eval"):
        training = name == "11"
        running = (None, None) if training else (vector(6).detach(), vector(7).detach() ** 2 + 1)
        norm = [vector(3), vector(4), *running, training, 1e-5]
        pool = [(2, 2), (1, 2), (0, 0), (1, 1), False]
        return [*arguments, *norm, *pool, 2, vector(1), vector(2), 1e-5]
    return arguments


NAMES = ["69", "every_step", "19", "11", "11 eval"]


def operator(shelf, name):
    return shelf[name.partition(" ")[0]].solution["_operator"]


def traced(shelf, name):
    """The operator that compilers and exporters see."""
    return shelf[name.partition(" ")[0]].solution["_traced"]


@pytest.mark.parametrize("name", NAMES)
def test_gradcheck(shelf, name):
    call = operator(shelf, name)
    assert torch.autograd.gradcheck(call, operands(name, CASES[0]))
    assert torch.autograd.gradcheck(call, operands(name, CASES[1]), fast_mode=True)


@pytest.mark.parametrize("name", NAMES)
def test_second_derivatives(shelf, name):
    call = operator(shelf, name)
    assert torch.autograd.gradgradcheck(call, operands(name), fast_mode=True)


@pytest.mark.parametrize("requires_grad", swept([True, False]), ids=["grad", "no grad"])
@pytest.mark.parametrize("name", NAMES)
def test_opcheck(shelf, name, requires_grad):
    arguments = operands(name, dtype=torch.float32, requires_grad=requires_grad)
    torch.library.opcheck(
        traced(shelf, name),
        [
            argument.detach().requires_grad_(argument.requires_grad)
            if isinstance(argument, torch.Tensor)
            else argument
            for argument in arguments
        ],
    )


@pytest.mark.parametrize("name", NAMES)
def test_only_the_asked_gradients_are_made(shelf, name):
    everything = operands(name)
    for index, chosen in enumerate(everything):
        if not isinstance(chosen, torch.Tensor) or not chosen.requires_grad:
            continue
        arguments = [
            a.detach() if isinstance(a, torch.Tensor) and i != index else a
            for i, a in enumerate(everything)
        ]
        call = operator(shelf, name)
        (alone,) = torch.autograd.grad(call(*arguments).square().sum(), chosen)
        (together,) = torch.autograd.grad(call(*everything).square().sum(), chosen)
        torch.testing.assert_close(alone, together)


@pytest.mark.parametrize("name", ["65", "19", "11"])
def test_no_autograd_state_under_no_grad(shelf, name):
    """With gradients nothing but inputs, parameters and small statistics: no intermediate."""
    _, new = shelf[name].pair()
    x = torch.randn(2, 64, 5, 5)
    saved = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t) or t, lambda t: t):
        with torch.no_grad():
            out = new(x)
        assert out.grad_fn is None and not out.requires_grad and not saved
        assert new(x).grad_fn is not None and saved
    known = {t.data_ptr() for t in (x, *new.parameters(), *new.buffers())}
    assert all(t.data_ptr() in known or t.numel() <= 64 for t in saved), [t.shape for t in saved]


@pytest.mark.parametrize("training", swept([True, False]), ids=["train", "eval"])
@pytest.mark.parametrize("name", swept(["65", "19", "11", "every_step", "pooled"], (1, 2)))
def test_compile_traces_the_whole_model(shelf, name, training):
    """Forward and backward through AOTAutograd, running statistics included."""
    _, eager = shelf[name].pair()
    _, new = shelf[name].pair()
    eager.train(training), new.train(training)
    torch._dynamo.reset()
    compiled = torch.compile(new, fullgraph=True, backend="aot_eager")
    channels = {"every_step": 5, "pooled": 4}.get(name, 64)
    for batch in (2, 3, 4):  # the second size makes the batch symbolic
        x = torch.randn(batch, channels, 6, 5, requires_grad=True)
        y, expected = compiled(x), eager(x)
        torch.testing.assert_close(y, expected)
        (grad,) = torch.autograd.grad(y.square().sum(), x)
        (expected_grad,) = torch.autograd.grad(expected.square().sum(), x)
        torch.testing.assert_close(grad, expected_grad)
    for value, other in zip(eager.state_dict().values(), new.state_dict().values(), strict=True):
        torch.testing.assert_close(value, other)


@pytest.mark.parametrize("name", swept(["65", "19", "11"]))
def test_compile_with_the_default_backend(shelf, name):
    _, new = shelf[name].pair()
    _, eager = shelf[name].pair()
    torch._dynamo.reset()
    compiled = torch.compile(new, fullgraph=True)
    x = torch.randn(2, 64, 6, 5)
    for training in (True, False):
        eager.train(training), new.train(training)
        with torch.no_grad():
            torch.testing.assert_close(compiled(x), eager(x))


def test_compiled_in_half_the_model_keeps_its_dtype(shelf):
    _, new = shelf["19"].pair()
    torch._dynamo.reset()
    compiled = torch.compile(new.to(torch.bfloat16), fullgraph=True, backend="aot_eager")
    assert compiled(torch.randn(2, 64, 5, 5, dtype=torch.bfloat16)).dtype == torch.bfloat16
