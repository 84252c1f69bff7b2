"""Writes build_libraries() of a solution file, which compiles ahead what would be compiled when
first called.
"""

import ast

from generator.statements import Statement

NAME = "build_libraries"
_TEMPLATE = '''\
def {name}(backward: bool = True, eval_mode: bool = True) -> None:
    """Compiles now what the file else compiles when first called: what forward calls, with
    `backward` what gradients do, with `eval_mode` what only eval mode does. Without nvcc: nothing.
    """
    if not _can_build_cuda():
        return
{calls}
'''


def build_text(own: list[Statement], num_folds: int) -> str:
    """The function, where there are such libraries among a solution's own statements; `num_folds`:
    how many chains of _FOLDED_NORMS it has.
    """
    names = [next(iter(statement.defines)) for statement in own if _loads(statement)]
    of_backward = [name for name in names if "gradient" in name or "backward" in name]
    calls = [f"    {name}()" for name in names if name not in of_backward]
    if of_backward:
        calls += ["    if backward:", *(f"        {name}()" for name in of_backward)]
    if num_folds:
        calls.append("    if eval_mode:")
        calls.append(f"        for number in range({num_folds}):")
        calls.append("            _folded_library(number)")
    return _TEMPLATE.format(name=NAME, calls="\n".join(calls)) if calls else ""


def _loads(statement: Statement) -> bool:
    """Is it a function without arguments that loads a library?"""
    node = statement.node
    loads = any(name.startswith("_load_operators") for name in statement.uses)
    return isinstance(node, ast.FunctionDef) and not node.args.args and loads
