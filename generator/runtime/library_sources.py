"""The sources of the libraries beside the forward's, each of which a solution holds without the
lines that another of its sources has.
"""

import re as _re

from generator.runtime.build import _short_digest
from generator.runtime.generated import CPU_SOURCE, CUDA_SOURCE, OPERATOR_SOURCE


def _with_shared_lines(text: str, given: dict[str, str]) -> str:
    """Puts lines of sources back, by name, where only their numbers stand."""
    there = {name: source.splitlines() for name, source in given.items()}
    return _re.sub(
        r"// ==== lines (\d+) to (\d+) of (\w+)",
        lambda run: "\n".join(there[run[3]][int(run[1]) : int(run[2])]),
        text,
    )


def _whole_library(name: str, cuda_source: str, operator_source: str, **given: str) -> tuple:
    """(the library's namespace, the source of its operator, that of its kernels). given: sources of
    kernels, whole, besides the forward's.
    """
    cuda = _with_shared_lines(cuda_source, {"CUDA_SOURCE": CUDA_SOURCE, **given})
    of_forward = {"CPU_SOURCE": CPU_SOURCE, "OPERATOR_SOURCE": OPERATOR_SOURCE}
    operator = _with_shared_lines(operator_source, of_forward)
    return f"{name}_{_short_digest(cuda, operator)}", operator, cuda
