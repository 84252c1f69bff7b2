"""Resolves a kernel entry file and all it includes into one string."""

import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from generator.errors import Refusal
from generator.tails import CENTRED, NORM_TAILS

ROOT = Path(__file__).resolve().parent.parent
KERNELS = ROOT / "kernels_src"

# How many per-channel operands the kernels take.
MAX_CHANNEL_VECTORS = int(
    re.search(r"kMaxChannelVectors = (\d+)", (KERNELS / "call.h").read_text(encoding="utf-8"))[1]
)

_INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]+)"')
_CONDITION = re.compile(r"^\s*#\s*(ifdef|ifndef|if|else|endif)\b\s*(\w*)")
# Conditions that a text is emitted with or without: kernels_src/depth_walk.h, row_pairs.h and
# joined_columns.h, and in kernels_src/cuda/ conv_transpose_hopper_packed.cuh,
# conv_transpose_interleaved.cuh, channel_parts.h, conv_transpose_gathered.cuh, chain_gradients.cuh
# and, for steps of branches, conv_transpose_hopper_types.h; beside ordinary convolutions
# input_scale.cuh; for operands of the output's shape join_tensors.cuh, join_quads.cuh and, of
# gradients, chain_tensors.cuh; for gradients of layers of stride two weight_gradient_pack_pairs.cuh
# and, where the kernel is no multiple of the stride, present_taps.h; for those that sum over many
# channels conv_transpose_hopper_plan.h; for chains of several steps chain_pack_rows.cuh; for few
# channels of volumes conv_transpose_direct_launch.cuh; for norms among tails norm_tail.cuh and
# centred_batch_norm.cuh; for extrema over channels channel_extremum.cuh; for volumes' chains
# group_norm_gradient_apply.cuh; for those of one condition output_mask.cuh.
_VOLUMES, _PACKED, _INTERLEAVED = "TCONV_WALKS_DEPTH", "TCONV_READS_PACKED", "TCONV_INTERLEAVES"
_PAIRED, _JOINED, _SPLIT = "TCONV_PAIRS_ROWS", "TCONV_JOINS_COLUMNS", "TCONV_SPLITS_CHANNELS"
_ZEROED = "TCONV_MULTIPLIES_ZEROS"  # where rows are paired or columns joined
_GATHERED, _SAMPLED = "TCONV_GATHERS_PIXELS", "TCONV_SAMPLES_INPUTS"
_BRANCHED, _CHAINED, _QUADS = "TCONV_BRANCHES", "TCONV_GRADIENT_CHAINS", "TCONV_JOINS_QUADS"
_SHORT, _CLASS_PAIRS, _AHEAD = "TCONV_SHORT_PASSES", "TCONV_PAIRS_CLASSES", "TCONV_LOADS_AHEAD"
_SEVERAL, _FEW, _SKIPPED = "TCONV_SEVERAL_STEPS", "TCONV_FEW_CHANNELS", "TCONV_SKIPS_TAPS"
FOLDED_NORM = "TCONV_FOLDED_NORM"  # which libraries of folds.py are compiled with: their numbers
_NORM_TAILS, _REDUCED, _WIDE = "TCONV_NORM_TAILS", "TCONV_REDUCES_CHANNELS", "TCONV_WIDE_SUMS"
_CENTRED, _TURNS = "TCONV_CENTRED_TAILS", "TCONV_TAKES_TURNS"
_KEEPS_MASK, _READS_MASK = "TCONV_KEEPS_MASK", "TCONV_READS_MASK"
# Of operators: results of more than an image's dimensions, in kernels_src/binding/tensors.h.
_MANY_DIMENSIONS = "TCONV_MANY_DIMENSIONS"
_OF_ANY_TENSOR = tuple(
    f"operator_{name}.cpp" for name in ("batch_norm", "group_norm", "tail", "tail_gradient")
)
_FEW_CHANNELS, _TAILS = "generated_few_channels.h", "generated_tail.h"
_TENSORS, _CHAIN_TENSORS = "TCONV_READS_TENSORS", "TCONV_CHAINS_READ_TENSORS"
# Texts of a forward on CUDA compile in parts (kernels_src/cuda/dtype_parts.h); these stay in them.
_IN_PARTS = "TCONV_IN_PARTS"
_LEFT_OUT = ("TCONV_WITHOUT_FP32", "TCONV_WITHOUT_FP16", "TCONV_WITHOUT_BF16", "TCONV_HOPPER_PART")


