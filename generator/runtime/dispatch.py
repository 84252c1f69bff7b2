"""Which way a call takes: straight to the kernels, through autograd, or as an operator that
compilers see.
"""

import torch
import torch.autograd.forward_ad as _forward_ad

_NO_FORWARD_MODE = (
    "this solution has no forward-mode differentiation (torch.func.jvp, jacfwd, hessian, "
    "torch.autograd.forward_ad): use reverse mode, torch.func.vjp or jacrev"
)


def _wants_gradient(*tensors) -> bool:
    if torch.is_grad_enabled():
        for tensor in tensors:
            if tensor is not None and tensor.requires_grad:
                return True
    return False


def _as_operator() -> bool:
    """Whether a compiler, an exporter or torch.jit.trace is to see the operator: an
    autograd.Function is a call of Python, which no saved trace can hold.
    """
    return torch.compiler.is_compiling() or torch._C._get_tracing_state() is not None


def _outside_autocast(gradients, ctx, grad):
    """Gradients are formed in the dtypes of what forward saved, wherever backward is called."""
    if not torch._C._is_any_autocast_enabled():
        return gradients(ctx, grad)
    with torch.autocast(grad.device.type, enabled=False):
        return gradients(ctx, grad)


def _make_functions(run, save, gradients, functional=None) -> tuple:
    """run(*args) as an autograd.Function, for eager mode and for the transforms of torch.func: the
    form that these need costs fifty microseconds a call.

    save(ctx, args) keeps what gradients(ctx, grad) needs, which returns one for each argument.
    functional, where given, is what the transforms run instead, because vmap takes no operator that
    writes to its arguments: the result and, as further ones, what run would have written.
    """

    class Eager(torch.autograd.Function):
        @staticmethod
        def forward(ctx, *args):
            save(ctx, args)
            return run(*args)

        @staticmethod
        def backward(ctx, grad):
            return _outside_autocast(gradients, ctx, grad)

    class Transformed(torch.autograd.Function):
        generate_vmap_rule = True

        @staticmethod
        def forward(*args):
            return (functional or run)(*args)

        @staticmethod
        def setup_context(ctx, inputs, output):
            if functional is not None:
                ctx.mark_non_differentiable(*output[1:])
            save(ctx, inputs)

        @staticmethod
        def backward(ctx, grad, *_):
            return _outside_autocast(gradients, ctx, grad)

        @staticmethod
        def jvp(ctx, *tangents):
            raise RuntimeError(_NO_FORWARD_MODE)

    # Past Function.apply, which looks for the transforms that are known not to be there.
    return super(torch.autograd.Function, Eager).apply, Transformed.apply


def _transformed() -> bool:
    return torch._C._are_functorch_transforms_active() or _forward_ad._current_level >= 0
