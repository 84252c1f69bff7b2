"""A step: what one element-wise operation is to the emitter. Records of the operations that make
steps are in generator/ops/.
"""

import dataclasses
import math
from typing import Any


@dataclasses.dataclass(frozen=True)
class Step:
    """One element-wise step. `device` is C++ that changes `v`; `python` constructs the step for the
    backward. `header`: of kernels_src, with what `device` calls beside elementwise.h. `monotone`:
    it never falls, and makes NaN of NaN alone.
    """

    kind: str
    device: str
    python: str
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


def _includes(steps: list[Step]) -> str:
    headers = sorted({step.header for step in steps if step.header})
    return "".join(f'#include "{header}"\n' for header in headers)
