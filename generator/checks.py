"""What was compiled into a solution, which its model must still have at construction and at every
call.
"""

import dataclasses
import inspect
from typing import Any

import torch
from torch import nn
from torch.utils._sympy.printers import PythonPrinter

from generator import ops
from generator.calls import Modules
from generator.errors import Refusal
from generator.expressions import module_path, place_text
from generator.front.layers import is_container, layer_class
from generator.front.watch import MISSING, Watch
from generator.fuse import Fused, Plan, hooks_of
from generator.reference import Reference
from generator.runtime.described import _described as described
from generator.runtime.described import _is_plain as is_plain
from generator.step_table import literal

# Attributes that decide what a layer does and that the kernels do not read at the call.
_BAKED: dict[type, tuple[str, ...]] = {
    nn.ConvTranspose1d: ("padding_mode",),
    nn.ConvTranspose2d: ("padding_mode",),
    nn.ConvTranspose3d: ("padding_mode",),
    nn.MaxPool2d: ("return_indices",),
} | {record.module: record.attributes for record in ops.UNARY if record.module is not None}


@dataclasses.dataclass(frozen=True)
class Constant:
    """`name` for readers, `expression` in forward, `value` as it was traced. `at_call`: only there,
    because an input decides it.
    """

    name: str
    expression: str
    value: Any
    at_call: bool = False


@dataclasses.dataclass
class Checks:
    """`inner`: names of modules that forward walks past, with the text of their classes; `called`:
    names of the layers that it calls; `sizes`: shapes of parameters and numbers of layers, where
    forward computes with sizes.
    """

    constants: list[Constant]
    inner: list[tuple[str, str]]
    called: list[str]
    sizes: dict[str, Any]


def checks(reference: Reference, plans: list[Plan], watch: Watch) -> Checks:
    """All that the plans of a reference rest on. Raises Refusal for a module with hooks that no
    solution can run.
    """
    called = _called_layers(plans)
    fused = {node.path for plan in plans for item in plan.fused for node in item.nodes if node.path}
    inner = _walked_past(reference, watch, called, fused)
    constants = [
        *_read_attributes(reference, watch),
        *_container_sizes(reference),
        *_layer_attributes(reference, plans, inner, fused),
        *_input_constants(reference),
        *_branches(reference, plans, watch),
    ]
    unique = {constant.expression: constant for constant in constants}
    sizes = _sizes(reference) if watch.sizes else {}
    unique |= {c.expression: c for c in _fixed_sizes(plans, all_of_them=bool(watch.sizes))}
    return Checks(list(unique.values()), inner, sorted(called), sizes)


def _called_layers(plans: list[Plan]) -> set[str]:
    return {
        item.path
        for plan in plans
        for item in plan.items
        if not isinstance(item, Fused) and item.op == "layer"
    }


def _walked_past(
    reference: Reference, watch: Watch, called: set[str], fused: set[str]
) -> list[tuple[str, str]]:
    inner = []
    within = called | fused
    for name, module in reference.model.named_modules(remove_duplicate=False):
        if not name or module not in watch.calls or name in called:
            continue
        if any(name.startswith(f"{outer}.") for outer in within):
            continue
        if hooks := hooks_of(module):
            raise Refusal(
                f"{reference.path}: {name} ({type(module).__name__}) has {hooks[0]}, which no "
                "solution can run: its forward is taken apart"
            )
        kind = layer_class(module) or type(module)
        is_known = getattr(nn, kind.__name__, None) is kind
        inner.append((name, f"_nn.{kind.__name__}" if is_known else repr(kind.__qualname__)))
    return inner


def _attribute(path: str, name: str, value: Any) -> Constant:
    shown = f"{path}.{name}" if path else name
    owner = module_path(path)
    if value is MISSING:
        return Constant(shown, f'getattr({owner}, "{name}", "absent")', "absent")
    expression = f"{owner}.{name}"
    if not is_plain(value):
        return Constant(shown, f"_described({expression})", described(value))
    return Constant(shown, expression, value)


