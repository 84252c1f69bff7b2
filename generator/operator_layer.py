"""The Python half of a solution's operators: generator/runtime/, pruned to what is reached."""

import ast
import re
from pathlib import Path

from generator.kernels import Kernels
from generator.statements import Statement, needed, split

RUNTIME = Path(__file__).resolve().parent / "runtime"
_OF_GRADIENTS = (
    "gradient_kernels",
    "group_norm_gradient_kernels",
    "batch_norm_pool_gradient_kernels",
    "volume_gradients",
)
_ALWAYS = (
    "step_gradients",
    "branches",
    "activation_gradients",
    "forward",
    "described",
    "construction",
)
# What the constants of one call are called in generator/runtime/generated.py.
_OF_A_CALL = frozenset(
    {"_CALL", "_CHAIN", "_CHAIN_NUMBER", "_KEEPS_RESULT", "_NUM_VECTORS", "_ACTIVATION", "_TENSORS"}
)


def runtime_statements(kernels: Kernels, written: str) -> list[Statement]:
    """The statements in an order that Python can execute. `written`: the text that uses them."""
    statements = _Collected(kernels)
    modules = [*_ALWAYS, "inner_modules"]
    if kernels.all:
        modules += [*kernels.entries, "build"]
    if "_in_one_dimension" in written or "_in_three_dimensions" in written:
        modules.append("dimensions")
    if "_channel_extremum" in written:
        modules.append("channel_extremum")
    if "_ordinary_conv" in written:
        modules.append("ordinary_conv")
    if "_large_batch_norm" in written:
        modules.append("large_batch_norm")
    if "_large_group_norm" in written:
        modules.append("large_group_norm")
    if "_tail" in written:
        modules.append("large_tails")
    if "_folded_norm" in written:
        modules.append("folded_norm")
    if "_mean(" in written:
        modules.append("mean")
    if "_folding" in written:
        modules.append("folded_rows")
    if len(kernels.all) > 1:
        modules.append("several_calls")
    for module in modules:
        statements.collect(module)
    roots = set(re.findall(r"\b_\w+", written))
    if len(kernels.all) == 1:
        roots.add("_operator")
        return needed(statements.shared + statements.of_entry.get(kernels.entries[0], []), roots)
    return _several(kernels, statements, roots)


class _Collected:
    """Statements of the modules of generator/runtime/; those of an entry apart."""

    def __init__(self, kernels: Kernels):
        self._own_gradients = kernels.own_gradients
        self._norm_gradients = "NORM_GRADIENT_CUDA_SOURCE" in kernels.gradient_sources
        self._others = {"chained_": kernels.chained, "tensors_": kernels.whole}
        self._others["packed_"] = kernels.packs_volumes
        self._masked = kernels.masked
        self.shared: list[Statement] = []
        self.of_entry: dict[str, list[Statement]] = {}
        self._seen: set[str] = set()

    def collect(self, module: str, place: list[Statement] | None = None) -> None:
        if module in self._seen:
            return
        self._seen.add(module)
        if module in _OF_GRADIENTS and not self._own_gradients:
            return self.collect("pytorch_gradients")
        if module == "group_norm_gradient_kernels" and not self._norm_gradients:
            return self.collect("no_norm_gradients")
        if place is None:
            of_entry = module.startswith("conv")
            place = self.of_entry.setdefault(module, []) if of_entry else self.shared
        for statement in split((RUNTIME / f"{module}.py").read_text(encoding="utf-8")):
            if isinstance(statement.node, ast.ImportFrom) and statement.node.module:
                prefix, _, name = statement.node.module.rpartition(".")
                if prefix == "generator.runtime":
                    if name != "generated":
                        self.collect(name)
                    continue
            place.append(statement)
        for prefix, wanted in self._others.items():
            if wanted and (RUNTIME / f"{prefix}{module}.py").exists():
                self._replace(place, f"{prefix}{module}")
                break
        if self._masked and (RUNTIME / f"masked_{module}.py").exists():  # beside what packs chains
            self._replace(place, f"masked_{module}")

    def _replace(self, place: list[Statement], module: str) -> None:
        """What `module` defines in the place of what has its names; functions ahead of what calls
        them at once.
        """
        before = len(place)
        self.collect(module, place)
        names = {name for statement in place[before:] for name in statement.defines}
        place[:before] = [s for s in place[:before] if s.is_import or not s.defines & names]
        place.sort(key=lambda statement: isinstance(statement.node, ast.Assign))


def _several(kernels: Kernels, collected: _Collected, roots: set[str]) -> list[Statement]:
    """Each entry's statements under the suffix of the first call of its kind, and again under those
    of the others where they read what makes a call.
    """
    made: list[Statement] = []
    first: dict[str, str] = {}
    for kernel in kernels.all:
        own = collected.of_entry[kernel.fused.entry]
        names = {name for statement in own if not statement.is_import for name in statement.defines}
        dependent = _dependent(own)
        is_first = kernel.fused.entry not in first
        suffix = first.setdefault(kernel.fused.entry, kernel.suffix)
        renamed = {name: name + suffix for name in names - dependent}
        renamed |= {name: name + kernel.suffix for name in dependent | _OF_A_CALL}
        for statement in own:
            if is_first or statement.defines & dependent:
                made += split(_renamed(statement.text, renamed))
        roots |= {renamed["_operator"]}
    every = collected.shared + made
    imports = {s.text: s for s in every if s.is_import}
    every = [s for s in every if not s.is_import or imports[s.text] is s]
    return needed(every, roots | {"_for_each_call"})


def _dependent(statements: list[Statement]) -> set[str]:
    """Names of an entry that read a call's constants, directly or not."""
    found: set[str] = set()
    while True:
        more = {
            name
            for statement in statements
            if statement.uses & (found | _OF_A_CALL)
            for name in statement.defines
        }
        if more <= found:
            return found
        found |= more


def _renamed(text: str, names: dict[str, str]) -> str:
    return re.sub(r"(?<![\w.])_\w+", lambda match: names.get(match[0], match[0]), text)
