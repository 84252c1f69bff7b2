"""What becomes of every operator of a reference, in words."""

import dataclasses
from collections.abc import Container
from pathlib import Path

from generator.calls import summary
from generator.errors import Refusal
from generator.extrema import extrema
from generator.fuse import Fused, Plan, label
from generator.ir import Node
from generator.layer_kinds import is_batch_norm, is_group_norm, is_ordinary_conv
from generator.program import Program, read_program
from generator.references import transposed_references
from generator.tails import CENTRED

_ORDINARY = (
    "but on Hopper the kernel without steps runs it where no gradient is wanted, its stride is one "
    "and its images are large or many"
)
_NORMALISED = (
    "; on Hopper a library of ours has kernels for it in training mode, and for its gradients, "
    "where its tensor is large; where no gradient is wanted they take along a softmax over an "
    "image's rows that alone reads it"
)
_GROUP_NORMALISED = (
    "; on Hopper a library of ours has kernels for it by itself, and for its gradients, where its "
    "tensor is large"
)
_EXTREMUM = "but on Hopper the kernel of {} forms it, and backward computes its result again"
_TAIL = "but on Hopper a kernel of ours runs {} where the tensor is large"
_IN_TRAINING = ", in training mode"  # of BatchNorm
_FOLDED = "; in eval mode, where no gradient is wanted, in the kernel of {}"
# Layers whose mean alone is asked for: mathematics would do without the convolution.
_MEANS = ("aten.mean.dim", "aten.sum.dim_IntList", "aten.adaptive_avg_pool2d.default")


@dataclasses.dataclass(frozen=True)
class Line:
    """One operator: its text, and whether it stays PyTorch's."""

    text: str
    is_left: bool


def explained(
    program: Program, norms: frozenset[str] | None = None, tails: Container | None = None
) -> list[Line]:
    """A line for each operator of forward in training mode, then for those that eval mode has
    otherwise. `norms`, `tails`: those that have a library; by default all that may.
    """
    norms = program.norms if norms is None else norms
    tails = program.tails if tails is None else tails
    lines = _lines(program, program.training, norms, tails)
    known = {line.text for line in lines}
    others = _lines(program, program.evaluation, norms, tails)
    more = [line for line in others if line.text not in known]
    lines += [Line(f"{line.text} (in eval mode)", line.is_left) for line in more]
    return lines


def report(program: Program) -> str:
    """All of it, for a reader at a terminal."""
    lines = [line.text for line in explained(program)]
    count = len(program.kernels)
    kernels = {0: "no kernel of ours", 1: "one kernel"}.get(count, f"{count} kernels")
    calls = sum(isinstance(item, Fused) for item in program.training.items)
    head = f"{program.reference.path}: {calls} fused calls, {kernels}"
    return "\n".join([head, *(f"  {line}" for line in [*lines, *shortcuts(program)])])


def table(folder: Path) -> str:
    """A row for each reference below a folder whose text names a transposed convolution: what runs
    in kernels of ours and what is left, in Markdown.
    """
    rows = ["| reference | in kernels of ours | left to PyTorch |", "| --- | --- | --- |"]
    for path in transposed_references(folder):
        name = path.relative_to(folder).as_posix()
        try:
            rows.append(f"| {name} | {' | '.join(_cells(read_program(path)))} |")
        except Refusal as refusal:
            rows.append(f"| {name} | refused | {str(refusal).replace('|', '/')} |")
    return "\n".join(rows)


def _cells(program: Program) -> tuple[str, str]:
    plan = program.training
    fused = [summary(item) for item in plan.items if isinstance(item, Fused)]
    left = [
        label(item)
        for item in plan.items
        if isinstance(item, Node) and not item.op.startswith(("python.", "aten.sym_"))
    ]
    return _counted(fused), _counted(left)


def _counted(names: list[str]) -> str:
    counts = {name: names.count(name) for name in names}
    return (
        ", ".join(f"{count} × {name}" if count > 1 else name for name, count in counts.items())
        or "–"
    )


def _lines(program: Program, plan: Plan, norms: frozenset[str], tails: Container) -> list[Line]:
    taken = [tail for tail in plan.tails if tail.headers in tails]
    tail_of = {node: tail for tail in taken for node in tail.nodes}
    reduced = extrema(plan).values() if program.reduces else ()
    convolved = {one.reducing[0]: summary(one.fused) for one in reduced}
    fold_of = {node: fold for fold in program.folds_of(plan) for node in fold.tail.nodes}
    lines = []
    for item in plan.items:
        if isinstance(item, Fused):
            index = list(program.kernels).index(item.headers)
            where = f"kernel {index}" if len(program.kernels) > 1 else "the kernel"
            for node in item.nodes:
                lines.append(
                    Line(f"{_place(node)}{label(node)}: in {where} of {summary(item)}", False)
                )
        elif not item.op.startswith(("python.", "aten.sym_")):
            why = plan.why[item]
            if program.ordinary and is_ordinary_conv(program.reference, item):
                why = _ORDINARY
            elif item in tail_of:
                why = _TAIL.format(summary(tail_of[item]))
                why += _IN_TRAINING * (tail_of[item].entry in ("kBatchNorm", CENTRED))
            elif "batch_norm" in norms and is_batch_norm(program.reference, item):
                why += _NORMALISED
            elif "group_norm" in norms and is_group_norm(program.reference, item):
                why += _GROUP_NORMALISED
            elif item in convolved:
                why = _EXTREMUM.format(convolved[item])
            if item in fold_of:
                why += _FOLDED.format(summary(fold_of[item]))
            lines.append(Line(f"{_place(item)}{label(item)}: left, {why}", True))
    for node in plan.read_through:
        said = "not computed, kernels read the parameter where it lies"
        lines.append(Line(f"{_place(node)}{label(node)}: {said}", False))
    return lines


def _place(node: Node) -> str:
    place = f"line {node.line}: " if node.line else ""
    return f"{place}{node.path} " if node.path else place


def shortcuts(program: Program) -> list[str]:
    """Sentences on convolutions that mathematics could leave out and the generator does not."""
    found = []
    for plan in program.plans[:1]:
        for fused in plan.fused:
            readers = [
                n for n in plan.items if isinstance(n, Node) and fused.result in n.operands()
            ]
            linear = all(step.kind in ("add", "sub", "mul", "div", "neg") for step in fused.steps)
            if fused.entry == "conv" and linear and readers and readers[0].op in _MEANS:
                found.append(
                    f"{label(readers[0])} of {summary(fused)} could be had from sums of the input, "
                    "without the convolution: it is computed, as the benchmark means it"
                )
    return found
