"""What the fused call walks past: the model's inner modules, which it never calls."""

from torch import nn as _nn

_HOOKS = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")


def _require_inner_modules(expected: tuple, *modules) -> None:
    """Refuses inner modules that would do something else than what is compiled in.

    `expected`: for each of `modules` its name and its class; the qualified name of a class that the
    reference defines. Raises ValueError where a module was replaced or has hooks.
    """
    for module, (name, kind) in zip(modules, expected):  # noqa: B905 - in every call
        made = type(module)
        if made is kind or made.__qualname__ == kind or _runs_forward_of(made, kind):
            # The dictionary, for an attribute of a module costs three times as much.
            own = module.__dict__
            if not (
                own["_forward_hooks"]
                or own["_forward_pre_hooks"]
                or own["_backward_hooks"]
                or own["_backward_pre_hooks"]
                or "forward" in own
            ):
                continue
        _refuse_inner_module(name, kind, module)


def _runs_forward_of(made, kind) -> bool:
    """Whether `made` is a subclass of `kind` that leaves its forward alone, as the classes of
    parametrized modules are.
    """
    for base in made.__mro__:
        if base is kind or base.__qualname__ == kind:
            return made.forward is base.forward and made.__call__ is _nn.Module.__call__
    return False


def _refuse_inner_module(name, kind, module) -> None:
    wanted = kind if isinstance(kind, str) else kind.__name__
    made = type(module)
    if not (made is kind or made.__qualname__ == kind or _runs_forward_of(made, kind)):
        raise ValueError(
            f"this solution was generated for a {wanted} as {name}, the model has a "
            f"{made.__name__}, which the fused operator would not call: generate it again from a "
            "reference that has it"
        )
    if "forward" in module.__dict__:
        raise ValueError(f"{name} has a forward of its own, which the fused operator cannot call")
    hooks = [hook for hook in _HOOKS if module.__dict__[hook]]
    raise ValueError(
        f"{name} ({made.__name__}) has {hooks[0].strip('_').replace('_', ' ')}, which the fused "
        "operator cannot run: remove them (pruning: prune.remove; old weight_norm and "
        "spectral_norm: those of torch's nn.utils.parametrizations work)"
    )
