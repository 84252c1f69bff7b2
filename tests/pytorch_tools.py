"""What the tests behind docs/pytorch.md share: inputs, modes, comparison with the reference."""

import contextlib

import torch

from tests.solution_tools import relative_error

NAMES = ["65", "19", "11", "every_step"]
# (solution, training): only 11 tells the modes apart.
MODES = [("65", True), ("19", True), ("11", True), ("11", False), ("every_step", True)]
MODE_IDS = ["65", "19", "11 train", "11 eval", "every_step"]


def input_of(name, dtype=torch.float64, batch=2, seed=1):
    """Zero-mean [batch, channels, 6, 5]."""
    channels = {"every_step": 5, "grouped_norm": 4, "pooled": 4}.get(name, 64)
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(batch, channels, 6, 5, generator=generator, dtype=torch.float64).to(dtype)


def pair_of(shelf, name, training=True, dtype=torch.float64):
    """(reference, solution) of the same parameters, in a mode and a dtype; statistics moved away
    from zeros and ones.
    """
    made = shelf[name].pair()
    for model in made:
        model.to(dtype)
        for key, buffer in model.named_buffers():
            if buffer.is_floating_point():
                values = torch.linspace(0.5, 1.5, buffer.numel(), dtype=dtype)
                buffer.copy_(values - 1 if key.endswith("mean") else values)
        model.train(training)
    return made


def assert_same(got, expected, rtol=1e-9, atol=1e-10):
    """Tensors or nested collections of them, None where the other has None."""
    torch.testing.assert_close(got, expected, rtol=rtol, atol=atol)


def assert_same_state(new, model, rtol=1e-9, atol=1e-10):
    assert_same(dict(new.state_dict()), dict(model.state_dict()), rtol, atol)


def gradients(model, x, direction_seed=3, **call):
    """(output, gradients of x and the parameters) for a direction that depends on the seed only."""
    x = x.detach().clone(memory_format=torch.preserve_format).requires_grad_()
    y = call["through"](model, x) if call else model(x)
    generator = torch.Generator().manual_seed(direction_seed)
    direction = torch.randn(y.shape, generator=generator, dtype=torch.float64).to(y)
    return y, torch.autograd.grad(
        y, [x, *model.parameters()], direction, allow_unused=True, materialize_grads=True
    )


def assert_no_worse(got, theirs, exact, floor, factor=2.0):
    """An error against the truth of at most `factor` of PyTorch's, or `floor`."""
    assert got.dtype == theirs.dtype, (got.dtype, theirs.dtype)
    assert got.shape == theirs.shape
    bound = max(factor * relative_error(theirs, exact), floor)
    assert relative_error(got, exact) <= bound


@contextlib.contextmanager
def threads(count: int):
    """PyTorch's threads for a while."""
    old = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(old)
