"""A training step of a model of our own (tests/references/) beside PyTorch's, and the truth."""

import torch
from torch.utils import _pytree

from tests.solution_tools import REFERENCES, load_text

MODELS = sorted(path.stem for path in REFERENCES.glob("*.py"))
# But for those that draw other numbers in another dtype, and those whose gradient goes to the least
# or the largest of many values alone, which rounding may make another one.
_OTHERS = "dropout_decoder", "vae", "channel_extrema"
JUDGED = [name for name in MODELS if name not in _OTHERS]


def step(model, inputs: list, device: str, dtype: torch.dtype) -> list[torch.Tensor]:
    """Outputs and gradients of inputs and parameters, on the device in the dtype."""
    model = model.to(device, dtype)
    leaves = [
        value.to(device, dtype if value.is_floating_point() else None, copy=True)
        for value in _pytree.tree_leaves(inputs)
    ]
    for leaf in leaves:
        leaf.requires_grad_(leaf.is_floating_point())
    given = _pytree.tree_unflatten(leaves, _pytree.tree_structure(inputs))
    outputs = [out for out in _pytree.tree_leaves(model(*given)) if out.requires_grad]
    made = torch.Generator().manual_seed(5)
    grads = [torch.randn(o.shape, generator=made, dtype=torch.float64).to(o) for o in outputs]
    torch.autograd.backward(outputs, grads)
    holders = [*(leaf for leaf in leaves if leaf.requires_grad), *model.parameters()]
    outputs = [out.detach() for out in outputs]
    return [*outputs, *(torch.zeros_like(h) if h.grad is None else h.grad for h in holders)]


def too_far(
    name: str, solution: dict, device: str, dtype: torch.dtype, allowed: float
) -> list[tuple]:
    """(index, error, PyTorch's, size) of each of a step's tensors whose error is above four times
    PyTorch's and `allowed` of its size and the largest one's.
    """
    reference = load_text((REFERENCES / f"{name}.py").read_text(), "reference")
    torch.manual_seed(1)
    given, inputs = reference["get_init_inputs"](), reference["get_inputs"]()
    eager = reference["Model"](*given)
    ours, exact = solution["ModelNew"](*given), reference["Model"](*given)
    for other in (ours, exact):
        other.load_state_dict(eager.state_dict())
    found = [step(model, inputs, device, dtype) for model in (ours, eager)]
    true = step(exact, inputs, device, torch.float64)
    largest = max(float(tensor.norm()) for tensor in true)
    told = []
    for index, (got, own, wanted) in enumerate(zip(*found, true, strict=True)):
        off, own_off = (float((tensor.double() - wanted).norm()) for tensor in (got, own))
        size = float(wanted.norm())
        if not off <= 4 * own_off + allowed * (size + largest):
            told.append((index, off, own_off, size))
    return told
