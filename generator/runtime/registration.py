"""Makes Python functions a PyTorch operator."""

import functools as _functools
import itertools as _itertools

import torch

from generator.runtime.problem import _SLUG


def _unused_namespace() -> str:
    """A namespace that no earlier load in this process has used: the same source may be loaded many
    times.

    Counted rather than random, so that compile caches of other processes still fit.
    """
    taken = vars(torch.ops)
    return next(name for n in _itertools.count() if (name := f"tconv_{_SLUG}_{n}") not in taken)


def _vector_arguments(count: int) -> str:
    """The schema's text for `count` per-channel operands. (Single arguments: autograd handles lists
    slowly.)
    """
    return "".join(f", Tensor vector{index}" for index in range(count))


def _register(library, schema: str, run, fake, setup_context, backward):
    """Defines the operator and returns it with the torch.library.Library that keeps it alive.

    run(library, *args) computes on CPU and CUDA tensors, fake(*args) makes outputs without data,
    setup_context and backward are those of torch.library.register_autograd.
    """
    namespace = _unused_namespace()
    name = schema.partition("(")[0]
    qualified = f"{namespace}::{name}"
    registry = torch.library.Library(namespace, "FRAGMENT")
    # flexible_layout: any strides of the input are read in place, so a compiler need not restore
    # eager's.
    registry.define(schema, tags=(torch.Tag.pt2_compliant_tag, torch.Tag.flexible_layout))
    for key in ("CPU", "CUDA"):
        registry.impl(name, _functools.partial(run, library), key)
    torch.library.register_fake(qualified, fake, lib=registry)
    torch.library.register_autograd(qualified, backward, setup_context=setup_context, lib=registry)
    return registry, getattr(getattr(torch.ops, namespace), name).default
