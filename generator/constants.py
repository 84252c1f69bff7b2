"""What a trace turns into constants: plain attributes of modules, sizes of containers."""

import ast
from typing import Any

from torch import nn

from generator.call_arguments import module_path
from generator.reference import Reference

_CONTAINERS = nn.Sequential | nn.ModuleList | nn.ModuleDict
_PLAIN = (bool, int, float, str, tuple, list, type(None))


def reachable_methods(node: ast.ClassDef, start: str) -> set[str]:
    """Names of the methods of a class that `start` refers to, directly or not, with itself."""
    methods = {item.name: item for item in node.body if isinstance(item, ast.FunctionDef)}
    found, waiting = set(), [start]
    while waiting:
        name = waiting.pop()
        if name in methods and name not in found:
            found.add(name)
            waiting += [c.attr for c in ast.walk(methods[name]) if isinstance(c, ast.Attribute)]
    return found


def baked_attribute(target: str, name: str, value: Any) -> tuple[str, str, Any]:
    """(name for readers, expression, value) of an attribute of the model's module `target`."""
    return f"{target}.{name}" if target else name, f"{module_path(target)}.{name}", value


def container_sizes(reference: Reference) -> list[tuple[str, str, Any]]:
    """(name, expression, value) of the length of every container that holds a called module."""
    paths: dict[str, None] = {}
    for name in reference.called:
        parts = name.split(".")
        paths |= dict.fromkeys(".".join(parts[:count]) for count in range(1, len(parts)))
    return [
        (f"len({path})", f"len({module_path(path)}._modules)", len(module._modules))
        for path in paths
        if isinstance(module := reference.model.get_submodule(path), _CONTAINERS)
    ]


def baked_attributes(reference: Reference) -> list[tuple[str, str, Any]]:
    """(name, expression, value) of every plain attribute that forward reads from the modules the
    file defines.
    """
    classes = {node.name: node for node in reference.tree.body if isinstance(node, ast.ClassDef)}
    found = []
    for path, module in reference.model.named_modules():
        node = classes.get(type(module).__name__)
        if node is None:
            continue
        methods = reachable_methods(node, "forward")
        names = {
            child.attr
            for item in node.body
            if getattr(item, "name", None) in methods
            for child in ast.walk(item)
            if isinstance(child, ast.Attribute)
            and isinstance(child.value, ast.Name)
            and child.value.id == "self"
        }
        for name in sorted(names - {"training"}):
            value = getattr(module, name, _PLAIN)
            if isinstance(value, _PLAIN) and value is not _PLAIN:
                found.append(baked_attribute(path, name, value))
    return found
