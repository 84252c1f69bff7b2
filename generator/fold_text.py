"""BatchNorm in eval mode in the body of ModelNew.forward: one call of ours, and where it did not
run the convolution's, then what stands behind it.
"""

import textwrap

from generator.calls import Modules, fold_text, given_to
from generator.expressions import Expressions, attribute_path
from generator.folds import Fold
from generator.fuse import Fused
from generator.ir import Node, Value
from generator.kernels import Kernels
from generator.reference import Reference
from generator.tail_text import layers_text


class FoldTexts:
    """`folds`: those of a plan; `done`: the variable that says whether the kernel ran."""

    def __init__(
        self,
        reference: Reference,
        folds: list[Fold],
        kernels: Kernels,
        text: Expressions,
        modules: Modules,
        done: str,
    ):
        self._reference, self._text, self._modules, self._done = reference, text, modules, done
        self._numbers = {key: number for number, key in enumerate(kernels.folds)}
        self._of_first = {fold.region: fold for fold in folds}
        self._of_last = {fold.items[-1]: fold for fold in folds}
        self._open: tuple[Fold, int, str] | None = None
        self._kept: list[str] = []
        self._behind: list[str] = []  # statements of Fold.behind

    @property
    def are_open(self) -> bool:
        """Is the next item a fold's own, or the last one was?"""
        return self._open is not None

    def begin(self, item: Fused | Node, place: int) -> None:
        """Ahead of the text of an item, whose first line will have this place."""
        fold = self._of_first.get(item)
        if fold is not None:
            self._open = fold, place, self._call(fold)

    def keep(self, value: Value) -> bool:
        """Is `value`, read for the last time, to keep its name until the fold ends? A result that
        took the name of an operand would have it overwritten before it is read again.
        """
        if self._open is None:
            return False
        fold = self._open[0]
        results = [node.result for node in (*fold.nodes, *fold.behind)]
        own = any(value is made for made in (given_to(fold.region)["input"], *results))
        if not own:
            self._kept.append(self._text.names[value])
        return not own

    def add(self, item: Fused | Node, statement: str) -> None:
        """The text of an item, without indentation."""
        if self._open is None:
            return
        fold, place, call = self._open
        if item is fold.tail.nodes[-1]:
            target = f"{self._done}, {self._text.names.get(item.result, '_')}"
            self._open = fold, place, f"{target} = {call}\nif not {self._done}:"
        elif item in fold.behind:
            self._behind.append(statement)

    def end(self, item: Fused | Node, lines: list[str]) -> list[str]:
        """Behind it: puts the call in front of a fold's own statements. Returns the names that are
        free again.
        """
        if item not in self._of_last:
            return []
        (fold, place, head), self._open = self._open, None
        indent = "    " * len(fold.region.conv.regions)
        lines.insert(place, textwrap.indent(head, indent))
        if fold.behind:
            behind = textwrap.indent("\n".join(self._behind), "    ")
            lines.append(textwrap.indent(f"else:\n{behind}", indent))
        kept, self._kept, self._behind = self._kept, [], []
        return kept

    def _call(self, fold: Fold) -> str:
        norm, *steps = fold.tail.nodes
        layer = attribute_path(self._reference.model, norm.path)
        behind = layers_text(self._reference, steps)
        given = str(self._numbers[fold.key]), layer, behind
        return fold_text(fold.region, given, self._text, self._modules).rstrip()
