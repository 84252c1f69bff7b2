"""The sources and constants of the kernels that one solution calls."""

import dataclasses
import functools
import hashlib
from collections.abc import Iterable

from generator import folds
from generator.calls import (
    has_short_passes,
    interleaves,
    joins_columns,
    lacks_taps,
    packs_chain,
    pairs_rows,
    splits_channels,
    sums_many_channels,
    takes_turns,
)
from generator.few_channels import few_channels_header, few_channels_layers
from generator.folds import Fold
from generator.fuse import Fused
from generator.generated_headers import generated_headers
from generator.masks import leaves_mask, of_mask
from generator.program import Program
from generator.runtime.library_sources import _with_shared_lines
from generator.runtime.several_calls import _repeated
from generator.shared_lines import without_shared_lines
from generator.sources import (
    cpu_source,
    cuda_source,
    gradient_cuda_source,
    gradient_operator_source,
    operator_source,
    refusing_cpu_source,
)
from generator.step_table import Step, gradient_header, in_epilogue, tail_header

# The libraries of the gradients through what follows a convolution, by what the names of their
# sources begin with.
_LIBRARIES = {"NORM_": "group_norm_gradient", "POOL_": "batch_norm_pool_gradient"}
_GRADIENTS = "GRADIENT_CUDA_SOURCE"  # whose lines other libraries are held without, too


@dataclasses.dataclass
class Kernel:
    """One operator of a solution: `suffix` tells its names from those of others."""

    fused: Fused
    suffix: str

    @property
    def chain(self) -> list[Step]:
        """What a kernel takes the gradient of together with the norm behind it."""
        return [self.fused.activation] if self.fused.activation else self.fused.steps

    @property
    def keeps_result(self) -> bool:
        """Can the gradient of its chain be formed from the chain's result?"""
        if self.fused.entry != "conv" or not self.fused.steps:
            return False
        *steps, last = self.fused.steps
        return last.keeps_result and not any(step.reads_values for step in steps)

    @property
    def library(self) -> str | None:
        """The key in _LIBRARIES, or None where gradients need none of them."""
        if self.fused.activation:
            return "POOL_"
        normed = self.fused.entry == "conv_group_norm"
        return "NORM_" if normed or self.fused.steps else None


