"""Makes the kernels and what PyTorch wants to know of them an operator, once per process."""

import math as _math

import torch
import torch.autograd.forward_ad as _forward_ad
from torch.utils.flop_counter import register_flop_formula as _register_flop_formula

from generator.runtime.build import _NAMESPACE, _load_library
from generator.runtime.dispatch import _NO_FORWARD_MODE
from generator.runtime.generated import CPU_SOURCE, CUDA_SOURCE, OPERATOR_SOURCE


def _vector_arguments(count: int) -> str:
    """The schema's text for `count` per-channel operands. (Single arguments: autograd handles lists
    slowly.)
    """
    return "".join(f", Tensor vector{index}" for index in range(count))


def _refusing_forward_mode(implementation):
    """The operator's autograd drops tangents, so its result would count as constant. They cannot be
    seen from here under torch.func.jvp: every call in forward mode is refused.
    """

    def refusing(*args):
        if _forward_ad._current_level >= 0:
            raise RuntimeError(_NO_FORWARD_MODE)
        return implementation(*args)

    return refusing


def _count_flops(x_shape, weight_shape, *args, out_shape=None, **kwargs) -> int:
    """Of the convolution, as torch.utils.flop_counter counts PyTorch's own: two a product, those
    that padding crops included.
    """
    batch = x_shape[0] if len(x_shape) == 4 else 1
    return 2 * batch * _math.prod(x_shape[-2:]) * _math.prod(weight_shape)


def _register(
    call: str,
    schema: str,
    make_run,
    make_fake_run,
    make_traced,
    fake,
    setup_context,
    backward,
    count_flops=_count_flops,
):
    """(run, traced) of this text's namespace: loaded, defined and registered at the first call in a
    process, found again by later ones.

    call: what tells this operator's names from those of others in the same text.
    run: the kernels, as kernels_src/binding/ defines them. traced: the operator `schema` that
    compilers and exporters see, which calls them; make_traced(run) is its implementation, fake its
    shapes, setup_context and backward those of torch.library.register_autograd.
    """
    namespace = getattr(torch.ops, _NAMESPACE)
    if "_tconv_loaded" not in vars(namespace):
        _load_library(_NAMESPACE, (CPU_SOURCE, OPERATOR_SOURCE), CUDA_SOURCE, in_parts=True)
        namespace._tconv_loaded = True
    run, name = getattr(namespace, f"run{call}"), schema.partition("(")[0]
    if f"_tconv_registry{call}" not in vars(namespace):
        registry = torch.library.Library(_NAMESPACE, "FRAGMENT")
        # flexible_layout: any strides of the input are read in place, so a compiler need not
        # restore eager's.
        registry.define(schema, tags=(torch.Tag.pt2_compliant_tag, torch.Tag.flexible_layout))
        implementation = _refusing_forward_mode(make_traced(make_run(run.default)))
        for key in ("CPU", "CUDA"):
            registry.impl(name, implementation, key)
        qualified = f"{_NAMESPACE}::{name}"
        torch.library.register_fake(qualified, fake, lib=registry)
        torch.library.register_fake(f"{_NAMESPACE}::run{call}", make_fake_run(fake), lib=registry)
        torch.library.register_autograd(
            qualified, backward, setup_context=setup_context, lib=registry
        )
        _register_flop_formula([run, getattr(namespace, name)])(count_flops)
        setattr(namespace, f"_tconv_registry{call}", registry)  # keeps them alive
    return make_run(run.default), getattr(namespace, name).default
