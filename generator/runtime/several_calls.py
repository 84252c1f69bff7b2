"""Several operators in one library: the sources once for each of them."""

from generator.runtime.generated import _CALLS

# What is outside of the sources' own namespace, and that namespace.
_NAMES = (
    *("tconv", "tconv_cpu_computes_in", "tconv_cpu_error_string", "tconv_cpu_workspace_bytes"),
    *("tconv_cpu_run", "tconv_cuda_error_string", "tconv_cuda_workspace_bytes", "tconv_cuda_run"),
    "tconv_cuda_hopper",
)


def _repeated(source: str, kinds) -> str:
    """`source` again for each of `kinds`, the kinds of the calls, under names of its own."""
    parts = []
    for index, kind in enumerate(kinds):
        given = [("TCONV_CALL", index), ("TCONV_KIND", kind)]
        given += [(name, f"{name}_{index}") for name in _NAMES]
        parts += [f"#define {name} {value}" for name, value in given]
        parts.append(source)
        parts += [f"#undef {name}" for name, _ in given]
        parts.append("#undef TCONV_MORE_KERNELS")
    return "\n".join([*parts, ""])


def _for_each_call(source: str) -> str:
    return _repeated(source, _CALLS)