@dataclasses.dataclass
class Kernels:
    """`sources`: CUDA_SOURCE, CPU_SOURCE, OPERATOR_SOURCE; of several operators each holds what
    _for_each_call (generator/runtime/several_calls.py) repeats.
    """

    all: list[Kernel]
    sources: dict[str, str]
    own_gradients: bool = True
    cuda_alone: bool = False  # without the C++ half
    calls: list[Fused] = dataclasses.field(default_factory=list)  # all that use these kernels
    ordinary: bool = False  # do ordinary convolutions, too?
    reduced: bool = False  # may minima and maxima over channels be formed in them?
    norms: frozenset[str] = frozenset()  # that have a library of their own: program.py
    tails: dict[tuple, Fused] = dataclasses.field(default_factory=dict)  # of a library: program.py
    folds: dict[tuple, Fold] = dataclasses.field(default_factory=dict)  # in libraries of their own

    def held(self, name: str) -> str:
        """A source as the solution's module holds it."""
        text = f"\n{self.sources[name]}"
        kinds = [self.entries.index(kernel.fused.entry) for kernel in self.all]
        return _repeated(text, kinds) if len(kinds) > 1 else text

    @property
    def volumes(self) -> bool:
        """Is one of them of three dimensions?"""
        return any(fused.dimensions == 3 for fused in self.calls)

    @property
    def few_channels(self) -> str | None:
        """The text of generated_few_channels.h, where one of them is of volumes of few channels."""
        layers = few_channels_layers(self.calls)
        return few_channels_header(layers) if layers else None

    @property
    def whole(self) -> bool:
        """Does one of them read tensors of its output's shape?"""
        return any(kernel.fused.whole for kernel in self.all)

    @property
    def interleaved(self) -> bool:
        """Has one of them what the interleaved kernel is for, and none what it does not serve?"""
        return self.entries == ["conv"] and any(map(interleaves, self.calls))

    @property
    def paired(self) -> bool:
        """Has one of them rows that the Hopper kernel takes in pairs, and none what forbids it?"""
        return self.entries == ["conv"] and any(map(pairs_rows, self.calls))

    @property
    def joined(self) -> bool:
        """Has one of them columns that the Hopper kernel joins, and none what forbids it?"""
        return self.entries == ["conv"] and any(map(joins_columns, self.calls))

    @property
    def split(self) -> bool:
        """Has one of them output channels that the Hopper kernel cuts into parts, and none what
        forbids it?
        """
        return self.entries == ["conv"] and any(map(splits_channels, self.calls))

    @property
    def turns(self) -> bool:
        """Have all of them few taps for their channels? Other forms are unknown to turns."""
        return self.entries == ["conv"] and not self.reduced and all(map(takes_turns, self.calls))

    @property
    def short(self) -> bool:
        """Has one of them few taps an output?"""
        return any(map(has_short_passes, self.calls))

    @property
    def skipped(self) -> bool:
        """Lack outputs of one of them taps that others have?"""
        return any(map(lacks_taps, self.calls))

    @property
    def ahead(self) -> bool:
        """Has one of them a gradient of x that sums over many channels?"""
        return any(map(sums_many_channels, self.calls))

    @property
    def sampled(self) -> bool:
        """Is the input's scale found, for what runs beside ordinary convolutions? Behind softmax
        the constant one does not serve.
        """
        return self.entries == ["conv"] and self.ordinary

    @property
    def branched(self) -> bool:
        """Has one of them a step of branches in its epilogue, or operands in the one that forms
        extrema? Then there are no registers beside the most accumulators.
        """
        read = self.reduced and any(kernel.fused.vectors for kernel in self.all)
        steps = (step for kernel in self.all for step in in_epilogue(kernel.fused.steps))
        return read or any(step.parts for step in steps)

    @property
    def chained(self) -> bool:
        """Has the library of the convolution's gradients those of the chains, too?"""
        behind = any(kernel.library == "NORM_" for kernel in self.all)
        return self.own_gradients and not self.volumes and behind

    @property
    def packs_volumes(self) -> bool:
        """Has it those of volumes' chains, formed as they are packed, where that is served?"""
        behind = [kernel for kernel in self.all if kernel.library == "NORM_"]
        if not self.own_gradients or self.whole or not any(map(packs_chain, self.calls)):
            return False
        changes = any(not step.passes_gradient for kernel in behind for step in kernel.chain)
        return changes and all(kernel.fused.entry == "conv" for kernel in behind)

    @property
    def masked(self) -> bool:
        """Does its only kernel leave a mask for backward (masks.py)?"""
        alone = not (self.reduced or self.folds or self.whole)
        kernels = [kernel.fused for kernel in self.all]
        return self.packs_volumes and alone and leaves_mask(kernels, self.calls)

    @functools.cached_property
    def gradient_sources(self) -> dict[str, str]:
        """Of the libraries of the gradients, which all operators share."""
        if not self.all or not self.own_gradients:
            return {}
        norm_chains = self._chains("NORM_")
        both = self.chained or self.packs_volumes
        masked = self.masked
        chains = gradient_header(norm_chains, True, self.whole, masked) if both else None
        libraries = [("", "gradients", chains)]
        for prefix, library in _LIBRARIES.items():
            if (chains := self._chains(prefix)) and not (prefix == "NORM_" and self.chained):
                tensors = self.whole and prefix == "NORM_"
                header = gradient_header(chains, tensors=tensors)
                libraries.append((prefix, library, header))
        made, whole = {}, self._given("CUDA_SOURCE")
        for prefix, library, chains in libraries:
            split = self.split and not prefix
            tensors = self.whole and prefix != "POOL_"
            forms = {"split": split, "tensors": tensors, "short": self.short}
            forms |= {"skipped": self.skipped, "ahead": self.ahead}
            forms["few_channels"] = self.few_channels
            forms["several"] = any(len(chain) > 2 for chain in norm_chains)
            forms["masked"] = masked and not prefix
            cuda = gradient_cuda_source(library, self.volumes, chains, **forms)
            made[f"{prefix}GRADIENT_CUDA_SOURCE"] = without_shared_lines(cuda, whole)
            if not prefix:
                whole[_GRADIENTS] = f"\n{cuda}"
            chained = both and not prefix
            of_mask = {"masked": masked and not prefix}
            source = gradient_operator_source(library, self.volumes, chained, tensors, **of_mask)
            source = without_shared_lines(source, self._given("CPU_SOURCE", "OPERATOR_SOURCE"))
            made[f"{prefix}GRADIENT_OPERATOR_SOURCE"] = source
        return made

    @functools.cached_property
    def other_sources(self) -> dict[str, str]:
        """Of the libraries of norms alone, and of tails."""
        if not self.norms and not self.tails:
            return {}
        made, whole = {}, self._given("CUDA_SOURCE")
        held = _with_shared_lines(self.gradient_sources[_GRADIENTS], whole)
        for library in [*sorted(self.norms), *["tail", "tail_gradient"] * bool(self.tails)]:
            tails = self._tails(library == "tail_gradient") if library.startswith("tail") else None
            cuda = gradient_cuda_source(library, tails=tails)
            given = whole | {_GRADIENTS: f"\n{held}"}
            operator = gradient_operator_source(library, tails=tails or "")
            operator = operator, self._given("CPU_SOURCE", "OPERATOR_SOURCE")
            made[f"{library.upper()}_CUDA_SOURCE"] = without_shared_lines(cuda, given)
            made[f"{library.upper()}_OPERATOR_SOURCE"] = without_shared_lines(*operator)
            if library == "tail":
                whole["TAIL_CUDA_SOURCE"] = f"\n{cuda}"
        return made

    def _tails(self, gradients: bool) -> str:
        """The text of generated_tail.h."""
        return tail_header([(tail.entry, tail.steps) for tail in self.tails.values()], gradients)

    def _given(self, *names: str) -> dict[str, str]:
        """Sources of the forward, of which those of libraries are held without lines."""
        return {name: self.held(name) for name in names}

    @property
    def suffixes(self) -> dict[tuple, str]:
        """By what makes a kernel."""
        return {kernel.fused.headers: kernel.suffix for kernel in self.all}

    @property
    def entries(self) -> list[str]:
        """The kinds of calls, each once."""
        return list(dict.fromkeys(kernel.fused.entry for kernel in self.all))

    @property
    def constants(self) -> dict[str, str]:
        """What stands in for generator/runtime/generated.py."""
        made = {}
        if len(self.all) > 1:
            kinds = [self.entries.index(kernel.fused.entry) for kernel in self.all]
            made["_CALLS"] = f"({', '.join(map(str, kinds))})"
        for kernel in self.all:
            made[f"_CALL{kernel.suffix}"] = repr(kernel.suffix)
            made |= _constants(kernel, self._numbers(kernel)[0])
            if self.whole and kernel.fused.entry == "conv":
                made[f"_TENSORS{kernel.suffix}"] = repr(tuple(kernel.fused.whole))
            if self.chained:
                made[f"_KEEPS_RESULT{kernel.suffix}"] = str(kernel.keeps_result)
        if self.tails:
            kinds = [tail.entry for tail in self.tails.values()]
            made["_TAILS"] = _tuple(map(repr, kinds))
            chains = [[step.python for step in tail.steps] for tail in self.tails.values()]
            made["_TAIL_CHAINS"] = _tuple(map(_tuple, chains))
        if self.volumes:
            numbers = (found for kernel in self.all if len(found := self._numbers(kernel)) > 1)
            made["_RESULT_CHAINS"] = repr(dict(numbers))
        return made | folds.constants(list(self.folds.values()), self.suffixes)

    def _chains(self, library: str) -> list[list[Step]]:
        """Those whose gradients a library has, each once."""
        found: list[list[Step]] = []
        for kernel in self.all:
            for chain in self._forms(kernel) if kernel.library == library else []:
                if chain not in found:
                    found.append(chain)
        return found

    def _forms(self, kernel: Kernel) -> list[list[Step]]:
        """Its chain as gradients read it: of the convolution's output, or of the chain's result, of
        which nothing is made. What volumes decline is computed otherwise, so there it is both; and
        so it is where forward keeps a mask, and not of every call.
        """
        if self.masked:
            return [kernel.chain, of_mask(kernel.chain)]
        if not kernel.keeps_result or not (self.chained or self.volumes):
            return [kernel.chain]
        of_result = [dataclasses.replace(step, device="") for step in kernel.chain]
        return [kernel.chain, of_result] if self.volumes else [of_result]

    def _numbers(self, kernel: Kernel) -> list[int]:
        """Of the forms of its chain in their library."""
        if kernel.library is None:
            return [0]
        return [self._chains(kernel.library).index(chain) for chain in self._forms(kernel)]


