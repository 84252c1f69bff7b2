"""The CUDA half of a solution asked which kernel it takes for calls of any size: its host code as
it is, on emulated devices whose launches do nothing.
"""

import json
import re
import subprocess
from pathlib import Path

from generator.sources import KERNELS, resolve
from harness.measure.machine_code_calls import KERNELS as CHOICES
from tests.cuda_emulator.emulator import FULL_HOPPER, cuda_headers
from tests.solution_tools import ROOT

_PROGRAM = r"""
#include <cstdio>
#include <iostream>
#include <map>
#include <string>
#define TCONV_UNHIDDEN extern "C"
TCONV_UNHIDDEN int64_t tconv_cuda_workspace_bytes(const tconv::CALL*);
TCONV_UNHIDDEN int64_t tconv_cuda_run(const tconv::CALL*);
TCONV_UNHIDDEN void emulator_set(int64_t, int64_t, int64_t, int64_t);
TCONV_UNHIDDEN void emulator_set_idle(int64_t);
#include "machine_code_driver.h"

static std::map<std::string, double> told;
int64_t machine_code::number(const char* name) { return static_cast<int64_t>(told[name]); }
double machine_code::real(const char* name) { return told[name]; }

// Of a pattern that may be given the convolution's output.
template <typename Call>
auto set_conv_out(Call& call, int) -> decltype(call.conv_out, void()) {
  machine_code::set_pointer(call.conv_out, "conv_out");
}
template <typename Call>
void set_conv_out(Call&, long) {}

// Slices of volumes, of one tap in depth, where they are told.
template <typename Call>
auto set_depth(Call& call, int) -> decltype(call.conv.depth, void()) {
  auto& depth = call.conv.depth;
  depth.slices = machine_code::number("slices");
  depth.taps = depth.in_depth = depth.kernel_depth = depth.step = depth.kernel_step = 1;
}
template <typename Call>
void set_depth(Call&, long) {}

int main() {
  emulator_set_idle(1);
  std::string name;
  double value;
  while (std::cin >> name >> value) {
    if (name != "run") {
      told[name] = value;
      continue;
    }
    emulator_set(machine_code::number("device"), 0, 0, machine_code::number("together"));
    tconv::CALL call{};
    tconv::Explanation said;
    machine_code::num_buffers = 0;
    machine_code::fill(call);
    set_conv_out(call, 0);
    set_depth(call, 0);
    call.conv.explanation = &said;
    call.conv.workspace_bytes = tconv_cuda_workspace_bytes(&call);
    const long long status = tconv_cuda_run(&call);
    const auto shown = [](const char* text) { return text == nullptr ? "" : text; };
    std::printf("{\"status\": %lld, \"kernel\": \"%s\"", status, shown(said.kernel));
    std::printf(", \"way\": \"%s\", \"failure\": \"%s\"", said.way, shown(said.failure));
    std::printf(", \"ruled_out\": {");
    for (int i = 0; i < said.num_ruled_out; ++i) {
      const tconv::Explanation::RuledOut& out = said.ruled_out[i];
      std::printf("%s\"%s\": \"%s\"", i ? ", " : "", out.kernel, out.why);
    }
    std::printf("}}\n");
    told.clear();
  }
}
"""

# Fields of kernels_src/call.h: 3x3, padded, 64 channels to 64, TF32 on an H100's 132 processors.
CONV = {"batch": 8, "in_channels": 64, "out_channels": 64, "groups": 1, "in_h": 64, "in_w": 64}
CONV |= {"kernel_h": 3, "kernel_w": 3, "stride_h": 1, "stride_w": 1, "padding_h": 1, "padding_w": 1}
CONV |= {"dilation_h": 1, "dilation_w": 1, "dtype": 0, "math": 0, "kernel_choice": 0}
CONV |= dict.fromkeys(("x", "weight", "bias", "out", "workspace", "together"), 1)
CONV |= {"device": FULL_HOPPER, "more_h": 0, "more_w": 0}
NORM = {"num_groups": 8, "group_norm_eps": 1e-5, "use_batch_stats": 1, "batch_norm_eps": 1e-5}
POOL = {"kernel": 2, "stride": 2, "padding": 0, "dilation": 1}


def reasons() -> dict[str, str]:
    """The sentences of kernels_src/reasons.h by their names."""
    text = (KERNELS / "reasons.h").read_text()
    found = dict(re.findall(r'(k\w+) =\s*"([^"]*)"', text))
    assert len(found) == text.count("constexpr")
    return found


def fields(changes: dict) -> dict[str, float]:
    """A call's, with those changed that `changes` names; kernel_choice by name, pool_* too."""
    made = {**CONV, **changes}
    for axis in "hw":
        steps = (made[f"in_{axis}"] - 1) * made[f"stride_{axis}"] - 2 * made[f"padding_{axis}"]
        taps = made[f"dilation_{axis}"] * (made[f"kernel_{axis}"] - 1) + 1
        made[f"out_{axis}"] = steps + taps + made.pop(f"more_{axis}")
        pool = {name: changes.get(f"pool_{name}", value) for name, value in POOL.items()}
        made |= {f"pool_{name}_{axis}": value for name, value in pool.items()}
        span = made[f"out_{axis}"] + 2 * pool["padding"] - pool["kernel"]
        made[f"pooled_{axis}"] = span // pool["stride"] + 1
    made = {name: value for name, value in made.items() if name not in map("pool_{}".format, POOL)}
    made["kernel_choice"] = CHOICES.get(made["kernel_choice"], made["kernel_choice"])
    return {**NORM, **made}


def build(folder: Path, kernels: Path, call: str, volumes: bool = False):
    """A function from changes of fields to what the pattern's half says, as a dictionary.

    volumes: of a solution with layers of three dimensions.
    """
    source, program = folder / "probe.cpp", folder / "probe"
    header = resolve(KERNELS / "call.h", volumes=volumes)
    source.write_text(header + _PROGRAM.replace("CALL", call))
    include = [f"-I{ROOT / 'harness' / 'measure'}", f"-I{cuda_headers()}"]
    command = ["g++", "-std=c++17", "-Wall", *include, str(source), str(kernels), "-ldl"]
    subprocess.run([*command, "-o", str(program)], check=True)

    def ask(**changes) -> dict:
        lines = [f"{name} {value}" for name, value in fields(changes).items()]
        given = "\n".join([*lines, "run 1", ""])
        done = subprocess.run([program], input=given, capture_output=True, text=True, check=True)
        return json.loads(done.stdout)

    return ask
