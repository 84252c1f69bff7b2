"""The Hopper kernel's plan, which is plain C++, compiled by itself and asked about cases."""

import json
import random
import subprocess
from collections.abc import Callable
from types import SimpleNamespace

from tests.solution_tools import ROOT

H200 = (232448, 132)  # bytes of shared memory for a block, SMs
HEADERS = [f"conv_transpose_hopper_{part}.h" for part in ("types", "cost", "plan")]
PROBE = r"""
#include <cstdio>
#include "conv_transpose_hopper_plan.h"
using namespace tconv;
using namespace tconv::hopper;
static_assert(kUnitPixels == 64 && kTapBytes == 8192 && kPixelBytes == 128, "");
static_assert(kMaxRingUnits == 28 && kMaxWeightStages == 32, "");

void show(const Plan& q) {
  std::printf("{\"usable\": %d, \"reason\": \"%s\"", q.usable, q.reason ? q.reason : "");
#define SHOW(field) std::printf(", \"" #field "\": %lld", static_cast<long long>(q.field));
  SHOW(line_samples) SHOW(image_rows) SHOW(ring_ic_blocks) SHOW(ring_block_pixels)
  SHOW(row_offset) SHOW(col_offset) SHOW(window_loads) SHOW(sweep_tiles) SHOW(alternate)
  SHOW(producer_warps) SHOW(num_consumers) SHOW(n) SHOW(twin) SHOW(last_tapped_phase)
  SHOW(tile_w) SHOW(pitch) SHOW(num_segments) SHOW(segment_pixels)
  SHOW(tile_pixels) SHOW(pooled) SHOW(reach) SHOW(tap_step_h) SHOW(tap_step_w) SHOW(num_phases)
  SHOW(num_strips) SHOW(num_tiles) SHOW(line_tiles) SHOW(range_tiles) SHOW(total_tiles)
  SHOW(num_groups) SHOW(in_channels_per_group) SHOW(out_channels_per_group) SHOW(num_ic_blocks)
  SHOW(num_sweeps) SHOW(blocks_per_sweep) SHOW(window_units) SHOW(ring_units) SHOW(mirror_pixels)
  SHOW(store_bytes_per_warp) SHOW(weight_stages) SHOW(ring_stages) SHOW(resident_weights)
  SHOW(num_weight_tiles) SHOW(ring_bytes) SHOW(smem_bytes) SHOW(batches_in_flight)
  if (q.usable) std::printf(", \"num_ranges\": %d", q.num_ranges());
  std::printf(", \"cost\": %.17g, \"phases\": [", q.cost);
  for (int i = 0; i < q.num_phases && q.usable; ++i) {
    const Phase& f = q.phases[i];
    std::printf("%s[%d, %d, %d, %d, %d, %d, %d, %d, %d, %d]", i ? ", " : "", f.out_first_h,
                f.out_first_w, f.out_count_h, f.out_count_w, f.taps_h, f.taps_w, f.row_shift,
                f.col_shift, f.first_pixel, f.weight_base);
  }
  std::printf("]}\n");
}

// For each case: the plans of both calls, every cut that plan_tiles takes, and an empty line.
int main() {
  long long v[19];
  for (;;) {
    for (long long& value : v)
      if (std::scanf("%lld", &value) != 1) return 0;
    ConvTransposeLayer p{};
    p.batch = v[0], p.in_channels = v[1], p.out_channels = v[2], p.groups = v[3];
    p.in_h = v[4], p.in_w = v[5], p.out_h = v[6], p.out_w = v[7];
    p.kernel_h = v[8], p.kernel_w = v[9], p.stride_h = v[10], p.stride_w = v[11];
    p.x_stride_w = 1, p.x_stride_h = p.in_w, p.x_stride_c = p.in_h * p.in_w;
    p.x_stride_n = p.in_channels * p.x_stride_c;
    p.padding_h = v[12], p.padding_w = v[13], p.dilation_h = v[14], p.dilation_w = v[15];
    const int smem = static_cast<int>(v[16]), sms = static_cast<int>(v[17]);
    const bool sixteen_bit = v[18] == 1;
    show(make_plan(p, Outputs::kAlone, sixteen_bit, smem, sms));
    show(make_plan(p, Outputs::kPooled, sixteen_bit, smem, sms));
    const Plan geometry = plan_geometry(p);
    for (const Shape& shape : kShapes)
      for (int blocks = 1; blocks <= shape.consumers && geometry.usable; ++blocks)
        for (int strips = 1; strips <= 3; ++strips)
          for (int single = 0; single < 2; ++single)
            for (int kind = 0; kind < 6; ++kind) {
              const bool pooled = kind % 3 == 1, stacked = kind % 3 == 2, side_by_side = kind >= 3;
              const Outputs outputs = pooled ? Outputs::kPooled : Outputs::kAlone;
              if (!serves(shape, outputs, sixteen_bit)) continue;
              Plan plan = geometry;
              if (plan_tiles(plan, p, shape, strips, blocks, single, pooled, stacked,
                             side_by_side, sixteen_bit, smem, sms))
                show(plan);
            }
    std::printf("\n");
  }
}
"""

