"""Attributes of the reference's own modules whose plain values a trace turns into constants."""

import ast
from typing import Any

from generator.call_arguments import attribute_path
from generator.reference import Reference

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


def baked_attributes(reference: Reference) -> list[tuple[str, Any]]:
    """(expression, value) of every plain attribute that forward reads from the modules the file
    defines.
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
                full = f"{path}.{name}" if path else name
                found.append((attribute_path(reference.model, full), value))
    return found
