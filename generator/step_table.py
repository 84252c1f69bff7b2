"""A step: what one element-wise operation is to the emitter. Records of the operations that make
steps are in generator/ops/.
"""

import dataclasses
import math
import re
from typing import Any

MASKED = "masked"  # the kind of a step whose gradient reads a mask


@dataclasses.dataclass(frozen=True)
class Step:
    """One element-wise step. `device` is C++ that changes `v`; `python` constructs the step for the
    backward. `header`: of kernels_src, with what `device` calls beside elementwise.h. `monotone`:
    it never falls, and makes NaN of NaN alone. `gradient`: C++ that turns `grad`, the gradient of
    `after`, into that of `before` (with elementwise/slopes.h), and adds that of the per-channel
    operand of index i to `sums[i]`; that of one of the output's shape is `taken[i]`. `parts`:
    the steps that it is made of, where it is of branches. `keeps_result`: PyTorch keeps the result
    for the gradient, which `gradient` reads alone. `condition`: C++ that is all it asks of
    `before`, and begins with.
    """

    kind: str
    device: str
    python: str
    gradient: str
    monotone: bool = False
    header: str | None = None
    parts: tuple["Step", ...] = ()
    keeps_result: bool = False
    condition: str = ""

    @property
    def reads_tensors(self) -> bool:
        """Does it read an operand of the output's shape?"""
        return "tensors[" in self.device or "taken[" in self.gradient

    @property
    def reads_values(self) -> bool:
        """Does the gradient depend on what the step was given or made of it?"""
        return re.search(r"\b(before|after)\b", self.gradient) is not None

    @property
    def passes_gradient(self) -> bool:
        """Is the gradient of what the step was given that of what it made?"""
        return re.search(r"\bgrad = ", self.gradient) is None


def branches(parts: list[tuple[int, Step]], reached: set[int]) -> Step:
    """One step of several that read one another's values: each takes the value of the number beside
    it, 0 what comes in and i the value of part i, counted from 1; the last is what goes out. Their
    operands may be such values, w0, w1 ..., whose gradients are summed in e0, e1 ...; `reached`:
    the numbers of those that have one.
    """
    texts = "\n".join(step.device for _, step in parts)
    read = {int(index) for index in re.findall(r"\bw(\d+)\b", texts)}
    read |= {source for number, (source, _) in enumerate(parts) if source != number}
    kept = _kept_values(parts, read)
    device = f"{{\n{kept}    }}"
    backward = "".join(
        f"        {{\n          const Acc before = w{source}, after = w{number};\n"
        f"          (void)before, (void)after;\n          Acc grad = e{number};\n"
        f"          {step.gradient}\n          e{source} += grad;\n        }}\n"
        for number, (source, step) in reversed(list(enumerate(parts, 1)))
        if number in reached and step.kind != "detach"
    )
    sums = ", ".join(f"e{number} = Acc(0)" for number in sorted(reached - {len(parts)}))
    gradient = (
        f"{{\n        Acc v = before;\n{_kept_values(parts, set(range(len(parts) + 1)))}"
        f"        Acc {sums}, e{len(parts)} = grad;\n{backward}        grad = e0;\n      }}"
    )
    python = ", ".join(f"({source}, {step.python})" for source, step in parts)
    steps = tuple(step for _, step in parts)
    return Step("branches", device, f"_Branches({python})", gradient, parts=steps)


def _kept_values(parts: list[tuple[int, Step]], read: set[int]) -> str:
    """C++ of the parts in turn, which keeps the values of these numbers."""
    lines = ["const Acc w0 = v;"] * (0 in read)
    for number, (source, step) in enumerate(parts, 1):
        lines += [f"v = w{source};"] * (source != number - 1)
        lines += [step.device] * bool(step.device)
        lines += [f"const Acc w{number} = v;"] * (number in read)
    return "".join(f"        {line}\n" for line in lines)


def number(value: float) -> str:
    """A C++ expression of type Acc for a Python number."""
    value = float(value)
    if math.isnan(value):
        return "Acc(NAN)"
    if math.isinf(value):
        return "Acc(INFINITY)" if value > 0 else "-Acc(INFINITY)"
    return f"Acc({value!r})"


def literal(value: Any) -> str:
    """The same value as Python source, which has no name for infinity and NaN."""
    if isinstance(value, float) and not math.isfinite(value):
        return f'float("{value}")'
    return repr(value)


