"""Several outputs as one tensor, for all that knows of one: their elements in a row, by a hook on
the reference and on the solution alike.

How they came is the layout, {"structure": text, "shapes": [[...], ...]}: both sides' have to agree.
"""

from collections.abc import Iterator

import torch
from torch import nn


class JoinsOutputs:
    """A forward hook. `layout` is that of the last call, None where its output was one tensor."""

    def __init__(self):
        self.layout: dict | None = None

    def __call__(self, module: nn.Module, arguments: tuple, output) -> torch.Tensor | None:
        """Raises TypeError for what is no tuple, list or dict of floating-point tensors of one
        dtype.
        """
        if isinstance(output, torch.Tensor):
            self.layout = None
            return None
        tensors: list[torch.Tensor] = []
        structure = _structure(output, tensors)
        dtypes = sorted({str(tensor.dtype) for tensor in tensors})
        if len(dtypes) != 1 or not tensors[0].is_floating_point():
            found = ", ".join(dtypes) or "nothing"
            raise TypeError(
                f"the outputs {structure} are of {found}; supported are floating-point tensors of "
                "one dtype"
            )
        self.layout = {"structure": structure, "shapes": [list(t.shape) for t in tensors]}
        return torch.cat([tensor.reshape(-1) for tensor in tensors])


def join_outputs(model: nn.Module) -> nn.Module:
    """The model, whose outputs are joined from now on, also those of its copies."""
    model.register_forward_hook(JoinsOutputs())
    return model


def layout_of(model: nn.Module) -> dict | None:
    """Of its last output; None where that was one tensor, or nothing joins."""
    hooks = model._forward_hooks.values()
    return next((hook.layout for hook in hooks if isinstance(hook, JoinsOutputs)), None)


def sections(layout: dict) -> Iterator[tuple[str, slice]]:
    """(name, its elements) of each output."""
    begin = 0
    for index, shape in enumerate(layout["shapes"]):
        end = begin + torch.Size(shape).numel()
        yield f"output {index} of {layout['structure']}", slice(begin, end)
        begin = end


def _structure(output, tensors: list[torch.Tensor]) -> str:
    """The text of a nested output with a star for each tensor, which are appended."""
    if isinstance(output, torch.Tensor):
        tensors.append(output)
        return "*"
    if isinstance(output, dict):
        pairs = [f"{key!r}: {_structure(value, tensors)}" for key, value in output.items()]
        return f"{{{', '.join(pairs)}}}"
    if isinstance(output, tuple | list):
        items = [_structure(item, tensors) for item in output]
        if fields := getattr(output, "_fields", None):
            pairs = [f"{name}={item}" for name, item in zip(fields, items, strict=True)]
            return f"{type(output).__name__}({', '.join(pairs)})"
        if isinstance(output, list):
            return f"[{', '.join(items)}]"
        return f"({', '.join(items)}{',' if len(items) == 1 else ''})"
    raise TypeError(
        f"forward returns a {type(output).__name__}; supported are tensors, and tuples, lists and "
        "dicts of them"
    )
