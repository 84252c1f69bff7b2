"""Models of the sanitizer's cases (sanitizer_cases.py) that are not called as the others are. Each
function says whether what the kernels compute is finite, of a run's shape and dtype.
"""

import torch

from tests.solution_tools import environment


def residual_is_finite(solution: dict, run) -> bool:
    """Of a convolution that keeps the shape: result and gradients of all operands."""
    channels = run.shape[1]
    shapes = run.shape, (channels, channels, 3, 3), (channels,), run.shape, run.shape, (channels,)
    operands = [torch.randn(s).to(run.dtype).to("cuda").requires_grad_() for s in shapes]
    grad = torch.randn(run.shape).to(run.dtype).to("cuda")
    with environment(TCONV_KERNEL=run.kernel):
        y = solution["_operator"](*operands[:3], 1, 1, 0, 1, 1, *operands[3:])
    found = [y, *torch.autograd.grad(y, operands, grad)]
    return all(bool(t.detach().cpu().isfinite().all()) for t in found)


def joined_volumes_are_finite(solution: dict, run) -> bool:
    """Of a training step: the result, and gradients of x, of what it is joined to, and of the
    parameters.
    """
    model = solution["ModelNew"](*run.arguments).to(run.dtype).to("cuda")
    sizes = run.shape, (run.shape[0], run.arguments[1], *(2 * size for size in run.shape[2:]))
    leaves = [torch.randn(size).to(run.dtype).to("cuda").requires_grad_() for size in sizes]
    grad = torch.randn(sizes[1]).to(run.dtype).to("cuda")
    with environment(TCONV_KERNEL=run.kernel):
        y = model(*leaves)
        found = [y, *torch.autograd.grad(y, [*leaves, *model.parameters()], grad)]
    return all(bool(t.detach().cpu().isfinite().all()) for t in found)


def grouped_is_finite(solution: dict, run) -> bool:
    """GroupNorm's result, and gradients of value, weight and bias."""
    (case,) = run.arguments
    value, weight, bias, grad = case.tensors("cuda")
    library, numbers = solution["_group_norm_library"](), (case.groups, 1e-5)
    found = [library.normalise.default(value, weight, bias, *numbers)]
    found += library.backward.default(grad, value, weight, *numbers, case.affine, case.affine)
    if run.dtype != torch.float64:
        found += _stepped(solution, "group_norm", (value, weight, bias), grad, (case.groups,))
    return all(bool(t.cpu().isfinite().all()) for t in found)


def stepped_batch_norm_is_finite(solution: dict, dtype: torch.dtype) -> bool:
    """The only tail of a solution, and its gradients: of a warp's planes and of a block's."""
    good = True
    for image in ((3, 5, 7), (3, 29, 31)) if dtype == torch.float32 else ():
        value, grad = (torch.randn(2, 4, *image).to("cuda") for _ in range(2))
        vectors = [torch.rand(4).to("cuda") for _ in range(4)]
        moved = *vectors[2:], torch.tensor(2).to("cuda"), 0.0
        found = _stepped(solution, "batch_norm", (value, *vectors[:2]), grad, (), moved)
        good &= all(bool(t.cpu().isfinite().all()) for t in (*found, *vectors))
    return good


def centred_are_finite(solution: dict, run) -> bool:
    """BatchNorm with each plane's mean taken away: of a warp's planes, of a block's, and of so many
    that several warps share, that a block joins their moments in two rounds.
    """
    good = True
    for shape in (run.shape, (*run.shape[:2], 3, 29, 31), (17, 1, 65700)):
        value, grad = (torch.randn(shape).to("cuda") for _ in range(2))
        vectors = [torch.rand(shape[1]).to("cuda") for _ in range(4)]
        moved = *vectors[2:], torch.tensor(2).to("cuda"), 0.0
        given = value, *vectors[:2]
        found = _stepped(solution, "centred_batch_norm", given, grad, (), moved)
        good &= all(bool(t.cpu().isfinite().all()) for t in (*found, *vectors))
    return good


