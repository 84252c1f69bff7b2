"""What KernelBench-style suites look for in the text of a solution.

They match patterns on the source after cutting every line at its first `#` or `//`. A solution must
trigger none: neither what rejects it nor what only flags it.
"""

import re
from dataclasses import dataclass

_LAYER_EXCEPTIONS = (
    "Module|parameter|Parameter|ParameterList|ParameterDict|ModuleList|ModuleDict|init"
)
_COMPUTATIONS = (
    "mm bmm matmul einsum conv1d conv2d conv3d conv conv_transpose1d conv_transpose2d "
    "conv_transpose3d avg_pool1d "
    "avg_pool2d avg_pool3d max_pool1d max_pool2d max_pool3d adaptive_avg_pool1d "
    "adaptive_avg_pool2d "
    "adaptive_avg_pool3d adaptive_max_pool1d adaptive_max_pool2d adaptive_max_pool3d relu "
    "hardtanh elu selu "
    "leaky_relu gelu softsign softplus softmax log_softmax tanh sigmoid hardsigmoid silu mish "
    "batch_norm group_norm "
    "layer_norm instance_norm rms_norm normalize linear cross_entropy kl_div mse_loss huber_loss "
    "triplet_margin_loss "
    "cosine_similarity logsumexp clamp dropout"
)
_FORBIDDEN = {
    "exception handling": r"\btry\s*:|\bexcept\s*:|\bexcept\s+\w",
    "the word `pass`": r"\bpass\b",
    "threads or processes": (
        r"import\s+(?:threading|multiprocessing)|from\s+threading\s+import|threading\.Thread\s*\("
        r"|multiprocessing\.(?:Process|Pool|Manager|Queue|Pipe)|concurrent\.futures"
        r"|(?:Thread|Process)PoolExecutor"
    ),
    "a tensor subclass": (
        r"_make_subclass|class\s+\w+.*\((?:torch\.)?Tensor\)|torch\.Tensor\.__new__"
    ),
    "a replaced clock": (
        r"torch\.cuda\.(?:Event(?:\.record|\.elapsed_time)?|synchronize)\s*="
        r"|time\.(?:perf_counter|time)\s*="
    ),
    "a layer written as torch.nn.<layer>": rf"torch\.nn\.(?!(?:{_LAYER_EXCEPTIONS})\b)",
    "a torch computation": (rf"\btorch\.(?:{_COMPUTATIONS.replace(' ', '|')})(?=\s*\(|\s|$)"),
    "a torch.nn functional": (
        r"\bnn\.functional\.\w"
        r"|\bF\.(?:conv|linear|relu|gelu|softmax|batch_norm|layer_norm|dropout|max_pool|avg_pool)"
    ),
    "streams": (
        r"cuda\.Stream\s*\(|with\s+torch\.cuda\.stream|\.wait_stream\s*\(|\.record_stream\s*\("
    ),
    "a narrowing conversion to half": (
        r"__float2half(?:_rn)?\s*\(|\(\s*__half\s*\)\s*[\w\->.]|static_cast\s*<\s*(?:__half|half)\s*>\s*\("
        r"|\.(?:half|float16)\s*\(|\.to\s*\(\s*(?:dtype\s*=\s*)?torch\.(?:float16|half)\b"
        r"|NumericConverter\s*<\s*half_t|LinearCombination\s*<\s*half_t|type_convert\s*<\s*half_t"
    ),
}
# What the checker takes for an error; the rest is a warning.
_ERRORS = {
    "exception handling",
    "the word `pass`",
    "threads or processes",
    "a tensor subclass",
    "a replaced clock",
}
_HALF = "a narrowing conversion to half"
# Languages beside CUDA: how a text shows that it uses one, and what must be in it then.
_LANGUAGES = {
    "Triton": (r"^\s*(?:import|from)\s+triton\b", (r"@triton\.(?:jit|autotune)", r"\btl\.\w+")),
    "TileLang": (r"^\s*(?:import|from)\s+tilelang\b", (r"@T\.prim_func",)),
    "CUTLASS": (r"cute::|cutlass::|from cutlass", ()),
}
_REQUIRED = {"a CUDA kernel (__global__)": "__global__", "a build (load_inline)": "load_inline"}


@dataclass(frozen=True)
class Findings:
    """What the checker says of a solution, a line for each rule: errors reject, warnings do not."""

    errors: list[str]
    warnings: list[str]


def violations(text: str, with_kernels: bool = True) -> list[str]:
    """One line for every rule that the solution `text` breaks; empty where it is clean. Without
    kernels of its own it breaks one by its nature, which is not counted then.
    """
    code = _code(text)
    found = list(_forbidden(code).values())
    if with_kernels:
        found += [f"missing {what}" for what, word in _REQUIRED.items() if word not in code]
    return found


def rejections(text: str) -> list[str]:
    """Of what violations() tells, that for which the checker rejects, kernels that are missing
    aside.
    """
    return [told for rule, told in _forbidden(_code(text)).items() if rule in _ERRORS]


def findings(text: str, dtype: str) -> Findings:
    """What the checker finds in a solution that is evaluated in `dtype`: narrowing to half is
    counted in float32 alone. Any build of cpp_extension will do for a CUDA kernel here.
    """
    code = _code(text)
    found = _forbidden(code)
    if dtype != "float32":
        found.pop(_HALF, None)
    errors = [told for rule, told in found.items() if rule in _ERRORS] + _missing(code)
    return Findings(errors, [told for rule, told in found.items() if rule not in _ERRORS])


def _code(text: str) -> str:
    return "\n".join(re.split(r"#|//", line, maxsplit=1)[0] for line in text.split("\n"))


def _forbidden(code: str) -> dict[str, str]:
    """By rule: its name and the first line that breaks it."""
    found = {}
    for rule, pattern in _FORBIDDEN.items():
        match = re.search(pattern, code)
        if match:
            line = code.count("\n", 0, match.start())
            found[rule] = f"{rule}: `{code.splitlines()[line].strip()}`"
    return found


def _missing(code: str) -> list[str]:
    for language, (sign, needed) in _LANGUAGES.items():
        if re.search(sign, code, re.MULTILINE):
            there = all(re.search(pattern, code) for pattern in needed)
            return [] if there else [f"missing a {language} kernel"]
    missing = ["missing a CUDA kernel (__global__)"] * ("__global__" not in code)
    built = any(word in code for word in ("load_inline", "cpp_extension"))
    return missing + ["missing a build (load_inline or cpp_extension)"] * (not built)
