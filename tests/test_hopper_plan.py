"""The Hopper kernel's plan, without a GPU: every output is covered once, every tap reads the right
pixel of the window, and shared memory suffices. The plan is plain C++, compiled here by itself.
"""

import itertools
import json
import subprocess

import pytest

from tests.solution_tools import ROOT

H200 = {"smem_limit": 232448, "num_sms": 132}
PROBE = r"""
#include <cstdio>
#include <cstdlib>
#include "conv_transpose_sm90_plan.h"
using namespace tconv;
int main(int, char** argv) {
  auto arg = [&](int i) { return std::atoll(argv[i]); };
  ConvTransposeProblem p{};
  p.batch = arg(1), p.in_channels = arg(2), p.out_channels = arg(3), p.groups = arg(4);
  p.in_h = arg(5), p.in_w = arg(6), p.out_h = arg(7), p.out_w = arg(8);
  p.kernel_h = arg(9), p.kernel_w = arg(10), p.stride_h = arg(11), p.stride_w = arg(12);
  p.padding_h = arg(13), p.padding_w = arg(14), p.dilation_h = arg(15), p.dilation_w = arg(16);
  const sm90::Plan q = sm90::make_plan(p, arg(17), arg(18));
  std::printf("{\"usable\": %d, \"reason\": \"%s\"", q.usable, q.reason ? q.reason : "");
#define SHOW(field) std::printf(", \"" #field "\": %lld", static_cast<long long>(q.field));
  SHOW(num_consumers) SHOW(n) SHOW(segment_rows) SHOW(tile_w) SHOW(pitch) SHOW(rows_per_tile)
  SHOW(num_segments) SHOW(span_h) SHOW(tap_step_h) SHOW(tap_step_w) SHOW(num_phases)
  SHOW(num_strips) SHOW(num_row_tiles) SHOW(chunk_row_tiles) SHOW(num_row_chunks) SHOW(num_chunks)
  SHOW(num_groups) SHOW(num_ic_blocks) SHOW(num_sweeps) SHOW(blocks_per_sweep) SHOW(ring_rows)
  SHOW(weight_stages) SHOW(resident_weights) SHOW(num_weight_tiles) SHOW(ring_bytes)
  SHOW(smem_bytes)
  std::printf(", \"phases\": [");
  for (int i = 0; i < q.num_phases && q.usable; ++i) {
    const sm90::Phase& f = q.phases[i];
    std::printf("%s[%d, %d, %d, %d, %d, %d, %d, %d, %d, %d]", i ? ", " : "", f.out_first_h,
                f.out_first_w, f.out_count_h, f.out_count_w, f.taps_h, f.taps_w, f.row_offset,
                f.col_offset, f.col_shift, f.weight_base);
  }
  std::printf("]}\n");
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


@pytest.fixture(scope="module")
def probe(tmp_path_factory):
    folder = tmp_path_factory.mktemp("plan")
    (folder / "probe.cpp").write_text(PROBE)
    include = ROOT / "kernels_src" / "cuda"
    command = ["c++", "-std=c++17", "-Wall", "-Werror", f"-I{include}", "probe.cpp", "-o", "probe"]
    subprocess.run(command, cwd=folder, check=True)

    def run(shape):
        batch, ci, co, groups, size, kernel, stride, padding, dilation = shape
        out = [
            (size[i] - 1) * stride[i] - 2 * padding[i] + dilation[i] * (kernel[i] - 1) + 1
            for i in range(2)
        ]
        values = [batch, ci, co, groups, *size, *out, *kernel, *stride, *padding, *dilation]
        arguments = [str(v) for v in (*values, *H200.values())]
        text = subprocess.run([folder / "probe", *arguments], capture_output=True, check=True)
        return json.loads(text.stdout), out

    return run


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_resources(probe, shape):
    plan, _ = probe(shape)
    assert plan["usable"], plan["reason"]
    assert plan["smem_bytes"] <= H200["smem_limit"]
    window_rows = plan["rows_per_tile"] + plan["span_h"]
    assert plan["ring_rows"] >= window_rows
    assert plan["weight_stages"] >= 1 and plan["weight_stages"] <= 24
    # The last segment of the ring, shifted by its last tap, stays inside it.
    widest = max(p[8] + (p[5] - 1) * plan["tap_step_w"] for p in plan["phases"])
    last_pixel = (plan["ring_rows"] - 1) * plan["pitch"] + widest + plan["n"]
    assert last_pixel * 128 <= plan["ring_bytes"]
    mirrored = (plan["ring_rows"] + plan["segment_rows"] - 1) * plan["pitch"]
    assert mirrored * 128 <= plan["ring_bytes"]
    # One segment's rows fit its columns.
    assert (plan["segment_rows"] - 1) * plan["pitch"] + plan["tile_w"] <= plan["n"]
    assert plan["pitch"] % 4 == 0 and plan["pitch"] >= 8
    assert plan["num_row_chunks"] * plan["chunk_row_tiles"] >= plan["num_row_tiles"]
    assert (plan["num_row_chunks"] - 1) * plan["chunk_row_tiles"] < plan["num_row_tiles"]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_every_output_once(probe, shape):
    plan, out = probe(shape)
    for phase in plan["phases"]:
        rows, cols = [], []
        for tile, segment in itertools.product(
            range(plan["num_row_tiles"]), range(plan["num_segments"])
        ):
            first = tile * plan["rows_per_tile"] + segment * plan["segment_rows"]
            rows += [r for r in range(first, first + plan["segment_rows"]) if r < phase[2]]
        for strip in range(plan["num_strips"]):
            first = strip * plan["tile_w"]
            cols += [c for c in range(first, first + plan["tile_w"]) if c < phase[3]]
        assert rows == list(range(phase[2])) and cols == list(range(phase[3]))
    stride_h, stride_w = shape[6]
    covered = {
        (q * stride_h + p[0], c * stride_w + p[1])
        for p in plan["phases"]
        for q in range(min(p[2], 3))
        for c in range(min(p[3], 3))
    }
    assert all(h < out[0] and w < out[1] for h, w in covered)
    assert sum(p[2] * p[3] for p in plan["phases"]) == out[0] * out[1]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_taps_read_the_right_pixel(probe, shape):
    """Follows window rows and columns back to the input, along each axis by itself."""
    plan, _ = probe(shape)
    _, _, _, _, (in_h, in_w), kernel, stride, padding, dilation = shape
    for phase in plan["phases"]:
        first_h, first_w, count_h, count_w, taps_h, taps_w, row_offset, col_offset, col_shift, _ = (
            phase
        )
        for q in {0, count_h // 2, count_h - 1}:
            seen = [q + row_offset + j * plan["tap_step_h"] for j in range(taps_h)]
            out_h = q * stride[0] + first_h
            assert seen == sorted(taps_of(out_h, kernel[0], stride[0], padding[0], dilation[0]))
        for c in {0, count_w // 2, count_w - 1}:
            strip, column = divmod(c, plan["tile_w"])
            wanted = sorted(
                taps_of(c * stride[1] + first_w, kernel[1], stride[1], padding[1], dilation[1])
            )
            for j, iw in enumerate(wanted):
                position = column + col_shift + j * plan["tap_step_w"]
                if position < plan["pitch"]:
                    assert strip * plan["tile_w"] + col_offset + position == iw
                else:
                    # Behind the row stands the next row's left edge: zeros, as the tap must read.
                    assert plan["num_strips"] == 1 and iw >= in_w
                    assert col_offset + position - plan["pitch"] < 0
            assert len(wanted) == taps_w


def taps_of(out, kernel, stride, padding, dilation):
    """Input positions of the taps of an output position, absent ones outside the input included."""
    numerators = [out + padding - k * dilation for k in range(kernel)]
    return [n // stride for n in numerators if n % stride == 0]


def test_too_many_phases_are_refused(probe):
    plan, _ = probe((1, 64, 64, 1, (8, 8), (5, 5), (5, 5), (0, 0), (1, 1)))
    assert not plan["usable"] and "phases" in plan["reason"]


def test_a_phase_without_taps_is_refused(probe):
    plan, _ = probe((1, 64, 64, 1, (8, 8), (1, 1), (2, 2), (0, 0), (1, 1)))
    assert not plan["usable"] and "without taps" in plan["reason"]
