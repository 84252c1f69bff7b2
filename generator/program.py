"""Everything that is decided about one reference before a line of its solution is written."""

import contextlib
import dataclasses
from collections.abc import Iterator
from pathlib import Path

import torch

from generator.calls import joins_columns, pairs_rows
from generator.checks import Checks, checks
from generator.errors import Refusal
from generator.extrema import extrema
from generator.folds import Fold, fold_of
from generator.front.export import export
from generator.front.lower import lower
from generator.front.watch import Watch
from generator.fuse import STEPLESS, Fused, Plan, fuse, require_transposed
from generator.layer_kinds import (
    is_batch_norm,
    is_group_norm,
    is_ordinary_conv,
)
from generator.reference import Reference, load_reference


@dataclasses.dataclass
class Program:
    """`training` and `evaluation`: the plans of the two modes; `kernels`: one call of ours for each
    kernel that differs from the others, by what makes it differ.
    """

    reference: Reference
    training: Plan
    evaluation: Plan
    watch: Watch
    checks: Checks
    kernels: dict[tuple, Fused]

    @property
    def plans(self) -> list[Plan]:
        return [self.training, self.evaluation]

    @property
    def calls(self) -> list[Fused]:
        """All calls of ours, of both modes."""
        return [fused for plan in self.plans for fused in plan.fused]

    @property
    def ordinary(self) -> bool:
        """May a kernel of ours serve ordinary convolutions, too?"""
        items = [item for plan in self.plans for item in plan.items if not isinstance(item, Fused)]
        return STEPLESS in self.kernels and any(
            is_ordinary_conv(self.reference, item) for item in items
        )

    @property
    def reduces(self) -> bool:
        """May kernels of ours form extrema over their channels? Not where rows may be paired or
        columns joined, of volumes, and where a step keeps a value for later: accumulators and those
        epilogues leave no registers for another.
        """
        kernels = self.kernels.values()
        alone = all(fused.entry == "conv" and not fused.whole for fused in kernels)
        keeps = any(step.parts for fused in kernels for step in fused.steps)
        forms = any(f.dimensions == 3 or pairs_rows(f) or joins_columns(f) for f in self.calls)
        return alone and not keeps and not forms and any(extrema(plan) for plan in self.plans)

    @property
    def tails(self) -> dict[tuple, Fused]:
        """Tails that a library of ours may run, by what makes one differ from the others: one of
        each.
        """
        found = (tail for plan in self.plans for tail in plan.tails)
        return {tail.headers: tail for tail in found} if self.kernels else {}

    @property
    def folds(self) -> dict[tuple, Fold]:
        """BatchNorms that eval mode may run in a kernel of a convolution, by what makes one differ
        from the others: one of each. Not beside extrema, whose epilogues have no registers left.
        """
        found = (fold for plan in self.plans for fold in self.folds_of(plan))
        return {fold.key: fold for fold in found}

    def folds_of(self, plan: Plan) -> list[Fold]:
        """Those of a plan."""
        if self.reduces:
            return []
        pairs = plan.normed.items()
        found = [fold_of(self.reference, region, tail, plan) for region, tail in pairs]
        return [fold for fold in found if fold is not None]

    @property
    def norms(self) -> frozenset[str]:
        """The norms that kernels of ours may serve, too, by the names of their libraries: a
        BatchNorm or a GroupNorm that no kernel has taken along, and no tail begins with.
        """
        of_tails = {tail.conv for plan in self.plans for tail in plan.tails}
        items = [item for plan in self.plans for item in plan.items if not isinstance(item, Fused)]
        items = [item for item in items if item not in of_tails]
        found = set()
        if self.kernels and any(is_batch_norm(self.reference, item) for item in items):
            found.add("batch_norm")
        if self.kernels and any(is_group_norm(self.reference, item) for item in items):
            found.add("group_norm")
        return frozenset(found)


def read_program(path: Path) -> Program:
    """Loads, traces and fuses. Raises Refusal by name and line."""
    return program_of(load_reference(path))


def program_of(reference: Reference) -> Program:
    """The same of a reference that is loaded."""
    plans, watch = [], Watch()
    for training in (True, False):
        exported, seen = export(reference, training)
        graph = lower(reference, exported, seen)
        require_transposed(reference, graph)
        plans.append(fuse(reference, graph, seen))
        watch.merge(seen)
    _require_a_call(reference, plans)
    kernels: dict[tuple, Fused] = {}
    for plan in plans:
        for fused in plan.fused:
            kernels.setdefault(fused.headers, fused)
    made = checks(reference, plans, watch)
    return Program(reference, *plans, watch, made, kernels)


def _require_a_call(reference: Reference, plans: list[Plan]) -> None:
    """Refuses a file without any call of ours where a hook alone is the reason."""
    if any(plan.fused for plan in plans):
        return
    for plan in plans:
        for node, why in plan.why.items():
            if (node.layer or "").startswith("ConvTranspose") and "which PyTorch must run" in why:
                raise Refusal(
                    f"{reference.path}:{node.line}: {node.path} ({node.layer}): {why}, so nothing "
                    "is left to generate: remove it, or use torch.nn.utils.parametrizations"
                )


@contextlib.contextmanager
def ambient_kept() -> Iterator[None]:
    """Restores what a reference may change of PyTorch while it is executed."""
    dtype, threads = torch.get_default_dtype(), torch.get_num_threads()
    with torch.random.fork_rng(devices=[]):
        try:
            yield
        finally:
            torch.set_default_dtype(dtype)
            torch.set_num_threads(threads)
