"""From torch.export's graph to the generator's own: calls of layers found again, switches as marks
on nodes, tensors by where they come from.
"""

import operator
import re
from collections.abc import Iterable
from typing import Any

import torch
from torch import fx, nn
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, OutputKind
from torch.utils import _pytree

from generator import ir
from generator.errors import Refusal
from generator.front.layers import layer_class
from generator.front.watch import Watch
from generator.reference import Reference

_CHECKS = (
    "_assert",
    "sym_constrain_range",
    "_check",
    "aten._assert",
)
_STORED = {InputKind.PARAMETER: "parameter", InputKind.BUFFER: "buffer"}
_LITERAL_VALUES = 4096


def lower(reference: Reference, program: ExportedProgram, watch: Watch) -> ir.Graph:
    """The graph of one mode. Raises Refusal for what has no name in a solution."""
    return _Lowering(reference, program, watch).graph()


class _Lowering:
    def __init__(self, reference: Reference, program: ExportedProgram, watch: Watch):
        self._reference, self._program, self._watch = reference, program, watch
        self._nodes: list[ir.Node] = []
        self._stacks: dict[ir.Node, tuple] = {}
        self._line: int | None = None

    def graph(self) -> ir.Graph:
        program = self._program
        graph = program.graph_module.graph
        known = self._inputs(graph)
        results = self._walk(program.graph_module, known, ())
        kinds = [spec.kind for spec in program.graph_signature.output_specs]
        flat = [
            value
            for value, kind in zip(results, kinds, strict=True)
            if kind == OutputKind.USER_OUTPUT
        ]
        outputs = _pytree.tree_unflatten(flat, program.call_spec.out_spec)
        self._require_writable(outputs)
        lowered = ir.Graph(self._nodes, outputs)
        _lift_layers(self._reference, self._watch, lowered, self._stacks)
        _drop_unused(lowered)
        return lowered

    def _refuse(self, why: str) -> None:
        line = self._line or self._reference.forward_line
        raise Refusal(f"{self._reference.path}:{line}: {why}")

    def _require_writable(self, outputs: Any) -> None:
        if isinstance(outputs, ir.Value) or outputs is None:
            return
        named = hasattr(outputs, "_fields") or type(outputs).__module__ == "torch.return_types"
        home = self._reference.namespace.get(type(outputs).__name__)
        if type(outputs) in (tuple, list) or (
            named and (home is type(outputs) or type(outputs).__module__ == "torch.return_types")
        ):
            for item in outputs:
                self._require_writable(item)
        elif type(outputs) is dict and all(isinstance(key, str | int) for key in outputs):
            self._require_writable(list(outputs.values()))
        elif type(outputs) not in (bool, int, float, str):
            self._refuse(
                f"forward returns a {type(outputs).__name__}; tensors, numbers, and tuples, lists "
                "and dicts of them can be written"
            )

    # Where values come from.

    def _inputs(self, graph: fx.Graph) -> dict[fx.Node, Any]:
        places = list(_places(self._reference.bound_arguments()))
        given = iter(places)
        known: dict[fx.Node, Any] = {}
        nodes = [node for node in graph.nodes if node.op == "placeholder"]
        for node, spec in zip(nodes, self._program.graph_signature.input_specs, strict=True):
            if spec.kind == InputKind.USER_INPUT:
                place, leaf = next(given)
                known[node] = self._value(node, "input", place)
                if not isinstance(leaf, torch.Tensor):
                    known[node] = leaf
            elif spec.kind in _STORED:
                known[node] = self._value(node, _STORED[spec.kind], spec.target)
            elif spec.kind == InputKind.CONSTANT_TENSOR:
                kind, source = self._constant(self._program.constants[spec.target])
                known[node] = self._value(node, kind, source)
            else:
                self._refuse(f"forward uses {spec.target}, an object that no solution can hold")
        return known

    def _value(self, node: fx.Node, kind: str, source: Any) -> ir.Value:
        value = ir.Value(kind, source)
        made = node.meta.get("val")
        if isinstance(made, torch.Tensor):
            value.shape = tuple(s if isinstance(s, int) else str(s) for s in made.shape)
            value.dtype = made.dtype
        return value

    def _constant(self, tensor: torch.Tensor) -> tuple[str, Any]:
        for path, module in self._reference.model.named_modules():
            for name, held in vars(module).items():
                if held is tensor:
                    return "attribute", (path, name, ())
                for key, item in _items(held):
                    if item is tensor:
                        return "attribute", (path, name, (key,))
        for name, held in self._reference.namespace.items():
            if held is tensor:
                return "global", (name, ())
            for key, item in _items(held):
                if item is tensor and not name.startswith("__"):
                    return "global", (name, (key,))
        if tensor.numel() > _LITERAL_VALUES:
            self._refuse(
                f"forward makes a tensor of {tensor.numel()} constants; keep it as a buffer"
            )
        return "literal", tensor

    # Nodes.

    def _walk(
        self, module: fx.GraphModule, known: dict[fx.Node, Any], regions: tuple[ir.Region, ...]
    ) -> list:
        for node in module.graph.nodes:
            if node.op == "output":
                return list(ir.replaced(node.args[0], lambda leaf: known.get(leaf, leaf)))
            if node.op == "call_function":
                self._line = _line(node, str(self._reference.path)) or self._line
                known[node] = self._call(module, node, known, regions)
            elif node.op == "get_attr":
                known[node] = getattr(module, node.target)
        raise AssertionError("a graph without output")

    def _call(self, module: fx.GraphModule, node: fx.Node, known: dict, regions: tuple) -> Any:
        args, kwargs = ir.replaced((node.args, dict(node.kwargs)), lambda leaf: _known(leaf, known))
        name = str(node.target)
        if name == "wrap_with_set_grad_enabled":
            enabled, inner, *rest = args
            return self._inline(inner, rest, (*regions, ir.Region("grad", (enabled,))))
        if name == "wrap_with_autocast":
            device, dtype, enabled, caches, inner, *rest = args
            region = ir.Region("autocast", self._autocast(device, dtype, enabled, caches))
            return self._inline(inner, rest, (*regions, region))
        if isinstance(node.target, torch._ops.HigherOrderOperator):
            self._refuse(f"{name} has no counterpart in a solution")
        if node.target is operator.getitem and isinstance(args[0], list | tuple):
            return args[0][args[1]]
        if name.startswith(_CHECKS) or getattr(node.target, "__name__", "").startswith(_CHECKS):
            return None
        if name == "aten.detach_.default" and _is_literal(args[0]):
            return args[0]
        if name == "aten.lift_fresh_copy.default" and _is_literal(args[0]):
            return args[0]
        made = ir.Node(_name_of(node.target), args, kwargs, self._value(node, "result", None))
        made.line, made.regions = _line(node, str(self._reference.path)), regions
        self._nodes.append(made)
        self._stacks[made] = tuple(
            (key, path) for key, (path, _) in node.meta.get("nn_module_stack", {}).items()
        )
        return made.result

    def _inline(self, inner: fx.GraphModule, given: list, regions: tuple) -> list:
        nodes = [node for node in inner.graph.nodes if node.op == "placeholder"]
        return self._walk(inner, dict(zip(nodes, given, strict=True)), regions)

    def _autocast(self, device: str, dtype: Any, enabled: bool, caches: Any) -> tuple:
        asked = [given for given in self._watch.autocasts if given[0] == device]
        if not enabled and any(on for _, _, on in asked):
            self._refuse(
                f"torch.autocast('{device}') cannot be traced on a machine without that device; "
                "autocast outside of the model works"
            )
        if any(given is None for _, given, _ in asked):
            dtype = None
        return device, dtype, enabled, caches


