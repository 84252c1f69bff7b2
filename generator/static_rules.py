"""What KernelBench-style suites look for in the text of a solution.

They match patterns on the source after cutting every line at its first `#` or `//`. A solution must
trigger none: neither what rejects it nor what only flags it.
"""

import re

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
_REQUIRED = {"a CUDA kernel (__global__)": "__global__", "a build (load_inline)": "load_inline"}


def violations(text: str, with_kernels: bool = True) -> list[str]:
    """One line for every rule that the solution `text` breaks; empty where it is clean. Without
    kernels of its own it breaks one by its nature, which is not counted then.
    """
    code = "\n".join(re.split(r"#|//", line, maxsplit=1)[0] for line in text.split("\n"))
    found = []
    for rule, pattern in _FORBIDDEN.items():
        match = re.search(pattern, code)
        if match:
            line = code.count("\n", 0, match.start())
            found.append(f"{rule}: `{code.splitlines()[line].strip()}`")
    if with_kernels:
        found += [f"missing {what}" for what, word in _REQUIRED.items() if word not in code]
    return found