def _read_attributes(reference: Reference, watch: Watch) -> list[Constant]:
    order = {path: place for place, (path, _) in enumerate(reference.model.named_modules())}
    found = []
    for path, name in sorted(watch.read, key=lambda key: (order[key[0]], key[1])):
        kind = type(reference.model.get_submodule(path))
        known = inspect.getattr_static(kind, name, None)
        if not callable(known) and not isinstance(known, classmethod):
            found.append(_attribute(path, name, watch.read[path, name]))
    return found


def _container_sizes(reference: Reference) -> list[Constant]:
    """The length of every sequence and list, the keys of every dictionary."""
    found = []
    for path, module in reference.model.named_modules():
        if not path or not is_container(module):
            continue
        owner = module_path(path)
        if isinstance(module, nn.ParameterList | nn.ParameterDict):
            found.append(Constant(f"len({path})", f"len({owner})", len(module)))
        elif isinstance(module, nn.ModuleDict):
            keys = tuple(module._modules)
            found.append(Constant(f"{path}.keys()", f"tuple({owner}._modules)", keys))
        else:
            size = len(module._modules)
            found.append(Constant(f"len({path})", f"len({owner}._modules)", size))
    return found


def _layer_attributes(
    reference: Reference, plans: list[Plan], inner: list[tuple[str, str]], fused: set[str]
) -> list[Constant]:
    found = []
    paths = [n.path for p in plans for f in p.fused for n in f.nodes if n.path]
    paths += [name for name, _ in inner if name not in fused]
    for path in paths:
        module = reference.model.get_submodule(path)
        kind = layer_class(module)
        if kind is None:
            continue
        names = _BAKED.get(kind, ()) if path in fused else _plain_names(module)
        found += [_attribute(path, name, getattr(module, name)) for name in names]
    return found


def _plain_names(module: nn.Module) -> list[str]:
    """What a layer's constructor set."""
    return [
        name
        for name, value in vars(module).items()
        if not name.startswith("_") and name not in ("training", "inplace") and is_plain(value)
    ]


def _input_constants(reference: Reference) -> list[Constant]:
    """Arguments of forward that are no tensors."""
    found = []
    for name, value in reference.bound_arguments().items():
        if isinstance(value, torch.Tensor):
            continue
        if isinstance(value, list | tuple | dict):
            found.append(Constant(f"len({name})", f"len({name})", len(value), at_call=True))
        elif is_plain(value):
            found.append(Constant(name, name, value, at_call=True))
    return found


def _inputs(plans: list[Plan]) -> list:
    found = {}
    for plan in plans:
        for item in plan.items:
            for node in item.nodes if isinstance(item, Fused) else [item]:
                for value in node.operands():
                    if value.kind == "input" and value.shape is not None:
                        found.setdefault(value.source, value)
    return list(found.values())


def _fixed_sizes(plans: list[Plan], all_of_them: bool) -> list[Constant]:
    """Sizes of inputs that the trace took for constants: the batch and images, which nothing but
    forward itself can have fixed, and else all, with the number of dimensions.
    """
    found = []
    for value in _inputs(plans):
        name = place_text(value.source.argument, value.source.keys)
        dimensions = len(value.shape)
        if all_of_them:
            found.append(Constant(f"{name}.dim()", f"{name}.dim()", dimensions, at_call=True))
        found += [
            Constant(f"{name}.size({axis})", f"{name}.size({axis})", size, at_call=True)
            for axis, size in enumerate(value.shape)
            if isinstance(size, int) and (all_of_them or axis != 1)
        ]
    return found


def _branches(reference: Reference, plans: list[Plan], watch: Watch) -> list[Constant]:
    """Conditions on sizes, as they were found."""
    sizes = {}
    for value in _inputs(plans):
        name = place_text(value.source.argument, value.source.keys)
        for axis, size in enumerate(value.shape):
            if isinstance(size, str):
                sizes.setdefault(size, f"{name}.size({axis})")
    found = []
    for line, condition, value in watch.branches:
        names = {str(symbol) for symbol in condition.free_symbols}
        if not names <= set(sizes):
            raise Refusal(f"{reference.path}:{line}: forward decides by a size that no input has")
        text = PythonPrinter().doprint(condition)
        for name in sorted(names, key=len, reverse=True):
            text = text.replace(name, sizes[name])
        found.append(Constant(text, f"bool({text})", value, at_call=True))
    return found


