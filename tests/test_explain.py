"""TCONV_EXPLAIN=1: each kind of call says once which kernel it takes and why no faster one."""

import re
import subprocess
import sys

import pytest

from generator.sources import KERNELS
from tests.explain_probe import reasons
from tests.solution_tools import ROOT, environment
from tests.sweeps import swept

# Reasons of the CPU's kernels alone; tests/test_cuda_emulated_explain.py has the others.
ON_A_CPU = {"kNoAvx512", "kNoAvx2", "kNonFiniteWeights"}
_CALLS = """
import sys
import torch
from tests.solution_tools import load_text

operator = load_text(open(sys.argv[1]).read())["_operator"]


def call(x, weight, stride=1):
    operator(x, weight, None, (stride, stride), (0, 0), (0, 0), (1, 1), 1)


x, weight = torch.randn(2, 4, 7, 9), torch.randn(4, 6, 3, 3)
call(x, weight)
call(x, weight)
print("stride", file=sys.stderr)
call(x, weight, stride=2)
print("double", file=sys.stderr)
call(x.double(), weight.double())
print("nan", file=sys.stderr)
weight[0, 0, 0, 0] = float("nan")
call(x, weight)
"""
_PROBE = r"""
#include "vector_code.h"
#include "explain.h"
#include <cstdio>
#include <initializer_list>
using namespace tconv;

int main() {
  const cpu::CpuFeatures machines[] = {{false, false}, {true, false}, {true, true}};
  for (const cpu::CpuFeatures& machine : machines)
    for (const int64_t choice : {kAuto, kAtMostAvx2, kPortable}) {
      ConvCall call{};
      Explanation said;
      call.kernel_choice = choice, call.explanation = &said;
      cpu::explain(call, nullptr, machine);
      std::printf("%s", said.kernel);
      for (int i = 0; i < said.num_ruled_out; ++i)
        std::printf("; %s: %s", said.ruled_out[i].kernel, said.ruled_out[i].why);
      std::printf("\n");
    }
}
"""


def said(text: str, folder, **variables) -> str:
    """Standard error of the calls above."""
    path, calls = folder / "solution.py", folder / "calls.py"
    path.write_text(text)
    calls.write_text(_CALLS)
    with environment(**{"TCONV_EXPLAIN": None, "TCONV_KERNEL": None, **variables}):
        done = subprocess.run(
            [sys.executable, "-c", f"exec(open({str(calls)!r}).read())", str(path)],
            cwd=ROOT,
            capture_output=True,
            text=True,
        )
    assert done.returncode == 0 or "Error" in done.stderr, done
    return done.stderr


@pytest.fixture(scope="module")
def explain(shelf, tmp_path_factory):
    folder = tmp_path_factory.mktemp("explain")
    shelf["69"]  # built

    def run(**variables):
        with shelf.build_folder():
            return said(shelf.text("69"), folder, **variables)

    return run


def test_a_line_for_each_kind_of_call(explain):
    first, *others = explain(TCONV_EXPLAIN=1, TCONV_KERNEL="portable").splitlines()
    head = (
        "tconv: input 2x4x7x9, output 6x9x11, kernel 3x3, stride 1x1, padding 0x0, dilation 1x1, "
    )
    forced = reasons()["kForced"]
    end = f"groups 1, in torch.float32 on cpu: portable; not avx512 or avx2: {forced}"
    assert first == head + end
    stride, second, double, third, nan, fourth = others
    assert (stride, double, nan) == ("stride", "double", "nan")  # the same call says it once
    assert "output 6x15x19, kernel 3x3, stride 2x2" in second
    not_any = "plain; not avx512 or avx2 or portable: "
    assert third.endswith(f"in torch.float64 on cpu: {not_any}{reasons()['kFP64']}")
    assert fourth == f"{first.partition('cpu: ')[0]}cpu: {not_any}{reasons()['kNonFiniteWeights']}"


def test_the_kernel_of_this_machine(explain):
    first = explain(TCONV_EXPLAIN=1).splitlines()[0]
    kernel, *ruled_out = first.partition("on cpu: ")[2].split("; ")
    found = re.search(r"^flags\s*:(.*)$", open("/proc/cpuinfo").read(), re.MULTILINE)[1].split()
    wanted = "avx512" if "avx512vl" in found else "avx2" if "avx2" in found else "portable"
    assert kernel == wanted and len(ruled_out) == ["avx512", "avx2", "portable"].index(kernel)


@pytest.mark.parametrize("value", swept([None, "0"]))
def test_nothing_is_said_unasked(explain, value):
    assert explain(TCONV_EXPLAIN=value).splitlines() == ["stride", "double", "nan"]


@pytest.mark.sweep
def test_another_value_is_refused(explain):
    assert "TCONV_EXPLAIN must be 0 or 1, got 'yes'" in explain(TCONV_EXPLAIN="yes")


@pytest.mark.parametrize("value", swept([None, "1"]))
def test_a_refusal_says_why(explain, value):
    wanted = "the kernel forced by TCONV_KERNEL cannot run this layer: "
    assert wanted + reasons()["kNoSuchKernel"] in explain(
        TCONV_EXPLAIN=value, TCONV_KERNEL="hopper"
    )


def test_kernels_of_other_machines(tmp_path):
    source, program = tmp_path / "probe.cpp", tmp_path / "probe"
    source.write_text(_PROBE)
    include = f"-I{KERNELS / 'cpu'}"
    command = ["c++", "-std=c++17", "-Wall", "-Werror", include, str(source), "-o", str(program)]
    subprocess.run(command, check=True)
    done = subprocess.run([program], capture_output=True, text=True, check=True)
    known = reasons()
    no_avx512, no_avx2 = f"; avx512: {known['kNoAvx512']}", f"; avx2: {known['kNoAvx2']}"
    forced_avx512, forced_avx2 = (f"; {name}: {known['kForced']}" for name in ("avx512", "avx2"))
    assert done.stdout.splitlines() == [
        f"portable{no_avx512}{no_avx2}",
        f"portable{forced_avx512}{no_avx2}",
        f"portable{forced_avx512}{forced_avx2}",
        f"avx2{no_avx512}",
        f"avx2{forced_avx512}",
        f"portable{forced_avx512}{forced_avx2}",
        "avx512",
        f"avx2{forced_avx512}",
        f"portable{forced_avx512}{forced_avx2}",
    ]
