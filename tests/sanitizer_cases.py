"""Every CUDA kernel of the committed solutions on small shapes, to run under compute-sanitizer:

for tool in memcheck racecheck initcheck synccheck; do
    compute-sanitizer --tool $tool --error-exitcode 1 --kernel-regex kns=tconv \\
        python -m tests.sanitizer_cases
done

It compares nothing (tests/test_gpu_operator.py does); it exits 1 where an output is not finite.
"""

import sys

import torch

from tests.solution_tools import ROOT, environment, load_text

# Constructor arguments and input shape, small enough for the tools, with tails in every direction.
CASES = {
    "level1/65_conv_transpose_3x7": [
        ((20, 70, (3, 7)), (2, 20, 9, 30)),
        ((64, 64, (3, 3), 2, 1, 1), (1, 64, 7, 12)),
    ],
    "level2/11_conv_transpose_batch_norm_tanh_max_pool_group_norm": [
        ((64, 128, 5, 1, 1, 8, 8), (2, 64, 12, 12)),
    ],
    "level2/19_conv_transpose_gelu_group_norm": [
        ((64, 64, 3, 1, 8, 8), (2, 64, 10, 28)),
        ((64, 64, 3, 1, 8, 2), (1, 64, 60, 60)),  # groups too large for one block
    ],
}


def main() -> int:
    bad = 0
    kernels = ["plain", "portable"]
    if torch.cuda.get_device_capability() == (9, 0):
        kernels.append("hopper")
    for name, cases in CASES.items():
        namespace = load_text((ROOT / "solutions" / f"{name}.py").read_text(), "solution")
        for arguments, shape in cases:
            for dtype in (torch.float32, torch.bfloat16):
                for kernel in kernels:
                    torch.manual_seed(0)
                    model = namespace["ModelNew"](*arguments).to(dtype).to("cuda")
                    x = torch.randn(shape).to(dtype)
                    with torch.no_grad(), environment(TCONV_KERNEL=kernel):
                        # Copied in, not computed there: the filter hides other kernels' writes.
                        y = model(x.to("cuda"))
                        if dtype == torch.float32:
                            model((x * 1e6).to("cuda"))  # beyond fp16: the guarded fallback
                    torch.cuda.synchronize()
                    finite = bool(y.isfinite().all())
                    bad += not finite
                    verdict = "ok" if finite else "NOT FINITE"
                    print(name, arguments, str(dtype), kernel, verdict, flush=True)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
