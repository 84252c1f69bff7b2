"""torch.export of a reference's forward, in training and in eval mode."""

import contextlib
import inspect
import io
import logging
import warnings
from collections.abc import Iterator

import torch
from torch.export import Dim, ExportedProgram
from torch.utils import _pytree

from generator.errors import Refusal
from generator.front.dtypes import follow_inputs
from generator.front.watch import Watch, refuse_side_effects, watching
from generator.reference import Reference, attempt


def export(reference: Reference, training: bool) -> tuple[ExportedProgram, Watch]:
    """The program that torch.export makes of forward, every size of an input left open that can be.
    Raises Refusal by name and line.
    """
    model = reference.model
    modes = {module: module.training for module in model.modules()}
    # The cumulative average of BatchNorm is computed from a tensor; its layer stays a call.
    cumulative = [m for m in model.modules() if getattr(m, "momentum", 0) is None]
    for module in cumulative:
        module.momentum = 0.1
    model.train(training)
    try:
        with watching(reference) as watch:
            program = attempt(
                "tracing forward", reference.path, lambda: _export(model, reference.inputs)
            )
        follow_inputs(program, model, reference.inputs, _export)
    except Refusal as refusal:
        raise Refusal(_explained(str(refusal))) from refusal
    finally:
        for module, mode in modes.items():
            module.training = mode
        for module in cumulative:
            module.momentum = None
    refuse_side_effects(reference, watch)
    return program, watch


def _export(model: torch.nn.Module, inputs: list) -> ExportedProgram:
    arguments = _batched(inputs)
    with _quiet():
        if arguments is not None:
            with contextlib.suppress(Exception):
                return _exported(model, arguments)
        return _exported(model, inputs)


def _exported(model: torch.nn.Module, inputs: list) -> ExportedProgram:
    bound = inspect.signature(model.forward).bind(*inputs).arguments
    sizes = _pytree.tree_map(
        lambda leaf: (
            dict.fromkeys(range(leaf.dim()), Dim.AUTO) if isinstance(leaf, torch.Tensor) else None
        ),
        dict(bound),
    )
    return torch.export.export(model, tuple(inputs), dynamic_shapes=sizes, strict=False)


def _batched(inputs: list) -> list | None:
    """The same inputs with a batch of two where one of one would become a constant."""
    tensors = [leaf for leaf in _pytree.tree_leaves(inputs) if isinstance(leaf, torch.Tensor)]
    if not any(tensor.dim() > 1 and tensor.shape[0] == 1 for tensor in tensors):
        return None

    def doubled(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.dim() > 1 and tensor.shape[0] == 1:
            return tensor.new_empty((2, *tensor.shape[1:])).requires_grad_(tensor.requires_grad)
        return tensor

    return _pytree.tree_map_only(torch.Tensor, doubled, list(inputs))


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without the warnings and graphs that torch.export prints."""
    names = [name for name in logging.root.manager.loggerDict if name.startswith("torch")]
    levels = {logger: logger.level for logger in map(logging.getLogger, names)}
    # The others follow these, and each change of a level makes all loggers forget theirs.
    levels = {one: level for one, level in levels.items() if level or "." not in one.name}
    with (
        warnings.catch_warnings(),
        contextlib.redirect_stderr(io.StringIO()),
        contextlib.redirect_stdout(io.StringIO()),
        torch.random.fork_rng(devices=[]),
    ):
        warnings.simplefilter("ignore")
        for logger in levels:
            logger.setLevel(logging.CRITICAL)
        try:
            yield
        finally:
            for logger, level in levels.items():
                logger.setLevel(level)


def _explained(message: str) -> str:
    if "GuardOnDataDependentSymNode" in message or "data-dependent" in message:
        return (
            f"{message.split(': tracing')[0]}: tracing forward met a condition on the values of a "
            "tensor; a solution has one order of operators for all values"
        )
    if "found a fake tensor" in message:
        return (
            f"{message.split(': tracing')[0]}: tracing forward met a tensor that PyTorch cannot "
            "follow (.data, numpy()); detach() can be traced"
        )
    return message
