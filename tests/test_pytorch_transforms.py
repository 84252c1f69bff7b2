"""Transforms of torch.func, forward-mode AD, vmap and second derivatives over whole models, against
the reference in float64. What is not there refuses in one sentence that names the transform.
"""

import copy
import re

import pytest
import torch
import torch.autograd.forward_ad as forward_ad
from torch.func import functional_call, stack_module_state

from tests.pytorch_tools import (
    MODE_IDS,
    MODES,
    assert_same,
    assert_same_state,
    gradients,
    input_of,
    pair_of,
)

modes = pytest.mark.parametrize(("name", "training"), MODES, ids=MODE_IDS)
# Where BatchNorm counts its batches PyTorch's own layers refuse torch.func.grad and its like.
stateless = pytest.mark.parametrize("name", ["65", "19", "11", "every_step"])


def state(model):
    return dict(model.named_parameters()), dict(model.named_buffers())


def tangent_of_forward_ad(model, x):
    with forward_ad.dual_level():
        return forward_ad.unpack_dual(model(forward_ad.make_dual(x, torch.ones_like(x)))).tangent


def tangent_without_grad(model, x):
    with torch.no_grad():
        return tangent_of_forward_ad(model, x)


FORWARD_MODE = {
    "jvp": lambda model, x: torch.func.jvp(model, (x,), (torch.ones_like(x),))[1],
    "jacfwd": lambda model, x: torch.func.jacfwd(lambda s: model(x * s).sum((0, 2, 3)))(
        x.new_ones(())
    ),
    "hessian": lambda model, x: torch.func.hessian(lambda s: model(x * s).square().mean())(
        x.new_ones(())
    ),
    "forward_ad": tangent_of_forward_ad,
    "forward_ad no_grad": tangent_without_grad,
}


def assert_names_forward_mode(text: str) -> None:
    """One sentence for who uses a solution: no word to who implements one."""
    assert re.search("forward.mode", text, re.IGNORECASE), text
    assert "You must implement" not in text and len(text.splitlines()) == 1 and len(text) < 300


@pytest.mark.parametrize("way", FORWARD_MODE)
@stateless
def test_forward_mode_is_right_or_refused_by_name(shelf, name, way):
    model, new = pair_of(shelf, name, training=False)
    x = input_of(name)
    expected = FORWARD_MODE[way](model, x)
    assert expected.abs().max() > 1e-6  # zeros would be told apart from it
    try:
        got = FORWARD_MODE[way](new, x)
    except RuntimeError as error:
        assert_names_forward_mode(str(error))
    else:
        assert_same(got, expected)


@pytest.mark.parametrize("way", ["jvp", "forward_ad", "forward_ad no_grad"])
@pytest.mark.parametrize("how", ["compiled", "exported", "traced"])
def test_forward_mode_of_what_was_made_of_a_solution(shelf, how, way):
    """The operator that compilers, exporters and traces hold gives no silent zeros either."""
    model, new = pair_of(shelf, "19")
    x = input_of("19")
    expected = FORWARD_MODE[way](model, x)
    torch._dynamo.reset()
    made = {
        "compiled": lambda: torch.compile(new, backend="aot_eager"),
        "exported": lambda: torch.export.export(new, (x,)).module(),
        "traced": lambda: torch.jit.trace(new, (x,), check_trace=False),
    }[how]()
    try:
        got = FORWARD_MODE[way](made, x)
    except RuntimeError as error:
        assert re.search("forward.mode|jvp", str(error), re.IGNORECASE), error
    else:
        assert got is not None
        assert_same(got, expected)


@modes
def test_forward_mode_over_a_parameter_is_no_silent_none(shelf, name, training):
    """A tangent on a weight alone, none on the input."""
    model, new = pair_of(shelf, name, training)
    x = input_of(name)

    def tangent(candidate):
        parameters = dict(candidate.named_parameters())
        with forward_ad.dual_level(), torch.no_grad():
            duals = {k: forward_ad.make_dual(p, torch.ones_like(p)) for k, p in parameters.items()}
            return forward_ad.unpack_dual(functional_call(candidate, duals, (x,))).tangent

    expected = tangent(model)
    try:
        got = tangent(new)
    except RuntimeError as error:
        assert_names_forward_mode(str(error))
    else:
        assert got is not None
        assert_same(got, expected)


REVERSE = {
    "grad": lambda model, x: torch.func.grad(lambda x: model(x).square().sum())(x),
    "vjp": lambda model, x: torch.func.vjp(model, x)[1](torch.ones_like(model(x))),
    "jacrev": lambda model, x: torch.func.jacrev(lambda s: model(x * s).mean((0, 1, 2)))(
        x.new_ones(())
    ),
    "jacrev of jacrev": lambda model, x: torch.func.jacrev(
        torch.func.jacrev(lambda s: model(x * s).square().mean())
    )(x.new_ones((2, 1, 1, 1))),
    "grad and value": lambda model, x: torch.func.grad_and_value(lambda x: model(x).sin().sum())(x),
}


@pytest.mark.parametrize("transform", REVERSE)
@stateless
def test_reverse_transforms(shelf, name, transform):
    model, new = pair_of(shelf, name, training=False)
    x = input_of(name)
    assert_same(REVERSE[transform](new, x), REVERSE[transform](model, x))