def resolve(
    entry: Path,
    replacements: dict[str, str] | None = None,
    given: tuple[Path, ...] = (),
    volumes: bool = False,
    packed: bool = False,
    interleaved: bool = False,
    paired: bool = False,
    joined: bool = False,
    split: bool = False,
    sampled: bool = False,
    branched: bool = False,
    chained: bool = False,
    in_parts: bool = False,
    tensors: bool = False,
    chain_tensors: bool = False,
    short: bool = False,
    class_pairs: bool = False,
    skipped: bool = False,
    ahead: bool = False,
    several: bool = False,
    few: bool = False,
    reduced: bool = False,
    turns: bool = False,
    keeps_mask: bool = False,
    reads_mask: bool = False,
) -> str:
    """The text of `entry` with every `#include "..."` in place of itself, each header once.

    `replacements` maps file names (generated_epilogue.h ...) to the text used instead; `given`
    headers stand before this text already; `volumes`: with what three dimensions need; `packed`:
    with what reads packed pixels; `interleaved`: with the interleaved kernel; `paired`: with pairs
    of rows; `joined`: with joined columns; `split`: with output channels in parts, as with volumes,
    and the gathered kernel; `sampled`: with the input's scale from a sample; `branched`: for chains
    with steps of branches; `chained`: gradients through chains; `in_parts`: one that compiles in
    parts, by dtype; `tensors`: with operands of the output's shape; `chain_tensors`: gradients of
    chains with them; `short`: with short passes, as with volumes; `class_pairs`: gradients
    packed for two columns' planes at once; `skipped`: taps that x's gradient lacks are left out;
    `ahead`: windows of several blocks of channels under way; `several`: chains of more than two
    steps; `few`: with the kernel for volumes of few channels; `reduced`: with minima and maxima
    over channels; `turns`: with the Hopper kernel in turns; `keeps_mask`: leaving a mask beside the
    outputs; `reads_mask`: gradients that read one. Raises Refusal where a file is missing.
    """
    replacements = replacements or {}
    tails = replacements.get(_TAILS, "")
    conditions = {
        _VOLUMES: volumes,
        _SHORT: volumes or short,
        _PACKED: packed,
        _INTERLEAVED: interleaved,
        _PAIRED: paired,
        _JOINED: joined,
        _ZEROED: paired or joined,
        _SPLIT: split or volumes,
        _GATHERED: split and not (volumes and packed),  # volumes' gradients do without
        _SAMPLED: sampled,
        _BRANCHED: branched,
        _CHAINED: chained,
        _IN_PARTS: in_parts,
        _TENSORS: tensors,
        _QUADS: tensors and (volumes or short),
        _CHAIN_TENSORS: chain_tensors,
        _CLASS_PAIRS: class_pairs,
        _SKIPPED: skipped,
        _AHEAD: ahead,
        _SEVERAL: several,
        _FEW: few,
        _NORM_TAILS: any(f"TailKind::{kind};" in tails for kind in NORM_TAILS),
        _CENTRED: f"TailKind::{CENTRED};" in tails,
        _REDUCED: reduced,
        _TURNS: turns,
        _KEEPS_MASK: keeps_mask,
        _READS_MASK: reads_mask,
        _WIDE: volumes and entry.name == "entry_group_norm_gradient.cu",
        _MANY_DIMENSIONS: volumes or tensors or chain_tensors or entry.name in _OF_ANY_TENSOR,
    }
    if not in_parts:
        conditions |= dict.fromkeys(_LEFT_OUT, False)
    if FOLDED_NORM not in replacements.get("generated_epilogue.h", ""):
        conditions[FOLDED_NORM] = False
    seen: set[Path] = set(given)

    def expand(path: Path, included_from: Path | None) -> list[str]:
        if path in seen:
            return []
        seen.add(path)
        text = replacements.get(path.name)
        if text is None:
            if not path.is_file():
                where = f", included from {included_from.name}" if included_from else ""
                raise Refusal(f"kernel source {path.relative_to(ROOT)} does not exist{where}")
            text = path.read_text(encoding="utf-8")
        lines = [f"// ---- {path.relative_to(ROOT).as_posix()}"]
        for line in _selected(text, conditions):
            include = _INCLUDE.match(line)
            if include:
                lines += expand(_find(include[1], path), path)
            elif line.strip() != "#pragma once":
                lines.append(line.rstrip())
        return lines

    return "\n".join(expand(entry.resolve(), None)) + "\n"


