"""Forms of a call with gradients that read its result: dispatch.py's, which keep no result."""

import torch

from generator.runtime.dispatch import _NO_FORWARD_MODE, _outside_autocast


def _make_result_functions(run, save, gradients) -> tuple:
    """As _make_functions has them, but for save(ctx, args, result)."""

    class Eager(torch.autograd.Function):
        @staticmethod
        def forward(ctx, *args):
            result = run(*args)
            save(ctx, args, result)
            return result

        @staticmethod
        def backward(ctx, grad):
            return _outside_autocast(gradients, ctx, grad)

    class Transformed(torch.autograd.Function):
        generate_vmap_rule = True

        @staticmethod
        def forward(*args):
            return run(*args)

        @staticmethod
        def setup_context(ctx, inputs, output):
            save(ctx, inputs, output)

        @staticmethod
        def backward(ctx, grad):
            return _outside_autocast(gradients, ctx, grad)

        @staticmethod
        def jvp(ctx, *tangents):
            raise RuntimeError(_NO_FORWARD_MODE)

    # Past Function.apply, which looks for the transforms that are known not to be there.
    return super(torch.autograd.Function, Eager).apply, Transformed.apply