def _stepped(solution: dict, name: str, given: tuple, grad, numbers: tuple, moved=()) -> list:
    """Results and gradients of tail 0, a norm with steps behind it."""
    forward, backward = solution["_tail_library"](), solution["_tail_gradient_library"]()
    y, maps = getattr(forward, name).default(0, *given, *moved, *numbers, 1e-5)
    wanted = 0 if given[1] is None else 3
    called = getattr(backward, f"{name}_backward").default
    return [y, maps[:, :3], *called(0, grad, *given, maps, *numbers, 1e-5, wanted)]


def tails_are_finite(solution: dict, run) -> bool:
    """Each tail of the library, aligned and off every boundary, and sizes of every form of it; and
    their gradients.
    """
    forward, backward = solution["_tail_library"](), solution["_tail_gradient_library"]()

    def of(*shape):
        return torch.randn(shape).to(run.dtype).to("cuda")

    def shifted(value):
        # On the CPU: no kernel of PyTorch's has a part in it.
        flat = torch.cat([torch.zeros(1, dtype=run.dtype), value.cpu().flatten()])
        return flat.to("cuda")[1:].view(value.shape)

    def finite(name, number, value, *rest, wanted=0, vectors=()):
        good = True
        for v in (value, shifted(value)) if value.shape[-1] != 1024 else (value,):
            y = getattr(forward, name).default(number, v, *rest, *vectors)
            grad = torch.randn(y.shape).to(run.dtype).to("cuda")
            called = getattr(backward, f"{name}_backward").default
            found, sums = called(number, grad, v, *rest, wanted, *vectors)
            good &= all(bool(t.cpu().isfinite().all()) for t in (y, found, sums))
        return good

    batch, channels, *image = run.shape
    factor, good = (of(channels),), True
    for row in (image[-1], 33, 64, 256, 1024):
        value = of(batch, channels, 5, row)
        good &= finite("layer_norm", 0, value, of(row), of(row), 1e-3, row, wanted=3)
        good &= finite("layer_norm", 0, value, None, None, 1e-3, row)
    for count in (channels, 20, 40, 100, 200):
        good &= finite("softmax", 1, of(batch, count, 5, 7), wanted=1, vectors=(of(count),))
        good &= finite("softmax", 5, of(batch, count, 5, 7))
    for plane in (9000, 9001):
        value = of(batch, channels, plane)
        good &= finite("plane_softmax", 2, value, wanted=1, vectors=factor)
    for window in ((2, 2, 2), (1, 2, 2), (1, 3, 2)):
        good &= finite("pool", 3, of(*run.shape), *window, wanted=1, vectors=factor)
        good &= finite("pool", 3, of(*run.shape), *window, vectors=factor)
        good &= finite("pool", 4, of(*run.shape), *window)
    return good


def few_channels_are_finite(solution: dict, run) -> bool:
    """Every layer's result, without a gradient and with one."""
    model = solution["ModelNew"](*run.arguments).to(run.dtype).to("cuda")
    x = torch.randn(run.shape).to(run.dtype).to("cuda")
    with torch.no_grad():
        found = list(model(x))
    leaf = x.requires_grad_()
    outputs = model(leaf)
    grads = [torch.randn(y.shape).to(run.dtype).to("cuda") for y in outputs]
    found += torch.autograd.grad(outputs, [leaf, *model.parameters()], grads)
    return all(bool(t.detach().cpu().isfinite().all()) for t in found)


def extrema_are_finite(solution: dict, run) -> bool:
    """Both results, of inputs within the containers' range and, in fp32, beyond it."""
    model = solution["ModelNew"](*run.arguments).to(run.dtype).to("cuda")
    x = torch.randn(run.shape)
    found = []
    with torch.no_grad(), environment(TCONV_KERNEL=run.kernel):
        for size in (1.0, 1e6) if run.dtype == torch.float32 else (1.0,):
            found += model((x * size).to(run.dtype).to("cuda"))
    return all(bool(t.cpu().isfinite().all()) for t in found)