def _selected(text: str, conditions: dict[str, bool]) -> Iterator[str]:
    """The lines that are compiled under these conditions, and none that ask for them."""
    kept = [True]  # by depth of conditions
    asks = []  # does the condition ask for one of them?
    for line in text.splitlines():
        condition = _CONDITION.match(line)
        word, name = condition.groups() if condition else ("", "")
        if word.startswith("if"):
            asks.append(name in conditions)
            chosen = not asks[-1] or (word == "ifdef") == conditions[name]
            kept.append(kept[-1] and chosen)
        if word == "else" and asks[-1]:
            kept[-1] = kept[-2] and not kept[-1]
        if kept[-1] and not (word and asks[-1]):
            yield line
        if word == "endif":
            asks.pop()
            kept.pop()


def _find(name: str, includer: Path) -> Path:
    """Beside the including file first, then in kernels_src, as a compiler with -I kernels_src
    would.
    """
    beside = (includer.parent / name).resolve()
    return beside if beside.is_file() else (KERNELS / name).resolve()


def cuda_source(
    entries: list[str],
    replacements: dict[str, str],
    volumes: bool = False,
    interleaved: bool = False,
    paired: bool = False,
    joined: bool = False,
    split: bool = False,
    sampled: bool = False,
    branched: bool = False,
    tensors: bool = False,
    short: bool = False,
    few_channels: str | None = None,
    reduced: bool = False,
    turns: bool = False,
    masked: bool = False,
) -> str:
    """The CUDA half; of several entries each between #if TCONV_KIND == its index and #endif.

    `interleaved`: with the interleaved kernel; `paired`: with pairs of rows; `joined`: with
    joined columns; `split`: with output channels in parts; `sampled`: with the input's scale from
    a sample; `reduced`: with minima and maxima over channels; `turns`: with the Hopper kernel in
    turns. All serve the entry "conv" alone.
    `branched`: for chains with steps of branches; `tensors`: with operands of the output's shape;
    `short`: with short passes; `few_channels`: generated_few_channels.h's text; `masked`: a mask's.
    """
    paths = [KERNELS / "cuda" / f"entry_{entry}.cu" for entry in entries]
    forms = (interleaved, paired, joined, split, sampled)
    if few_channels is not None:
        replacements = replacements | {_FEW_CHANNELS: few_channels}
    last = {"tensors": tensors, "short": short, "few": few_channels is not None, "reduced": reduced}
    last |= {"turns": turns, "masked": masked}
    return _resolved(paths, replacements, (), volumes, forms, branched, True, **last)


