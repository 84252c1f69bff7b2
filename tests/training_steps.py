"""A training step as users write it, in the ways that there are: how the parameters move."""

from collections.abc import Callable
from functools import partial

import torch
from torch.func import functional_call, grad
from torch.nn.utils import clip_grad_norm_
from torch.utils.checkpoint import checkpoint

STEPS, PARTS = 2, 2  # gradients of two parts of a batch are accumulated
_SHAPE = 4, 64, 16, 20
_SCALE = 16.0  # of the gradient scaler: fp16 holds the sums over all pixels

Batch = list[tuple[torch.Tensor, torch.Tensor]]


def batches(model, device, dtype: torch.dtype, seed: int = 0) -> list[Batch]:
    """(input, what its output is multiplied by) of each part of each step."""
    draws, made = torch.Generator().manual_seed(seed), []
    for _ in range(STEPS):
        xs = [torch.randn(_SHAPE, generator=draws) for _ in range(PARTS)]
        with torch.no_grad():
            shape = model(torch.empty(_SHAPE, dtype=dtype, device="meta")).shape
        directions = [torch.randn(shape, generator=draws) for _ in range(PARTS)]
        parts = zip(xs, directions, strict=True)
        made.append([(x.to(device, dtype), d.to(device, dtype)) for x, d in parts])
    return made


def _loss(call: Callable, x: torch.Tensor, direction: torch.Tensor) -> torch.Tensor:
    return (call(x) * direction).sum()


def _optimizer(model) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=1e-1, momentum=0.9)


def _step(model, optimizer, batch: Batch, call: Callable) -> None:
    optimizer.zero_grad(set_to_none=True)
    for x, direction in batch:
        _loss(call, x, direction).backward()
    clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()


def _plain(model, steps: list[Batch], call: Callable | None = None) -> None:
    optimizer = _optimizer(model)
    for batch in steps:
        _step(model, optimizer, batch, model if call is None else call)


def _checkpointed(model, steps: list[Batch]) -> None:
    _plain(model, steps, partial(checkpoint, model, use_reentrant=False))


def _compiled(model, steps: list[Batch]) -> None:
    torch._dynamo.reset()
    _plain(model, steps, torch.compile(model))


def _scaled(model, steps: list[Batch]) -> None:
    """In fp16 by autocast, with a gradient scaler."""
    kind, optimizer = steps[0][0][0].device.type, _optimizer(model)
    scaler = torch.amp.GradScaler(kind, init_scale=_SCALE)
    for batch in steps:
        optimizer.zero_grad(set_to_none=True)
        for x, direction in batch:
            with torch.autocast(kind, dtype=torch.float16):
                loss = _loss(model, x, direction)
            scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
    assert scaler.get_scale() == _SCALE, "a step was skipped: a gradient was not finite"


def _functional(model, steps: list[Batch]) -> None:
    """torch.func.grad of functional_call."""
    optimizer, buffers = _optimizer(model), dict(model.named_buffers())
    for batch in steps:
        parameters = {name: p.detach() for name, p in model.named_parameters()}
        found = [
            grad(
                lambda p, x=x, d=d: _loss(lambda x: functional_call(model, (p, buffers), x), x, d)
            )(parameters)
            for x, d in batch
        ]
        for name, parameter in model.named_parameters():
            parameter.grad = sum(part[name] for part in found)
        clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()


def _graphed(model, steps: list[Batch]) -> None:
    """The whole step in one CUDA graph, replayed."""
    before = {key: value.clone() for key, value in model.state_dict().items()}
    batch = [tuple(t.clone() for t in part) for part in steps[0]]
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        _plain(model, [batch, batch])
    torch.cuda.current_stream().wait_stream(side)
    optimizer, graph = _optimizer(model), torch.cuda.CUDAGraph()
    for parameter in model.parameters():  # momentum is there before the graph is
        optimizer.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)
    with torch.cuda.graph(graph):
        _step(model, optimizer, batch, model)
    model.load_state_dict(before)
    for given in steps:
        for part, new in zip(batch, given, strict=True):
            for old, tensor in zip(part, new, strict=True):
                old.copy_(tensor)
        graph.replay()
    torch.cuda.synchronize()


WAYS = {
    "plain": _plain,
    "checkpointed": _checkpointed,
    "compiled": _compiled,
    "scaled": _scaled,
    "functional": _functional,
    "graphed": _graphed,
}


def updates(model, way: str, steps: list[Batch]) -> list[torch.Tensor]:
    """How far each parameter moves."""
    before = [p.detach().clone() for p in model.parameters()]
    WAYS[way](model, steps)
    return [(p - b).detach() for p, b in zip(model.parameters(), before, strict=True)]
