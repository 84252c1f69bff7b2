"""What each version of the Hopper kernel was expected to take, by its own cost model.

    python -m lab.predicted_ladder

compiles the plan headers of the commits that the ladder's versions are, as git has them, and asks
each for the problems' convolutions by themselves on an H200. The model gives cycles; at CLOCK_GHZ,
which the GPU keeps in the harness, they are milliseconds. Needs a C++ compiler and the whole
history; versions that are not here were not committed by themselves. The program speaks the names
of those commits: sm90 for hopper, a problem for a layer.
"""

import subprocess
import sys
import tempfile
from pathlib import Path

from tests.hopper_plan_probe import H200
from tests.solution_tools import ROOT

CLOCK_GHZ = 1.82
# Version of the ladder, its commit, and what its make_plan takes between problem and device.
VERSIONS = {
    "1": ("c343859", ""),
    "6": ("2e1d3e1", ""),
    "7": ("94c55ce", "false, "),
    "11": ("fea4974", "false, "),
    "12": ("66d3233", "false, "),
    "13": ("be2d25b", "false, "),
    "14": ("4dc317b", "false, "),
    "15": ("a15b433", "false, false, "),
    "16": ("1db9a54", "false, false, "),
    "17": ("031c5f4", "Outputs::kAlone, false, "),
    "17, planner mended": ("ff9759f", "Outputs::kAlone, false, "),
}
# batch, in_channels, out_channels, height, width, kernel height, width, padding.
PROBLEMS = {
    "1/65": (8, 64, 64, 512, 512, 3, 7, 0),
    "1/69": (64, 64, 128, 128, 256, 3, 5, 0),
    "2/11": (512, 64, 128, 32, 32, 5, 5, 1),
    "2/19": (128, 64, 64, 256, 256, 3, 3, 0),
}
_PROGRAM = """
#include <cstdio>
#include "conv_transpose_sm90_plan.h"
using namespace tconv;
using namespace tconv::sm90;
int main() {{
  const long long problems[][8] = {{{problems}}};
  for (const auto& v : problems) {{
    ConvTransposeProblem p{{}};
    p.batch = v[0], p.in_channels = v[1], p.out_channels = v[2], p.groups = 1;
    p.in_h = v[3], p.in_w = v[4], p.kernel_h = v[5], p.kernel_w = v[6];
    p.out_h = p.in_h + p.kernel_h - 1 - 2 * v[7], p.out_w = p.in_w + p.kernel_w - 1 - 2 * v[7];
    p.stride_h = p.stride_w = p.dilation_h = p.dilation_w = 1, p.padding_h = p.padding_w = v[7];
    p.x_stride_w = 1, p.x_stride_h = p.in_w, p.x_stride_c = p.in_h * p.in_w;
    p.x_stride_n = p.in_channels * p.x_stride_c;
    std::printf("%.17g\\n", make_plan(p, {between}{device}).cost);
  }}
}}
"""


def predicted(version: str) -> list[float]:
    """Milliseconds of each problem by that version's model.

    Raises CalledProcessError where git lacks the commit or the compiler fails.
    """
    commit, between = VERSIONS[version]
    problems = ", ".join("{" + ", ".join(map(str, values)) + "}" for values in PROBLEMS.values())
    device = ", ".join(map(str, H200))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        archive = ["git", "-C", str(ROOT), "archive", commit, "kernels_src"]
        tar = subprocess.run(archive, check=True, capture_output=True).stdout
        subprocess.run(["tar", "-x", "-C", name], input=tar, check=True)
        source = folder / "probe.cpp"
        source.write_text(_PROGRAM.format(problems=problems, between=between, device=device))
        program = folder / "probe"
        include = folder / "kernels_src" / "cuda"
        build = ["c++", "-std=c++17", "-O1", f"-I{include}", str(source), "-o", str(program)]
        subprocess.run(build, check=True)
        done = subprocess.run([program], check=True, capture_output=True, text=True)
    return [float(line) / CLOCK_GHZ / 1e6 for line in done.stdout.split()]


def main() -> int:
    """Print the table; exit status 1 where git or the compiler fails."""
    print("| version | " + " | ".join(PROBLEMS) + " |\n|" + " --- |" * (len(PROBLEMS) + 1))
    for version in VERSIONS:
        try:
            times = predicted(version)
        except subprocess.CalledProcessError as error:
            told = (error.stderr or b"").decode(errors="replace").strip()
            print(f"version {version}: {error.cmd[0]} failed: {told}", file=sys.stderr)
            return 1
        print(f"| {version} | " + " | ".join(f"{time:.2f}" for time in times) + " |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
