"""The portable kernel's plan, without a GPU: for every tile that is launched, of phases without
outputs too, the windows that the kernel walks are stored and read within the shared memory that the
plan asks for, for every geometry that the plan considers of many random layers.
"""

import subprocess

import pytest

from tests.random_layers import random_layers
from tests.solution_tools import ROOT, Case

# How the kernel counts windows and where a tap reads: conv_transpose_portable.cuh's find_work,
# find_window and pair_offset.
PROBE = r"""
#include <cstdio>
#include "conv_transpose_portable_plan.h"
using namespace tconv;
using namespace tconv::cuda;

struct Counts {
  long long geometries = 0, overstepping = 0, empty_phases = 0;
};

template <typename Config>
bool fits(const ConvTransposeLayer& p, const TileGeometry& g, Counts& counts) {
  const int64_t ic_blocks = ceil_div(p.in_channels / p.groups, Config::BLOCK_IC);
  bool good = true;
  for (int64_t rh = 0; rh < p.stride_h; ++rh)
    for (int64_t rw = 0; rw < p.stride_w; ++rw) {
      const AxisPhase h = phase_h(p, rh), w = phase_w(p, rw);
      counts.empty_phases += h.out_count == 0 || w.out_count == 0;
      const int64_t windows =
          ceil_div(h.tap_count, g.group_h) * ceil_div(w.tap_count, g.group_w) * ic_blocks;
      const int64_t used = windows > 1 ? 2 : 1;  // one is filled in any case
      const int64_t loop =
          Config::SMEM_RING_BYTES + used * g.window_pixels * Config::PIXEL_BYTES;
      good &= g.smem_bytes >= Config::SMEM_WORK_BYTES + loop;
      good &= g.smem_bytes >= Config::SMEM_WORK_BYTES + Config::SMEM_STAGING_BYTES;
      if (windows == 0) continue;
      const int64_t taps_h = h.tap_count < g.group_h ? h.tap_count : g.group_h;
      const int64_t taps_w = w.tap_count < g.group_w ? w.tap_count : g.group_w;
      const int64_t reach =
          (taps_h - 1) * h.offset_step * g.window_pitch + (taps_w - 1) * w.offset_step;
      for (int first = 0; first < g.tile_pixels; first += 8) {
        const int64_t line = first / g.segment_width;
        const int64_t begin = line * g.window_pitch + first - line * g.segment_width;
        good &= begin + 7 + reach < g.window_pixels;
      }
    }
  return good;
}

template <typename Config>
void check(const ConvTransposeLayer& p, Counts& counts) {
  const TileLimits limits{132, 232448, 233472, 1024};
  const auto visit = [&](const TileGeometry& g) {
    ++counts.geometries;
    counts.overstepping += !fits<Config>(p, g, counts);
  };
  for_each_geometry<Config>(p, p.batch * p.stride_h * p.stride_w * p.groups, limits, visit);
}

int main() {
  long long v[16];
  for (;;) {
    for (long long& value : v)
      if (std::scanf("%lld", &value) != 1) return 0;
    ConvTransposeLayer p{};
    p.batch = v[0], p.in_channels = v[1], p.out_channels = v[2], p.groups = v[3];
    p.in_h = v[4], p.in_w = v[5], p.out_h = v[6], p.out_w = v[7];
    p.kernel_h = v[8], p.kernel_w = v[9], p.stride_h = v[10], p.stride_w = v[11];
    p.padding_h = v[12], p.padding_w = v[13], p.dilation_h = v[14], p.dilation_w = v[15];
    Counts counts;
    check<PortableConfig<Numeric::kTF32>>(p, counts);
    check<PortableConfig<Numeric::kStrictFP32>>(p, counts);
    check<PortableConfig<Numeric::kFP16>>(p, counts);
    std::printf("%lld %lld %lld\n", counts.geometries, counts.overstepping, counts.empty_phases);
  }
}
"""


@pytest.fixture(scope="module")
def probe(tmp_path_factory):
    """(geometries, those that overstep shared memory, empty phases seen) of each case."""
    folder = tmp_path_factory.mktemp("portable")
    source, program = folder / "probe.cpp", folder / "probe"
    source.write_text(PROBE)
    flags = ["-std=c++17", "-O1", f"-I{ROOT / 'kernels_src' / 'cuda'}"]
    subprocess.run(["c++", *flags, str(source), "-o", str(program)], check=True)

    def ask(cases: list[Case]) -> list[tuple[int, ...]]:
        lines = []
        for case in cases:
            sizes = (case.batch, case.in_channels, case.out_channels, case.groups, *case.size)
            axes = (*case.output_size, *case.kernel, *case.stride, *case.padding, *case.dilation)
            lines.append(" ".join(map(str, (*sizes, *axes))))
        done = subprocess.run(
            [program], input="\n".join(lines), capture_output=True, text=True, check=True
        )
        return [tuple(map(int, line.split())) for line in done.stdout.splitlines()]

    return ask


@pytest.mark.parametrize("seed", range(3))
def test_windows_stay_within_shared_memory(probe, seed):
    layers = list(random_layers(seed, 700))
    answers = probe([layer.case for layer in layers])
    assert len(answers) == len(layers)
    wrong = [str(layer) for layer, answer in zip(layers, answers, strict=True) if answer[1]]
    assert wrong == []
    assert min(geometries for geometries, _, _ in answers) > 0
    assert sum(empty > 0 for _, _, empty in answers) > 20