def cpu_source(
    entries: list[str],
    replacements: dict[str, str],
    volumes: bool = False,
    tensors: bool = False,
    reduced: bool = False,
    masked: bool = False,
) -> str:
    """The C++ half, likewise."""
    paths = [KERNELS / "cpu" / f"entry_{entry}.cpp" for entry in entries]
    forms = {"tensors": tensors, "reduced": reduced, "masked": masked}
    return _resolved(paths, replacements, (), volumes, **forms)


def refusing_cpu_source(
    entries: list[str],
    volumes: bool = False,
    tensors: bool = False,
    reduced: bool = False,
    masked: bool = False,
) -> str:
    """In the place of cpu_source(entries): every call with tensors on a CPU is refused."""
    forms = {"tensors": tensors, "reduced": reduced, "keeps_mask": masked}
    text = resolve(KERNELS / "cpu" / "entry_none.cpp", volumes=volumes, **forms)
    for kind, entry in enumerate(entries):
        own = (KERNELS / "cpu" / f"entry_{entry}.cpp").read_text(encoding="utf-8")
        call = re.search(r"TCONV_EXPORT_PATTERN\(\w+, (\w+)\)", own)[1]
        lines = [f"TCONV_REFUSE_PATTERN({call})"]
        text += "\n".join([*(_only(kind, lines) if len(entries) > 1 else lines), ""])
    return text


def operator_source(
    entries: list[str],
    replacements: dict[str, str],
    volumes: bool = False,
    tensors: bool = False,
    reduced: bool = False,
    masked: bool = False,
) -> str:
    """What stands behind cpu_source(entries) in one file, whose headers it shares."""
    shared = tuple(KERNELS / name for name in ("common.h", "layer.h", "call.h"))
    paths = [KERNELS / "binding" / f"operator_{entry}.cpp" for entry in entries]
    forms = {"tensors": tensors, "reduced": reduced, "masked": masked}
    return _resolved(paths, replacements, shared, volumes, **forms)


def _resolved(
    paths: list[Path],
    replacements: dict[str, str],
    given: tuple[Path, ...],
    volumes: bool,
    forms: tuple[bool, bool, bool, bool, bool] = (False, False, False, False, False),
    branched: bool = False,
    in_parts: bool = False,
    tensors: bool = False,
    short: bool = False,
    few: bool = False,
    reduced: bool = False,
    turns: bool = False,
    masked: bool = False,
) -> str:
    last = {"in_parts": in_parts, "tensors": tensors, "short": short, "few": few}
    last |= {"reduced": reduced, "turns": turns, "keeps_mask": masked}
    if len(paths) == 1:
        shape = (*forms, branched)
        return resolve(paths[0], replacements, given, volumes, False, *shape, **last)
    # Headers first: each is there once, whichever of the entries is built.
    forms = (_INTERLEAVED, _PAIRED, _JOINED, _ZEROED, _SPLIT, _GATHERED, _SAMPLED)
    without = dict.fromkeys((_PACKED, _KEEPS_MASK, *forms), False)
    conditions = {_VOLUMES: volumes, _TENSORS: tensors, _SHORT: volumes or short} | without
    conditions[_REDUCED] = reduced
    texts = [path.read_text(encoding="utf-8") for path in paths]
    split = [_segments(_selected(text, conditions)) for text in texts]
    lines = ["#pragma once"]
    for depth in range(max(map(len, split)) - 1):
        given_here = [s[depth] if depth + 1 < len(s) else ([], []) for s in split]
        for kind, (ahead, _) in enumerate(given_here):
            lines += _only(kind, ahead)
        lines += [line for _, includes in given_here for line in includes]
    for kind, segments in enumerate(split):
        lines += _only(kind, segments[-1][0])
    together = paths[0].with_name("several" + paths[0].suffix)
    replacements = replacements | {together.name: "\n".join(lines)}
    return resolve(together, replacements, given, volumes, branched=branched, **last)