def _known(leaf: Any, known: dict) -> Any:
    return known[leaf] if isinstance(leaf, fx.Node) else leaf


def _is_literal(value: Any) -> bool:
    return isinstance(value, ir.Value) and value.kind == "literal"


def _items(held: Any) -> Iterable[tuple[Any, Any]]:
    if isinstance(held, list | tuple):
        return enumerate(held)
    return held.items() if isinstance(held, dict) else ()


def _places(arguments: dict[str, Any]) -> Iterable[tuple[ir.Place, Any]]:
    """Every leaf of forward's arguments, in the order in which they are flattened."""
    for name, value in arguments.items():
        for keys, leaf in _pytree.tree_leaves_with_path(value):
            found = tuple(getattr(key, "idx", getattr(key, "key", None)) for key in keys)
            yield ir.Place(name, found), leaf


def _name_of(target: Any) -> str:
    if isinstance(target, torch._ops.OpOverload):
        return str(target) if target.namespace == "aten" else f"{target.namespace}::{target}"
    return f"python.{getattr(target, '__name__', target)}"


def _line(node: fx.Node, path: str) -> int | None:
    found = re.findall(rf'File "{re.escape(path)}", line (\d+)', node.meta.get("stack_trace") or "")
    return int(found[-1]) if found else None