# batch, in, out, groups, (H, W), kernel, stride, padding, dilation
SHAPES = [
    (8, 64, 64, 1, (512, 512), (3, 7), (1, 1), (0, 0), (1, 1)),
    (64, 64, 128, 1, (128, 256), (3, 5), (1, 1), (0, 0), (1, 1)),
    (512, 64, 128, 1, (32, 32), (5, 5), (1, 1), (1, 1), (1, 1)),
    (128, 64, 64, 1, (256, 256), (3, 3), (1, 1), (0, 0), (1, 1)),
    (2, 3, 17, 1, (13, 9), (3, 3), (2, 2), (1, 1), (1, 1)),
    (2, 96, 96, 1, (14, 15), (4, 4), (2, 2), (1, 1), (1, 1)),
    (1, 256, 256, 2, (7, 7), (3, 3), (1, 1), (1, 1), (1, 1)),
    (2, 130, 70, 1, (21, 40), (3, 3), (1, 1), (1, 1), (2, 2)),
    (2, 64, 64, 1, (17, 19), (3, 2), (2, 1), (1, 0), (1, 3)),
    (2, 64, 64, 1, (33, 47), (7, 7), (1, 1), (3, 3), (1, 1)),
    (2, 40, 48, 1, (28, 256), (3, 5), (1, 1), (2, 6), (1, 1)),
    (5, 64, 64, 1, (60, 520), (3, 3), (3, 3), (0, 2), (2, 1)),
    (1, 64, 64, 1, (5, 6), (3, 3), (1, 1), (4, 4), (3, 3)),
    (2, 64, 64, 1, (1, 1), (1, 1), (1, 1), (0, 0), (1, 1)),
]


class PlanCase:
    """A shape, the output it has (with output padding added), the device it is planned for, and
    whether its values have 16 bits.
    """

    def __init__(self, shape, smem_limit=H200[0], num_sms=H200[1], more=(0, 0), sixteen_bit=False):
        self.shape, self.smem_limit, self.num_sms = shape, smem_limit, num_sms
        self.sixteen_bit = sixteen_bit
        self.batch, _, self.out_channels, self.groups, self.size, *rest = shape
        self.kernel, self.stride, self.padding, self.dilation = rest
        self.out = [
            (self.size[i] - 1) * self.stride[i]
            - 2 * self.padding[i]
            + self.dilation[i] * (self.kernel[i] - 1)
            + 1
            + more[i]
            for i in range(2)
        ]

    def line(self) -> str:
        """What the probe reads."""
        values = [*self.shape[:4], *self.size, *self.out, *self.kernel, *self.stride]
        values += [*self.padding, *self.dilation, self.smem_limit, self.num_sms]
        values += [int(self.sixteen_bit)]
        return " ".join(map(str, values))

    def __str__(self) -> str:
        bits = ", 16 bits" * self.sixteen_bit
        return f"{self.shape} -> {self.out}, {self.smem_limit} bytes, {self.num_sms} SMs{bits}"


def random_plan_cases(count: int, seed: int) -> list[PlanCase]:
    rng, found = random.Random(seed), []
    while len(found) < count:
        stride = rng.choice([(1, 1), (1, 1), (1, 1), (2, 2), (1, 2), (3, 1), (3, 3)])
        groups = rng.choice([1, 1, 2])
        shape = (
            rng.choice([1, 3, 40, 300]),
            groups * rng.choice([3, 20, 33, 64, 64, 100, 130]),
            groups * rng.choice([5, 64, 64, 70, 128, 192]),
            groups,
            (rng.randint(1, 60), rng.choice([rng.randint(1, 150), 4 * rng.randint(1, 64)])),
            (rng.randint(1, 7), rng.randint(1, 7)),
            stride,
            (rng.randint(0, 5), rng.randint(0, 7)),
            (rng.choice([1, 1, 2, 3]), rng.choice([1, 1, 2, 3])),
        )
        smem_limit = rng.choice([H200[0], H200[0], 163 << 10, 99 << 10])
        more = tuple(rng.randrange(max(s, d)) for s, d in zip(stride, shape[8], strict=True))
        case = PlanCase(shape, smem_limit, rng.choice([132, 7, 114]), more, rng.random() < 0.5)
        if min(case.out) > 0:
            found.append(case)
    return found


def build_probe(folder, edit: Callable[[str], str] | None = None, ahead: bool = False):
    """A function from cases to (plan, pooled plan, all cuts) of each. `edit` changes the text of
    the headers that make plans; `ahead`: with windows of several blocks of channels in the ring.
    """
    (folder / "probe.cpp").write_text(PROBE)
    include = ROOT / "kernels_src" / "cuda"
    for header in HEADERS if edit else ():
        (folder / header).write_text(edit((include / header).read_text()))
    command = ["c++", "-std=c++17", "-Wall", "-Werror", "-I.", f"-I{include}", "probe.cpp"]
    command += ["-DTCONV_LOADS_AHEAD"] * ahead
    subprocess.run([*command, "-o", "probe"], cwd=folder, check=True)

    def run(cases):
        lines = "\n".join(case.line() for case in cases)
        command = [folder / "probe"]
        done = subprocess.run(command, input=lines, capture_output=True, text=True, check=True)
        answers = []
        for block in done.stdout.split("\n\n")[:-1]:
            plans = [SimpleNamespace(**json.loads(line)) for line in block.splitlines()]
            for plan in plans:
                plan.phases = [SimpleNamespace(**named_phase(values)) for values in plan.phases]
            answers.append((plans[0], plans[1], plans[2:]))
        assert len(answers) == len(cases)
        return answers

    return run


def named_phase(values):
    names = "first_h first_w count_h count_w taps_h taps_w row_shift col_shift first_pixel"
    return dict(zip([*names.split(), "weight_base"], values, strict=True))
