"""Which modules are layers of torch.nn, whose calls a solution can leave to them."""

from torch import nn

_CONTAINERS = (nn.Sequential, nn.ModuleList, nn.ModuleDict, nn.ParameterList, nn.ParameterDict)


def layer_class(module: nn.Module) -> type[nn.Module] | None:
    """The class of torch.nn whose forward `module` runs; None for a container and for a module with
    a forward of its own. Parametrized layers, and subclasses that keep forward, are layers.
    """
    if isinstance(module, _CONTAINERS) or "forward" in vars(module):
        return None
    for kind in type(module).__mro__:
        if kind is nn.Module:
            return None
        if kind.__module__.startswith("torch.nn.modules"):
            return kind if type(module).forward is kind.forward else None
    return None


def is_container(module: nn.Module) -> bool:
    """Whether a module is a list, a dictionary or a sequence of others or of parameters."""
    return isinstance(module, _CONTAINERS)
