"""A step: what one element-wise operation is to the emitter. Records of the operations that make
steps are in generator/ops/.
"""

import dataclasses
import math
import re
from typing import Any


@dataclasses.dataclass(frozen=True)
class Step:
    """One element-wise step. `device` is C++ that changes `v`; `python` constructs the step for the
    backward. `header`: of kernels_src, with what `device` calls beside elementwise.h. `monotone`:
    it never falls, and makes NaN of NaN alone. `gradient`: C++ that turns `grad`, the gradient of
    `after`, into that of `before` (with elementwise/slopes.h), and adds that of the per-channel
    operand of index i to `sums[i]`.
    """

    kind: str
    device: str
    python: str
    gradient: str
    monotone: bool = False
    header: str | None = None


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


def epilogue_header(steps: list[Step]) -> str:
    """The text that takes the place of kernels_src/generated_epilogue.h."""
    body = "".join(f"    {step.device}\n" for step in steps)
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
}};

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


def gradient_header(chains: list[list[Step]]) -> str:
    """The text that takes the place of kernels_src/generated_gradient.h."""
    parts = "".join(_chain_gradient(index, chain) for index, chain in enumerate(chains))
    return f"""#pragma once
{_includes([step for chain in chains for step in chain])}
namespace tconv {{

constexpr int kNumChains = {len(chains)};

template <int kIndex>
struct Chain;
{parts}
}}  // namespace tconv
"""


def _chain_gradient(index: int, chain: list[Step]) -> str:
    value = "".join(f"    {step.device}\n" for step in chain)
    taken = re.findall(r"\bsums\[(\d+)\]", "".join(step.gradient for step in chain))
    vectors = 1 + max(map(int, taken), default=-1)
    forward = "".join(
        f"    {step.device}\n    const Acc v{i} = v;\n" for i, step in enumerate(chain, 1)
    )
    backward = "".join(
        f"    {{\n      const Acc before = v{i - 1}, after = v{i};\n"
        f"      (void)before, (void)after;\n      {step.gradient}\n    }}\n"
        for i, step in reversed(list(enumerate(chain, 1)))
    )
    return f"""
template <>
struct Chain<{index}> {{
  static constexpr int kVectors = {vectors};
  template <typename Storage, typename Acc, typename Operands>
  static TCONV_HD Acc value(Acc v, const Operands& args, int64_t channel) {{
    (void)args, (void)channel;
{value}    return v;
  }}
  template <typename Storage, typename Acc, typename Operands, typename Outer>
  static TCONV_HD Acc gradient(Acc v, const Operands& args, int64_t channel, const Outer& outer,
                               Acc* sums) {{
    (void)args, (void)channel, (void)sums;
    const Acc v0 = v;
    (void)v0;
{forward}    Acc grad = outer(v);
{backward}    return grad;
  }}
}};
"""


def _includes(steps: list[Step]) -> str:
    headers = sorted({step.header for step in steps if step.header})
    return "".join(f'#include "{header}"\n' for header in headers)
