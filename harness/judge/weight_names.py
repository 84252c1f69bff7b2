"""Which entry of a solution's state_dict is which of the reference's: by name, or by what it holds.

KernelBench copies nothing: both models are constructed from the same seed, under whatever names. A
solution may therefore name a parameter otherwise, or twice.
"""

import torch

from harness.judge.check import same_bits

BY_NAME = "by name"
ALIASES_APART = "by name, further names of the same tensors apart"
BY_VALUES = "by values drawn from the same seed, the rest by order"


def matched(
    wanted: dict, drawn: dict, aliases: dict[str, str]
) -> tuple[str, dict[str, str]] | None:
    """How the entries were matched, and for each name in `drawn` the reference's; None where an
    entry is left over on either side, or shapes do not fit.

    `wanted` and `drawn` are state_dicts of both constructors under one seed; `aliases` has, for
    every further name of a tensor in `drawn`, its first one.
    """
    found = _matched(wanted, drawn, aliases)
    fits = found and all(drawn[a].shape == wanted[b].shape for a, b in found[1].items())
    return found if fits else None


def _matched(
    wanted: dict, drawn: dict, aliases: dict[str, str]
) -> tuple[str, dict[str, str]] | None:
    if set(wanted) == set(drawn):
        return BY_NAME, {name: name for name in drawn}
    if set(wanted) <= set(drawn):
        known = {aliases.get(name, name): name for name in wanted}
        if all(aliases.get(name, name) in known for name in drawn):
            found = {name: known[aliases.get(name, name)] for name in drawn}
            return ALIASES_APART, found | {name: name for name in wanted}
    first = [name for name in drawn if name not in aliases]
    pairs = _by_values(wanted, {name: drawn[name] for name in first})
    if pairs is None:
        return None
    return BY_VALUES, {name: pairs[aliases.get(name, name)] for name in drawn}


def _by_values(wanted: dict, drawn: dict) -> dict[str, str] | None:
    """The reference's name for each of the solution's: what one other alone has the bits of, then
    what is left in order.
    """
    pairs: dict[str, str] = {}
    for name, value in drawn.items():
        same = [other for other, tensor in wanted.items() if same_bits(value, tensor)]
        back = [other for other, tensor in drawn.items() if same_bits(value, tensor)]
        if len(same) == len(back) == 1:
            pairs[name] = same[0]
    rest = [name for name in drawn if name not in pairs]
    others = [name for name in wanted if name not in pairs.values()]
    if len(rest) != len(others):
        return None
    in_order = dict(zip(rest, others, strict=True))
    fits = all(_fit(drawn[name], wanted[other]) for name, other in in_order.items())
    return pairs | in_order if fits else None


def _fit(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.shape == other.shape and one.dtype == other.dtype
