"""Tails in the body of ModelNew.forward: a call of ours, and PyTorch's operators where it did not
run.
"""

import textwrap
from typing import Any

from generator.calls import vector_text
from generator.expressions import Expressions, attribute_path
from generator.fuse import Fused, Plan
from generator.ir import Node, Value
from generator.kernels import Kernels
from generator.reference import Reference
from generator.tails import keeps_channels


class TailTexts:
    """`items`: those of a plan, the nodes of every tail one behind the other; `done`: the variable
    that says whether the kernels ran.
    """

    def __init__(
        self,
        reference: Reference,
        plan: Plan,
        kernels: Kernels,
        text: Expressions,
        taken: set[str],
    ):
        self._reference, self._text = reference, text
        self._numbers = {headers: number for number, headers in enumerate(kernels.tails)}
        tails = plan.tails if kernels.tails else []
        self._of_first = {tail.conv: tail for tail in tails}
        self._of_last = {tail.nodes[-1]: tail for tail in tails}
        self.items = gathered(plan.items, [tail.nodes for tail in tails])
        self._open: tuple[Fused, int, list[str]] | None = None
        self._kept: list[str] = []
        self.done = "done"
        while self.done in taken:
            self.done += "_"

    @property
    def are_open(self) -> bool:
        """Is the next item a tail's own, or the last one was?"""
        return self._open is not None

    def begin(self, item: Any, place: int) -> None:
        """Ahead of the text of an item, whose first line will have this place."""
        tail = self._of_first.get(item)
        if tail is not None:
            self._open = tail, place, self._arguments(tail)

    def keep(self, value: Value) -> bool:
        """Is `value`, read for the last time, to keep its name until the tail ends? A result that
        took the name of a size would have it overwritten before PyTorch's operators read it.
        """
        if self._open is None:
            return False
        tail = self._open[0]
        own = value is tail.conv.args[0] or any(value is node.result for node in tail.nodes)
        if not own:
            self._kept.append(self._text.names[value])
        return not own

    def end(self, item: Any, lines: list[str], result: str | None, within: bool) -> list[str]:
        """Behind it: puts the call in front of a tail's own statements, of which the last one's
        result has that name. within: a block of a fold. Returns the names that are free again.
        """
        if self._of_last.get(item) is None:
            return []
        (tail, place, arguments), self._open = self._open, None
        targets = f"{self.done}, {result or '_'}"
        call = ", ".join([str(self._numbers[tail.headers]), *arguments])
        head = f"{targets} = _tail({call})\nif not {self.done}:"
        indent = "    " * (len(tail.conv.regions) + within)
        lines.insert(place, textwrap.indent(head, indent))
        views = [node for node in tail.elementwise if keeps_channels(node, node.args[0])]
        if views and result is not None:
            self._text.names[tail.result] = result
            view = self._text.call(views[-1].op, (tail.result, *views[-1].args[1:]), {})
            lines.append(textwrap.indent(f"else:\n    {result} = {view}", indent))
        kept, self._kept = self._kept, []
        return kept

    def _arguments(self, tail: Fused) -> list[str]:
        """Texts of the operand, the layer or None, the steps' operands and their layers, each with
        what it was when it was read.
        """
        operand = self._text.argument(tail.conv.args[0])
        vectors = [vector_text(v, f"{operand}.shape[1]", self._text) for v in tail.vectors]
        model, first = self._reference.model, tail.conv
        core = attribute_path(model, first.path) if first.path else "None"
        layers = layers_text(self._reference, tail.elementwise)
        return [operand, core, _tuple(vectors), layers]


def layers_text(reference: Reference, nodes: list[Node]) -> str:
    """The layers among nodes, each with what it was when it was read."""
    model = reference.model
    paths = [node.path for node in nodes if node.path]
    given = [(attribute_path(model, path), repr(model.get_submodule(path))) for path in paths]
    return _tuple([f"({layer}, {was!r})" for layer, was in given])


def gathered(items: list, groups: list[list]) -> list:
    """What stands between the items of a group reads none of their results: it comes first."""
    members = {item: group for group in groups for item in group}
    found = []
    for item in items:
        group = members.get(item)
        if group is None:
            found.append(item)
        elif group[-1] is item:
            found += group
    return found


def _tuple(texts: list[str]) -> str:
    return f"({', '.join(texts)}{',' if len(texts) == 1 else ''})"