@stateless
def test_reverse_transforms_of_the_parameters(shelf, name):
    model, new = pair_of(shelf, name, training=False)
    x = input_of(name)

    def parameter_gradients(candidate):
        parameters, buffers = state(candidate)
        return torch.func.grad(
            lambda p: functional_call(candidate, (p, buffers), (x,)).square().sum()
        )(parameters)

    assert_same(parameter_gradients(new), parameter_gradients(model))


def test_grad_of_a_training_batch_norm_refuses_as_pytorch_does(shelf):
    for candidate in pair_of(shelf, "11"):
        with pytest.raises(RuntimeError, match="transform.*in-place"):
            REVERSE["grad"](candidate, input_of("11"))


def test_grad_with_statistics_of_its_own(shelf):
    """The way PyTorch leaves open for BatchNorm in training mode: buffers made inside."""
    x = input_of("11")

    def run(candidate):
        parameters, buffers = state(candidate)

        def loss(parameters):
            mine = {key: buffer.clone() for key, buffer in buffers.items()}
            y = functional_call(candidate, (parameters, mine), (x,))
            return y.square().sum(), (y, mine)

        return torch.func.grad(loss, has_aux=True)(parameters)

    model, new = pair_of(shelf, "11")
    before = copy.deepcopy(new.state_dict())
    assert_same(run(new), run(model))
    assert_same(dict(new.state_dict()), dict(before), rtol=0, atol=0)


@pytest.mark.parametrize("grad", [True, False], ids=["grad", "no grad"])
@stateless
def test_vmap(shelf, name, grad):
    model, new = pair_of(shelf, name, training=False)
    xs = torch.stack([input_of(name, seed=seed) for seed in range(3)])
    with torch.set_grad_enabled(grad):
        assert_same(torch.vmap(new)(xs), torch.vmap(model)(xs))
        assert_same(torch.vmap(new, in_dims=1, out_dims=2)(xs), torch.vmap(model, 1, 2)(xs))
        assert_same(torch.vmap(new, chunk_size=2)(xs), torch.vmap(model, chunk_size=2)(xs))


@stateless
def test_gradients_through_vmap(shelf, name):
    model, new = pair_of(shelf, name, training=False)
    xs = torch.stack([input_of(name, seed=seed) for seed in range(2)])
    through = torch.vmap(new), torch.vmap(model)
    got = gradients(new, xs, through=lambda _, x: through[0](x))
    assert_same(got, gradients(model, xs, through=lambda _, x: through[1](x)))


@stateless
def test_per_sample_gradients(shelf, name):
    model, new = pair_of(shelf, name, training=False)
    x = input_of(name)

    def per_sample(candidate):
        parameters, buffers = state(candidate)

        def loss(p, sample):
            return functional_call(candidate, (p, buffers), (sample[None],)).square().sum()

        return torch.vmap(torch.func.grad(loss), in_dims=(None, 0))(parameters, x)

    assert_same(per_sample(new), per_sample(model))


@modes
def test_an_ensemble_by_vmap(shelf, name, training):
    """Two models' stacked parameters and statistics; those of the stack move, no model's own."""
    x = input_of(name)

    def run(candidate):
        others = [copy.deepcopy(candidate) for _ in range(2)]
        with torch.no_grad():
            for parameter in others[1].parameters():
                parameter.mul_(1.25)
        parameters, buffers = stack_module_state(others)

        def call(p, b, x):
            return functional_call(candidate, (p, b), (x,))

        return torch.vmap(call, in_dims=(0, 0, None))(parameters, buffers, x), buffers

    model, new = pair_of(shelf, name, training)
    assert_same(run(new), run(model))
    assert_same_state(new, model)


def test_vmap_of_a_training_batch_norm_refuses_as_pytorch_does(shelf):
    """Its statistics are one, the batches many."""
    xs = torch.stack([input_of("11"), input_of("11", seed=2)])
    for candidate in pair_of(shelf, "11"):
        before = copy.deepcopy(candidate.state_dict())
        with pytest.raises((RuntimeError, ValueError), match="(?i)batch.?norm|vmap"):
            torch.vmap(candidate)(xs)
        for key in ("batch_norm.running_mean", "batch_norm.running_var"):
            assert torch.equal(candidate.state_dict()[key], before[key])


@modes
def test_double_backward(shelf, name, training):
    model, new = pair_of(shelf, name, training)

    def second(candidate):
        x = input_of(name).requires_grad_()
        (grad,) = torch.autograd.grad(candidate(x).square().sum(), x, create_graph=True)
        wanted = [x, *candidate.parameters()]
        return torch.autograd.grad(
            grad.square().sum(), wanted, allow_unused=True, materialize_grads=True
        )

    assert_same(second(new), second(model), rtol=1e-8, atol=1e-9)


@modes
def test_batched_gradients(shelf, name, training):
    model, new = pair_of(shelf, name, training)

    def both(candidate):
        x = input_of(name).requires_grad_()
        y = candidate(x)
        directions = torch.stack([torch.ones_like(y), y.detach()])
        return torch.autograd.grad(y, x, directions, is_grads_batched=True)

    assert_same(both(new), both(model))
