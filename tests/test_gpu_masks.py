"""A training step of a volume that keeps a mask (docs/gradients.md), on a GPU."""

import pytest
import torch

pytestmark = pytest.mark.gpu
SIZE = 2, 16, 8, 24, 33  # a million outputs and more


def drawn(kind: str, shape: torch.Size) -> torch.Tensor:
    """On integers sums are exact, and many an output lies on the bound."""
    if kind == "integers":
        return torch.randint(-1, 2, shape).float()
    return torch.randn(shape)


@pytest.mark.parametrize("kind", ["normal", "integers", "on the bound", "beyond fp16"])
def test_a_step(shelf, kind):
    model, new = (m.cuda() for m in shelf["clamped_volumes"].pair(seed=3))
    torch.manual_seed(4)
    x = drawn(kind, SIZE).cuda()
    with torch.no_grad():
        if kind == "integers":
            x *= torch.rand_like(x) < 0.05
            for parameter in model.parameters():
                parameter.copy_(drawn(kind, parameter.shape))
        if kind == "on the bound":
            x.zero_()
            model.up.bias.fill_(-1.0)
        if kind == "beyond fp16":
            x *= 1e6
    new.load_state_dict(model.state_dict())
    model, kept = model.double(), []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        leaf = x.clone().requires_grad_()
        out = new(leaf)
    assert any(t.dtype == torch.uint8 and t.shape == out.shape for t in kept)
    behind = drawn("integers", out.shape).cuda()
    out.backward(behind)
    grads = [leaf.grad, *[p.grad for p in new.parameters()]]
    true = x.double().requires_grad_()
    model(true).backward(behind.double())
    for got, wanted in zip(grads, [true.grad, *[p.grad for p in model.parameters()]], strict=True):
        bound = 0.0 if kind == "integers" else 1e-3
        assert float((got - wanted).norm()) <= bound * float(wanted.norm())