def epilogue_header(steps: list[Step], tensors: bool = False, masked: bool = False) -> str:
    """The text that takes the place of kernels_src/generated_epilogue.h. tensors: beside kernels
    that read tensors of the output's shape; what follows the first one is a part of its own.
    masked: with the first step's condition.
    """
    ahead = in_epilogue(steps)
    body = "".join(f"    {step.device}\n" for step in ahead)
    joined = f"\n{_join(steps[len(ahead) :])}" if tensors else ""
    joined += f"\n{_condition(steps[0])}" if masked else ""
    return f"""#pragma once
{_includes(steps)}
namespace tconv {{

struct Epilogue {{
  template <typename Acc, typename Storage>
  static TCONV_HD Acc apply(Acc v, const EpilogueArgs<Storage>& args, int64_t channel) {{
    (void)args;
    (void)channel;
{body}    return v;
  }}
{joined}}};

}}  // namespace tconv
"""


def _condition(step: Step) -> str:
    """The part of struct Epilogue that says what the step's gradient asks of its value."""
    return f"""\
  template <typename Acc>
  static TCONV_HD bool condition(Acc before) {{
    return {step.condition};
  }}
"""


def in_epilogue(steps: list[Step]) -> list[Step]:
    """Those ahead of the first that reads a tensor of the output's shape."""
    reads = [step.reads_tensors for step in steps]
    return steps[: reads.index(True)] if any(reads) else steps


def _join(steps: list[Step]) -> str:
    """The part of struct Epilogue that reads tensors: they are tensors[operand][at]."""
    body = "".join(f"    {step.device}\n" for step in steps)
    return f"""\
  static constexpr unsigned kTensors = {_mask(steps)};  // by operand
  static TCONV_HD constexpr bool reads(int operand) {{ return (kTensors >> operand & 1) != 0; }}
  static TCONV_HD constexpr bool reads_any() {{ return kTensors != 0; }}

  template <typename Acc, typename Storage, typename Tensors>
  static TCONV_HD Acc join(Acc v, const EpilogueArgs<Storage>& args, int64_t channel,
                           const Tensors& tensors, int64_t at) {{
    (void)args, (void)channel, (void)tensors, (void)at;
{body}    return v;
  }}
"""


def _mask(steps: list[Step]) -> str:
    return f"{_bits(steps):#x}u"


def _bits(steps: list[Step]) -> int:
    """Those of the operands that have the output's shape."""
    text = "".join(step.device + step.gradient for step in steps)
    read = {int(index) for index in re.findall(r"\b(?:tensors|taken)\[(\d+)\]", text)}
    return sum(1 << index for index in read)


def tail_header(tails: list[tuple[str, list[Step]]], gradients: bool = False) -> str:
    """The text that takes the place of kernels_src/generated_tail.h: of each tail its kind, as
    TailKind in kernels_src/tail_call.h has it, and the steps behind it, or their gradients.
    """
    parts = "".join(
        f"""
template <>
struct Tail<{index}> {{
  static constexpr TailKind kKind = TailKind::{kind};
{_tail_gradient(steps) if gradients else _tail_steps(steps)}}};
"""
        for index, (kind, steps) in enumerate(tails)
    )
    return f"""#pragma once

#include "epilogue.h"
{_includes([step for _, steps in tails for step in steps])}
namespace tconv {{

constexpr int kNumTails = {len(tails)};

template <int kNumber>
struct Tail;
{parts}
}}  // namespace tconv
"""


def _tail_steps(steps: list[Step]) -> str:
    body = "".join(f"    {step.device}\n" for step in steps)
    return f"""\
  template <typename Acc, typename Storage>
  static TCONV_HD Acc apply(Acc v, const EpilogueArgs<Storage>& args, int64_t channel) {{
    (void)args, (void)channel;
{body}    return v;
  }}
"""


def _tail_gradient(steps: list[Step]) -> str:
    forward, backward = _through(steps)
    return f"""\
  static constexpr int kVectors = {_summed_operands(steps)};
  template <typename Acc, typename Storage>
  static TCONV_HD Acc gradient(Acc v, Acc grad, const EpilogueArgs<Storage>& args, int64_t channel,
                               Acc* sums) {{
    (void)args, (void)channel, (void)sums;
    const Acc v0 = v;
    (void)v0;
{forward}{backward}    return grad;
  }}
"""