def _sizes(reference: Reference) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, tensor in reference.model.state_dict().items():
        found[name] = tuple(tensor.shape)
    for path, module in reference.model.named_modules():
        if path and layer_class(module) is not None:
            for name in _plain_names(module):
                found[f"{path}.{name}"] = getattr(module, name)
    return found


def constants_text(made: Checks) -> dict[str, str]:
    """The values that forward compares the model with, as constants of the solution."""
    texts = {}
    if made.inner:
        rows = "".join(f"    ({literal(name)}, {kind}),\n" for name, kind in made.inner)
        texts["_INNER"] = f"(\n{rows})"
    if made.constants:
        names = [literal(constant.name) for constant in made.constants]
        values = [written(constant.value) for constant in made.constants]
        texts["_COMPILED_NAMES"] = f"({', '.join(names)},)"
        texts["_COMPILED_IN"] = f"({', '.join(values)},)"
    if made.sizes:
        rows = "".join(f"    {name!r}: {written(value)},\n" for name, value in made.sizes.items())
        texts["_SIZES"] = f"{{\n{rows}}}"
    return texts


def written(value: Any) -> str:
    """A plain value as Python source."""
    if isinstance(value, list | tuple | set | frozenset):
        items = ", ".join(map(written, value))
        if isinstance(value, list):
            return f"[{items}]"
        if isinstance(value, tuple):
            return f"({items}{',' if len(value) == 1 else ''})"
        return f"{type(value).__name__}([{items}])"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{written(k)}: {written(v)}' for k, v in value.items())}}}"
    return literal(value)


def at_call(made: Checks, modules: Modules) -> list[str]:
    """The statements that forward begins with."""
    lines = []
    if made.inner:
        paths = [modules.names.get(name) or module_path(name) for name, _ in made.inner]
        lines.append(_call("_require_inner_modules", "_INNER", *paths))
    if made.constants:
        given = [constant.expression for constant in made.constants]
        for path, name in modules.names.items():
            owner = module_path(path)
            given = [expression.replace(f"{owner}.", f"{name}.") for expression in given]
        lines.append(_call("_require_constants", "_COMPILED_NAMES", "_COMPILED_IN", *given))
    return lines


def _call(function: str, *arguments: str) -> str:
    lines = "".join(f"    {argument},\n" for argument in arguments)
    return f"{function}(\n{lines})"


def at_construction(made: Checks) -> str:
    """A function that compares a model that was just constructed; empty where nothing is to be."""
    lines = []
    if made.called:
        lines.append(f"_require_modules(self, {tuple(made.called)!r})")
    if made.inner:
        paths = [module_path(name) for name, _ in made.inner]
        lines.append(_call("_require_inner_modules", "_INNER", *paths))
    kept = [place for place, constant in enumerate(made.constants) if not constant.at_call]
    if kept:
        given = [made.constants[place].expression for place in kept]
        parts = ["_COMPILED_NAMES", "_COMPILED_IN"]
        if len(kept) < len(made.constants):
            parts = [f"tuple({part}[place] for place in {kept!r})" for part in parts]
        lines.append(_call("_require_constants", *parts, *given))
    if made.sizes:
        lines.append("_require_sizes(self, _SIZES)")
    if not lines:
        return ""
    body = "\n".join(f"    {line}" for text in lines for line in text.splitlines())
    return f"def _require_compiled_in(self) -> None:\n{body}"


def same_modes(watch: Watch) -> list[Constant]:
    """Of several modules by whose mode forward decides, that they have the same."""
    first, *others = sorted(watch.modes) or [""]
    flag = f"{module_path(first)}.training"
    return [
        Constant(
            f"{path}.training == {first or 'model'}.training",
            f"{module_path(path)}.training == {flag}",
            True,
            at_call=True,
        )
        for path in others
    ]