def sources(program: Program, own_gradients: bool = True, cuda_alone: bool = False) -> Kernels:
    """All kernels of a program; none where it calls none of ours."""
    fused = list(program.kernels.values())
    kernels = [Kernel(*pair) for pair in kernels_of(program)]
    ours = program.ordinary, program.reduces
    ours += (program.norms, program.tails) if own_gradients else (frozenset(), {})
    made = Kernels(kernels, {}, own_gradients, cuda_alone, program.calls, *ours, program.folds)
    if not fused:
        return made
    given = generated_headers(fused, made.whole, made.masked)
    if made.folds:
        epilogue = given["generated_epilogue.h"], list(made.folds.values()), made.whole
        given["generated_epilogue.h"] = folds.with_folds(*epilogue)
    forms = made.volumes, made.whole, made.reduced, made.masked
    cpu = (
        refusing_cpu_source(made.entries, *forms)
        if cuda_alone
        else cpu_source(made.entries, given, *forms)
    )
    made.sources = {
        "CUDA_SOURCE": cuda_source(
            made.entries,
            given,
            made.volumes,
            *(made.interleaved, made.paired, made.joined, made.split),
            *(made.sampled, made.branched, made.whole, made.short, made.few_channels),
            *(made.reduced, made.turns, made.masked),
        ),
        "CPU_SOURCE": cpu,
        "OPERATOR_SOURCE": operator_source(made.entries, given, *forms),
    }
    return made


def kernels_of(program: Program) -> list[tuple[Fused, str]]:
    """Every kernel with the suffix of its names; none where it is alone."""
    fused = list(program.kernels.values())
    return [(f, f"_{index}" if len(fused) > 1 else "") for index, f in enumerate(fused)]


def digest(source: str) -> str:
    """SHA-256 of a source as the solution's module holds it."""
    return hashlib.sha256(source.encode()).hexdigest()


def _constants(kernel: Kernel, number: int) -> dict[str, str]:
    fused, suffix = kernel.fused, kernel.suffix
    numbered = {f"_CHAIN_NUMBER{suffix}": str(number)}
    if fused.activation is not None:
        return {f"_ACTIVATION{suffix}": fused.activation.python} | numbered
    steps = [step.python for step in fused.steps]
    return numbered | {
        f"_CHAIN{suffix}": _tuple(steps),
        f"_NUM_VECTORS{suffix}": str(len(fused.vectors)),
    }


def _tuple(texts: Iterable[str]) -> str:
    """A tuple of expressions."""
    joined = ", ".join(texts)
    return f"({joined}{',' if joined else ''})"