def operands_header(whole: list[int]) -> str:
    """The text that takes the place of kernels_src/binding/generated_operands.h."""
    return f"""#pragma once

namespace tconv {{

constexpr unsigned kTensorOperands = {sum(1 << index for index in whole):#x}u;

}}  // namespace tconv
"""


def activation_header(step: Step) -> str:
    """The text that takes the place of kernels_src/generated_activation.h."""
    return f"""#pragma once

#include "elementwise.h"
{_includes([step])}
namespace tconv {{

struct Activation {{
  template <typename Acc>
  static TCONV_HD Acc apply(Acc v) {{
    {step.device}
    return v;
  }}
}};

}}  // namespace tconv
"""


def gradient_header(
    chains: list[list[Step]], counted: bool = False, tensors: bool = False, masked: bool = False
) -> str:
    """The text that takes the place of kernels_src/generated_gradient.h. counted: chains say how
    many steps they have, by which kernels choose what registers they may take; tensors: and which
    operands of theirs have the value's shape; masked: and whether they read a mask (masks.py).
    """
    parts = "".join(
        _chain_gradient(index, chain, counted, tensors, masked)
        for index, chain in enumerate(chains)
    )
    return f"""#pragma once
{_includes([step for chain in chains for step in chain])}
namespace tconv {{

constexpr int kNumChains = {len(chains)};

template <int kIndex>
struct Chain;
{parts}
}}  // namespace tconv
"""


def _chain_gradient(
    index: int, chain: list[Step], counted: bool, tensors: bool, masked: bool
) -> str:
    body = "".join(f"    {step.device}\n" for step in chain)
    kinds = "typename Storage, typename Acc, typename Operands"
    value = f"""\
  template <{kinds}>
  static TCONV_HD Acc value(Acc v, const Operands& args, int64_t channel) {{
    (void)args, (void)channel;
{body}    return v;
  }}
"""
    vectors = _summed_operands(chain)
    forward, backward = _through(chain)
    count = sum(max(1, len(step.parts)) for step in chain)
    steps = f"  static constexpr int kSteps = {count};\n" if counted else ""
    steps += f"  static constexpr unsigned kTensors = {_mask(chain)};\n" if tensors else ""
    reads = str(any(step.kind == MASKED for step in chain)).lower()
    steps += f"  static constexpr bool kReadsMask = {reads};\n" if masked else ""
    more = unused = ""
    kinds += ", typename Outer"
    if any(step.reads_tensors for step in chain):  # the value is only asked for beside a norm
        value, kinds = "", f"{kinds}, typename Tensors"
        unused = "    (void)tensors, (void)at, (void)taken;\n"
        more = ",\n                               const Tensors& tensors, int at, Acc* taken"
    return f"""
template <>
struct Chain<{index}> {{
  static constexpr int kVectors = {vectors};
{steps}{value}  template <{kinds}>
  static TCONV_HD Acc gradient(Acc v, const Operands& args, int64_t channel, const Outer& outer,
                               Acc* sums{more}) {{
    (void)args, (void)channel, (void)sums;
{unused}    const Acc v0 = v;
    (void)v0;
{forward}    Acc grad = outer(v);
{backward}    return grad;
  }}
}};
"""


def _summed_operands(chain: list[Step]) -> int:
    """How many operands have one gradient a channel: the last one's index, and one."""
    taken = re.findall(r"\bsums\[(\d+)\]", "".join(step.gradient for step in chain))
    return 1 + max(map(int, taken), default=-1)


def _through(chain: list[Step]) -> tuple[str, str]:
    """C++ of the values v1, v2 ... behind each step, from v; and of grad back through the steps."""
    forward = "".join(
        f"    {step.device}\n    const Acc v{i} = v;\n" for i, step in enumerate(chain, 1)
    )
    backward = "".join(
        f"    {{\n      const Acc before = v{i - 1}, after = v{i};\n"
        f"      (void)before, (void)after;\n      {step.gradient}\n    }}\n"
        for i, step in reversed(list(enumerate(chain, 1)))
    )
    return forward, backward


def _includes(steps: list[Step]) -> str:
    every = [part for step in steps for part in (step, *step.parts)]
    headers = sorted({step.header for step in every if step.header})
    return "".join(f'#include "{header}"\n' for header in headers)
