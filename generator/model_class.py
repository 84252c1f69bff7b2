"""Turns the statements of a reference file into those of its solution: Model becomes ModelNew."""

import ast
import re

from generator.constants import reachable_methods
from generator.errors import Refusal
from generator.reference import Reference
from generator.statements import Statement, needed, split

# What torch.nn offers besides layers; the layers must not be spelled with their full path in a
# solution.
_NOT_LAYERS = {"Module", "Parameter", "ParameterList", "ParameterDict", "ModuleList", "ModuleDict"}
_CLASS_DOC = '    """Model with forward as one fused operator; same parameters and state_dict."""'


def solution_statements(
    reference: Reference, input_name: str, forward_body: str
) -> list[Statement]:
    """Imports, constants, helpers, ModelNew, get_inputs and get_init_inputs, in the reference's
    order.

    ModelNew has the reference's own __init__; its forward is `forward_body`.
    """
    statements = []
    for statement in split(reference.source, reference.tree):
        node = statement.node
        if isinstance(node, ast.ClassDef) and node.name == "Model":
            text = _model_new(reference, node, input_name, forward_body)
        else:
            text = _Edits(reference.source, node, statement.text).apply()
        statements += split(text)
    roots = {"ModelNew", "get_inputs", "get_init_inputs"}
    for statement in statements:
        if isinstance(statement.node, ast.Assign | ast.AnnAssign):
            roots |= statement.defines
    return needed(statements, roots)


class _Edits:
    """Replacements by position inside one piece of the reference's source."""

    def __init__(self, source: str, node: ast.AST, text: str):
        self._lines = [line.encode() for line in source.splitlines()]
        last = node.end_lineno
        self._first = last - len(text.splitlines()) + 1
        self._last = last
        self._edits: list[tuple[int, int, int, bytes]] = []
        for child in ast.walk(node):
            self._visit(child)

    def _visit(self, node: ast.AST) -> None:
        if isinstance(node, ast.Name) and node.id == "Model":
            self._replace(node, "ModelNew")
        elif isinstance(node, ast.Attribute) and node.attr not in _NOT_LAYERS:
            owner = node.value
            if (
                isinstance(owner, ast.Attribute)
                and owner.attr == "nn"
                and isinstance(owner.value, ast.Name)
                and owner.value.id == "torch"
            ):
                self._replace(owner, "nn")
        elif isinstance(node, ast.Import) and len(node.names) == 1:
            name = node.names[0]
            if name.name == "torch.nn.functional" and name.asname:
                self._replace(node, f"from torch.nn import functional as {name.asname}")

    def _replace(self, node: ast.AST, text: str) -> None:
        if node.lineno == node.end_lineno:
            self._edits.append((node.lineno, node.col_offset, node.end_col_offset, text.encode()))

    def apply(self) -> str:
        for line, start, end, text in sorted(self._edits, reverse=True):
            old = self._lines[line - 1]
            self._lines[line - 1] = old[:start] + text + old[end:]
        return b"\n".join(self._lines[self._first - 1 : self._last]).decode()


def _model_new(reference: Reference, node: ast.ClassDef, input_name: str, forward_body: str) -> str:
    forward = [item for item in node.body if getattr(item, "name", None) == "forward"]
    if len(forward) != 1:
        raise Refusal(
            f"{reference.path}:{node.lineno}: class Model must define forward itself, once"
        )
    _refuse_side_effects(reference, forward[0])
    lines = reference.source.splitlines()
    start = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
    header_end = node.body[0].lineno - 1
    pieces = [_segment(reference, node, start, header_end), _CLASS_DOC]
    for item in _kept_members(node):
        first = min([item.lineno, *(d.lineno for d in getattr(item, "decorator_list", []))])
        while lines[first - 2].lstrip().startswith("#"):
            first -= 1
        pieces.append(_segment(reference, item, first, item.end_lineno))
    pieces.append(
        f"    def forward(self, {input_name}: torch.Tensor) -> torch.Tensor:\n{forward_body}"
    )
    pieces[0] = re.sub(r"\bclass\s+Model\b", "class ModelNew", pieces[0].rstrip(), count=1)
    return "\n\n".join([f"{pieces[0]}\n{pieces[1]}", *pieces[2:]])


def _segment(reference: Reference, node: ast.AST, first: int, last: int) -> str:
    text = "\n".join(reference.source.splitlines()[first - 1 : node.end_lineno])
    edited = _Edits(reference.source, node, text).apply()
    return "\n".join(edited.splitlines()[: last - first + 1])


def _kept_members(node: ast.ClassDef) -> list[ast.stmt]:
    """The class without its docstring, forward, and the methods that only forward calls."""
    dropped = reachable_methods(node, "forward") - reachable_methods(node, "__init__")
    return [
        item
        for item in node.body
        if getattr(item, "name", None) not in dropped and not _is_docstring(item)
    ]


def _is_docstring(item: ast.stmt) -> bool:
    return isinstance(item, ast.Expr) and isinstance(item.value, ast.Constant)


def _refuse_side_effects(reference: Reference, forward: ast.stmt) -> None:
    """Assignments to attributes leave no trace in the graph, so they would be lost."""
    for child in ast.walk(forward):
        if isinstance(child, ast.Attribute | ast.Subscript) and isinstance(child.ctx, ast.Store):
            raise Refusal(
                f"{reference.path}:{child.lineno}: forward assigns to `{ast.unparse(child)}`; "
                "a fused operator cannot keep side effects"
            )