def _lift_layers(
    reference: Reference, watch: Watch, graph: ir.Graph, stacks: dict[ir.Node, tuple]
) -> None:
    """Puts one node in the place of those of one call of a layer, where that can be called again
    with one tensor for one tensor.
    """
    groups: dict[tuple, list[ir.Node]] = {}
    for node in graph.nodes:
        key = _layer_call(reference.model, stacks[node])
        if key is not None:
            groups.setdefault(key, []).append(node)
    users = graph.users()
    for (path, _), nodes in groups.items():
        module = reference.model.get_submodule(path)
        calls = watch.calls.get(module, [])
        if not calls or not all(call.is_simple for call in calls):
            continue
        members = set(nodes)
        own = {node.result for node in nodes}
        given = {
            value
            for node in nodes
            for value in node.operands()
            if value not in own and value.shape is not None and not _is_of(value, path)
        }
        left = [v for v in own if any(user not in members for user in users.get(v, ()))]
        if len(given) != 1 or len(left) > 1 or len({node.regions for node in nodes}) > 1:
            continue
        result = left[0] if left else nodes[-1].result
        layer = ir.Node("layer", (given.pop(),), {}, result, path=path, inner=tuple(nodes))
        layer.layer, layer.regions = layer_class(module).__name__, nodes[0].regions
        layer.line = next((node.line for node in nodes if node.line), None)
        place = graph.nodes.index(nodes[-1])
        graph.nodes[place] = layer
        graph.nodes = [node for node in graph.nodes if node not in members]


def _layer_call(model: nn.Module, stack: tuple) -> tuple | None:
    """(path, keys that tell one call from another) of the outermost layer around a node."""
    for depth, (_, path) in enumerate(stack):
        path = path.partition("@")[0]
        try:
            module = model.get_submodule(path)
        except AttributeError:
            return None
        if module is not model and layer_class(module) is not None:
            return path, tuple(key for key, _ in stack[: depth + 1])
    return None


def _is_of(value: ir.Value, path: str) -> bool:
    """Whether a stored tensor belongs to the module `path` or to one inside it."""
    if value.kind in ("parameter", "buffer"):
        return value.source.startswith(f"{path}.")
    return value.kind == "attribute" and f"{value.source[0]}.".startswith(f"{path}.")


def _drop_unused(graph: ir.Graph) -> None:
    """Removes arithmetic of sizes that nothing reads."""
    while True:
        used = graph.users()
        kept = [
            node
            for node in graph.nodes
            if node.result in used or not (node.op.startswith(("python.", "aten.sym_")))
        ]
        if len(kept) == len(graph.nodes):
            return
        graph.nodes = kept