def _segments(lines: Iterable[str]) -> list[tuple[list[str], list[str]]]:
    """(lines, the #includes behind them), in order; the last has none."""
    found: list[tuple[list[str], list[str]]] = [([], [])]
    for line in lines:
        if _INCLUDE.match(line):
            found[-1][1].append(line)
        elif line.strip():
            if found[-1][1]:
                found.append(([], []))
            found[-1][0].append(line)
    return [*found, ([], [])] if found[-1][1] else found


def _only(kind: int, lines: list[str]) -> list[str]:
    return [f"#if TCONV_KIND == {kind}", *lines, "#endif"] if lines else []


def gradient_cuda_source(
    entry: str = "gradients",
    volumes: bool = False,
    chains: str | None = None,
    split: bool = False,
    tensors: bool = False,
    short: bool = False,
    skipped: bool = False,
    ahead: bool = False,
    several: bool = False,
    few_channels: str | None = None,
    tails: str | None = None,
    masked: bool = False,
) -> str:
    """Of a library of gradients: the convolution's ("gradients"), whose convolutions have no
    epilogue, GroupNorm's ("group_norm_gradient") or those through BatchNorm and max-pool
    ("batch_norm_pool_gradient"); or of a norm alone ("batch_norm", "group_norm"), or
    of tails ("tail") or their gradients ("tail_gradient"), with the text of generated_tail.h.

    `chains`: the text of generated_gradient.h, or None for the identity's; beside "gradients" those
    of chains and GroupNorm are in it, too. `split`: with output channels of convolutions in parts;
    `tensors`: chains have operands of the output's shape; `short`: columns are two apart;
    `skipped`: some outputs lack a tap of an axis that others have; `ahead`: x's gradient sums over
    many blocks of channels; `several`: a chain has more than two steps; `masked`: one reads a
    mask; `few_channels`: the text of generated_few_channels.h, for outputs that are computed again.
    """
    given = {"generated_gradient.h": chains, _TAILS: tails, _FEW_CHANNELS: few_channels}
    replacements = {name: text for name, text in given.items() if text is not None}
    packed = entry == "gradients"
    chained = entry == "gradients" and chains is not None
    path = KERNELS / "cuda" / f"entry_{entry}.cu"
    conditions = {"split": split, "chained": chained, "chain_tensors": tensors}
    if packed:
        conditions |= {"class_pairs": short, "skipped": skipped, "ahead": ahead}
        conditions |= {"several": chained and several, "few": few_channels is not None}
        conditions |= {"reads_mask": masked}
    return resolve(path, replacements, (), volumes, packed, **conditions)


def gradient_operator_source(
    entry: str = "gradients",
    volumes: bool = False,
    chained: bool = False,
    tensors: bool = False,
    tails: str = "",
    masked: bool = False,
) -> str:
    """The library's C++: what there is for a CPU, then the operator. tails: the text of
    generated_tail.h.
    """
    path = KERNELS / "cpu" / f"entry_{entry}.cpp"
    forms = {"volumes": volumes, "chained": chained, "chain_tensors": tensors}
    ahead = resolve(path, {_TAILS: tails}, **forms, reads_mask=masked)
    return ahead + gradient_operator(entry, volumes, chained, tensors, tails, masked)


def gradient_call_header(entry: str) -> str:
    """The header with the library's argument block."""
    return "gradient_call.h" if entry == "gradients" else f"{entry}_call.h"


def gradient_operator(
    entry: str,
    volumes: bool = False,
    chained: bool = False,
    tensors: bool = False,
    tails: str = "",
    masked: bool = False,
) -> str:
    """The operator alone, as it stands behind the library's other half."""
    headers = ["common.h", "layer.h", "call.h", gradient_call_header(entry)]
    headers += ["group_norm_gradient_call.h"] * chained
    shared = tuple(KERNELS / name for name in headers)
    path = KERNELS / "binding" / f"operator_{entry}.cpp"
    forms = {"chained": chained, "chain_tensors": tensors, "reads_mask": masked}
    return resolve(path, {_TAILS: tails}, shared, volumes, **forms)
