"""Cuts Python source into module-level statements and picks those that are needed."""

import ast
import dataclasses


@dataclasses.dataclass
class Statement:
    """One module-level statement with its comments; names it binds and names it reads."""

    node: ast.stmt
    text: str
    defines: frozenset[str]
    uses: frozenset[str]

    @property
    def is_import(self) -> bool:
        return isinstance(self.node, ast.Import | ast.ImportFrom)

    @property
    def has_effect(self) -> bool:
        """Whether executing it may do more than define a function or a class."""
        if isinstance(self.node, ast.ImportFrom):
            return self.node.module == "__future__" or self.node.names[0].name == "*"
        kinds = ast.Import | ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
        return not isinstance(self.node, kinds)


def split(source: str, tree: ast.Module | None = None) -> list[Statement]:
    """The statements of a module in order, without its docstring; comments stay with the statement
    below them.
    """
    tree = tree or ast.parse(source)
    lines = source.split("\n")
    statements = []
    previous_end = 0
    for index, node in enumerate(tree.body):
        start = min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", []))]) - 1
        is_docstring = (
            index == 0
            and isinstance(node, ast.Expr)
            and isinstance(node.value, ast.Constant)
            and isinstance(node.value.value, str)
        )
        if not is_docstring:
            while start > previous_end and lines[start - 1].startswith("#"):
                start -= 1
            text = "\n".join(without_neighbours(lines[start : node.end_lineno], node, lines))
            statements.append(Statement(node, text, _defines(node), _uses(node)))
        previous_end = node.end_lineno or previous_end
    return statements


def without_neighbours(
    own: list[str], node: ast.stmt, lines: list[str], indent: str = ""
) -> list[str]:
    """The lines of a statement, edited or not, less what semicolons divide from it on its first and
    on its last one. lines: the module's; indent: of its block.
    """
    behind = lines[node.end_lineno - 1].encode()[node.end_col_offset :]
    if behind.lstrip().startswith(b";"):
        last = own[-1].encode()
        own = [*own[:-1], last[: len(last) - len(behind)].decode()]
    if lines[node.lineno - 1].encode()[: node.col_offset].strip():
        own = [indent + own[0].encode()[node.col_offset :].decode(), *own[1:]]
    return own


def needed(statements: list[Statement], roots: set[str]) -> list[Statement]:
    """The statements that define `roots` or what those read, transitively, in their order, and
    those that define nothing but do something.
    """
    acting = [statement for statement in statements if not statement.defines]
    wanted, found = set(roots), set()
    for statement in acting:
        wanted |= statement.uses
    while wanted:
        name = wanted.pop()
        found.add(name)
        for statement in statements:
            if name in statement.defines:
                wanted |= statement.uses - found
    return [s for s in statements if s.defines & found or not s.defines]


def _defines(node: ast.stmt) -> frozenset[str]:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return frozenset({node.name})
    names = set()
    for child in ast.walk(node):
        if isinstance(child, ast.alias):
            names.add((child.asname or child.name).partition(".")[0])
        elif isinstance(child, ast.Name) and isinstance(child.ctx, ast.Store):
            names.add(child.id)
    return frozenset(names)


def _uses(node: ast.stmt) -> frozenset[str]:
    return frozenset(
        child.id
        for child in ast.walk(node)
        if isinstance(child, ast.Name) and isinstance(child.ctx, ast.Load)
    )
