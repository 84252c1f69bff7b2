"""The Hopper kernel's plan, without a GPU: every output is computed once, every tap reads the right
pixel of the line, the ring holds what is read for as long as it is read, and shared memory
suffices. The plan is plain C++, compiled here by itself; the walks of the kernel's roles are
followed in Python, for every cut that the plan allows of many random problems.
"""

import json
import random
import subprocess
from types import SimpleNamespace

import numpy as np
import pytest

from tests.solution_tools import ROOT

H200 = (232448, 132)  # bytes of shared memory for a block, SMs
UNIT, TAP_BYTES, PIXEL_BYTES = 64, 8192, 128
MAX_RING_UNITS, MAX_WEIGHT_STAGES = 32, 32
HEADER = "conv_transpose_sm90_plan.h"
PROBE = r"""
#include <cstdio>
#include "conv_transpose_sm90_plan.h"
using namespace tconv;
using namespace tconv::sm90;
static_assert(kUnitPixels == 64 && kTapBytes == 8192 && kPixelBytes == 128, "");
static_assert(kMaxRingUnits == 32 && kMaxWeightStages == 32, "");

void show(const Plan& q) {
  std::printf("{\"usable\": %d, \"reason\": \"%s\"", q.usable, q.reason ? q.reason : "");
#define SHOW(field) std::printf(", \"" #field "\": %lld", static_cast<long long>(q.field));
  SHOW(line_samples) SHOW(image_rows) SHOW(ring_ic_blocks) SHOW(ring_block_pixels)
  SHOW(row_offset) SHOW(col_offset) SHOW(window_loads) SHOW(sweep_tiles) SHOW(alternate)
  SHOW(producer_warps) SHOW(num_consumers) SHOW(n)
  SHOW(tile_w) SHOW(pitch) SHOW(num_segments) SHOW(segment_pixels)
  SHOW(tile_pixels) SHOW(pooled) SHOW(reach) SHOW(tap_step_h) SHOW(tap_step_w) SHOW(num_phases)
  SHOW(num_strips) SHOW(num_tiles) SHOW(chunk_tiles) SHOW(num_tile_chunks) SHOW(num_chunks)
  SHOW(num_groups) SHOW(in_channels_per_group) SHOW(out_channels_per_group) SHOW(num_ic_blocks)
  SHOW(num_sweeps) SHOW(blocks_per_sweep) SHOW(window_units) SHOW(ring_units) SHOW(mirror_pixels)
  SHOW(store_bytes_per_warp) SHOW(weight_stages) SHOW(ring_stages) SHOW(resident_weights)
  SHOW(num_weight_tiles) SHOW(ring_bytes) SHOW(smem_bytes)
  std::printf(", \"cost\": %.17g, \"phases\": [", q.cost);
  for (int i = 0; i < q.num_phases && q.usable; ++i) {
    const Phase& f = q.phases[i];
    std::printf("%s[%d, %d, %d, %d, %d, %d, %d, %d, %d, %d]", i ? ", " : "", f.out_first_h,
                f.out_first_w, f.out_count_h, f.out_count_w, f.taps_h, f.taps_w, f.row_shift,
                f.col_shift, f.first_pixel, f.weight_base);
  }
  std::printf("]}\n");
}

// For each problem: the plans of both calls, every cut that plan_tiles takes, and an empty line.
int main() {
  long long v[18];
  for (;;) {
    for (long long& value : v)
      if (std::scanf("%lld", &value) != 1) return 0;
    ConvTransposeProblem p{};
    p.batch = v[0], p.in_channels = v[1], p.out_channels = v[2], p.groups = v[3];
    p.in_h = v[4], p.in_w = v[5], p.out_h = v[6], p.out_w = v[7];
    p.kernel_h = v[8], p.kernel_w = v[9], p.stride_h = v[10], p.stride_w = v[11];
    p.x_stride_w = 1, p.x_stride_h = p.in_w, p.x_stride_c = p.in_h * p.in_w;
    p.x_stride_n = p.in_channels * p.x_stride_c;
    p.padding_h = v[12], p.padding_w = v[13], p.dilation_h = v[14], p.dilation_w = v[15];
    const int smem = static_cast<int>(v[16]), sms = static_cast<int>(v[17]);
    show(make_plan(p, false, false, smem, sms));
    show(make_plan(p, true, true, smem, sms));
    const Plan geometry = plan_geometry(p);
    for (const Shape& shape : kShapes)
      for (int blocks = 1; blocks <= shape.consumers && geometry.usable; ++blocks)
        for (int strips = 1; strips <= 3; ++strips)
          for (int single = 0; single < 2; ++single)
            for (int kind = 0; kind < 6; ++kind) {
              const bool pooled = kind % 3 == 1, stacked = kind % 3 == 2, side_by_side = kind >= 3;
              Plan plan = geometry;
              if (plan_tiles(plan, p, shape, strips, blocks, single, pooled, stacked,
                             side_by_side, smem, sms))
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


class Problem:
    """A shape, the output it has (with output padding added), and the device it is planned for."""

    def __init__(self, shape, smem_limit=H200[0], num_sms=H200[1], more=(0, 0)):
        self.shape, self.smem_limit, self.num_sms = shape, smem_limit, num_sms
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
        return " ".join(map(str, values))

    def __str__(self) -> str:
        return f"{self.shape} -> {self.out}, {self.smem_limit} bytes, {self.num_sms} SMs"


def random_problems(count: int, seed: int) -> list[Problem]:
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
        problem = Problem(shape, smem_limit, rng.choice([132, 7, 114]), more)
        if min(problem.out) > 0:
            found.append(problem)
    return found


def build_probe(folder, header: str | None = None):
    """A function from problems to (plan, pooled plan, all cuts) of each. `header` replaces it."""
    (folder / "probe.cpp").write_text(PROBE)
    if header is not None:
        (folder / HEADER).write_text(header)
    include = ROOT / "kernels_src" / "cuda"
    command = ["c++", "-std=c++17", "-Wall", "-Werror", "-I.", f"-I{include}", "probe.cpp"]
    subprocess.run([*command, "-o", "probe"], cwd=folder, check=True)

    def run(problems):
        lines = "\n".join(problem.line() for problem in problems)
        command = [folder / "probe"]
        done = subprocess.run(command, input=lines, capture_output=True, text=True, check=True)
        answers = []
        for block in done.stdout.split("\n\n")[:-1]:
            plans = [SimpleNamespace(**json.loads(line)) for line in block.splitlines()]
            for plan in plans:
                plan.phases = [SimpleNamespace(**named_phase(values)) for values in plan.phases]
            answers.append((plans[0], plans[1], plans[2:]))
        assert len(answers) == len(problems)
        return answers

    return run


def named_phase(values):
    names = "first_h first_w count_h count_w taps_h taps_w row_shift col_shift first_pixel"
    return dict(zip([*names.split(), "weight_base"], values, strict=True))


# What makes the kernel right. Each raises AssertionError ----------------------------------------


def check_resources(plan, problem):
    assert plan.pitch % 4 == 0 and plan.pitch >= 8  # a quad of pixels lies in one row
    assert plan.tile_pixels % 4 == 0 and (plan.num_strips == 1 or plan.tile_w % 4 == 0)
    for phase in plan.phases:
        assert phase.row_shift >= 0 and phase.col_shift >= 0
        assert phase.first_pixel == phase.row_shift * plan.pitch + phase.col_shift
        assert (phase.taps_h == 0) == (phase.taps_w == 0)
    # Phases without taps come first: the last gives a tile's window back.
    with_taps = [phase.taps_h > 0 for phase in plan.phases]
    assert with_taps == sorted(with_taps) and with_taps[-1]
    if problem.size[1] % 4 == 0:  # vectors of the line are vectors of the input
        assert plan.col_offset % 4 == 0
    assert plan.segment_pixels <= plan.n
    assert plan.num_segments * plan.blocks_per_sweep == plan.num_consumers
    assert plan.tile_pixels == plan.num_segments * plan.segment_pixels
    padded = plan.num_sweeps * plan.blocks_per_sweep * 64
    assert padded - 64 < -(-problem.out_channels // problem.groups // 64) * 64 <= padded
    # Ring and mirror. A ring that is never wrapped is one window.
    assert plan.ring_units <= MAX_RING_UNITS
    # Units of two batches: a data warp's steps are no longer than a lap.
    assert 2 * plan.ring_units * plan.ring_ic_blocks >= plan.producer_warps
    assert plan.mirror_pixels <= plan.ring_units * UNIT
    assert plan.mirror_pixels % 32 == 0  # whole batches
    assert plan.ring_ic_blocks in (1, plan.num_ic_blocks)
    assert plan.ring_block_pixels == plan.ring_units * UNIT + plan.mirror_pixels
    assert plan.ring_bytes == plan.ring_ic_blocks * plan.ring_block_pixels * PIXEL_BYTES
    # Weights.
    count = 0
    for phase in plan.phases:
        assert phase.weight_base == count
        count += phase.taps_h * phase.taps_w * plan.num_ic_blocks
    assert plan.sweep_tiles == count
    count *= plan.num_sweeps * plan.num_groups
    assert plan.num_weight_tiles == count
    loads = plan.num_sweeps * plan.num_ic_blocks * sum(with_taps)
    assert plan.window_loads == (loads if plan.num_ic_blocks > plan.ring_ic_blocks else 1)
    # In turns, nobody may wait for what only the other's turn gives back: stages that both
    # multiply by, or the window's next block of channels.
    if plan.alternate:
        assert plan.resident_weights or plan.blocks_per_sweep == plan.num_consumers
        assert plan.ring_ic_blocks == plan.num_ic_blocks
    assert plan.weight_stages <= MAX_WEIGHT_STAGES
    if plan.resident_weights:
        assert plan.weight_stages == count * plan.blocks_per_sweep
    else:
        assert plan.weight_stages == plan.ring_stages * plan.blocks_per_sweep
        # A stage is given back after the product that follows it: fewer would wait for ever.
        assert plan.ring_stages >= 2
    # Shared memory, as shared_layout() lays it out behind an unaligned start.
    pooled_row = plan.n // 2 + (4 if plan.n // 8 % 2 == 0 else 0)
    stores = 8 * pooled_row * 4 if plan.pooled else 8 * (64 + 8) * 4
    assert plan.store_bytes_per_warp == stores
    used = 1023 + plan.ring_bytes + plan.weight_stages * TAP_BYTES
    used += plan.num_consumers * 4 * stores + 2 * 8 * (MAX_RING_UNITS + MAX_WEIGHT_STAGES)
    used += 8 * plan.num_consumers  # whose turn it is
    assert used <= plan.smem_bytes <= problem.smem_limit


def check_chunks(plan, problem):
    assert plan.num_tile_chunks * plan.chunk_tiles >= plan.num_tiles
    assert (plan.num_tile_chunks - 1) * plan.chunk_tiles < plan.num_tiles
    lines = -(-problem.batch // plan.line_samples) * problem.groups * plan.num_strips
    assert plan.num_chunks == lines * plan.num_tile_chunks
    assert plan.mirror_pixels > 0 or plan.chunk_tiles == 1  # nothing to wrap into


def check_every_output_once(plan, problem):
    images = min(plan.line_samples, 5)  # all lie alike
    seen = np.zeros((images, *problem.out), dtype=np.int64)
    tiles = np.arange(plan.num_tiles)[:, None, None] * plan.tile_pixels
    segments = np.arange(plan.num_segments)[:, None] * plan.segment_pixels
    places = (tiles + segments + np.arange(plan.segment_pixels)).ravel()
    rows, cols = places // plan.pitch, places % plan.pitch
    image = np.zeros_like(rows)
    if plan.line_samples > 1:
        image, rows = rows // plan.image_rows, rows % plan.image_rows
    for phase in plan.phases:
        for strip in range(plan.num_strips):
            first = strip * plan.tile_w
            width = min(plan.tile_w, phase.count_w - first)
            real = (image < images) & (rows < phase.count_h) & (cols < width)
            out_h = rows[real] * problem.stride[0] + phase.first_h
            out_w = (first + cols[real]) * problem.stride[1] + phase.first_w
            np.add.at(seen, (image[real], out_h, out_w), 1)
    assert (seen == 1).all()


def input_positions(problem, axis, outputs):
    """[outputs, taps]: input positions of an axis's outputs, of one phase, ascending, from the
    definition; those outside the input included.
    """
    found = []
    for out in outputs:
        numerators = [
            out + problem.padding[axis] - k * problem.dilation[axis]
            for k in reversed(range(problem.kernel[axis]))
        ]
        found.append(
            [v // problem.stride[axis] for v in numerators if v % problem.stride[axis] == 0]
        )
    return np.array(found)


def check_taps(plan, problem):
    """The line at position + shift of the tap is the tap's input pixel, or both are zeros."""
    in_h, in_w = problem.size

    def pixel(ih, iw):  # its index, or -1: a zero
        inside = (ih >= 0) & (ih < in_h) & (iw >= 0) & (iw < in_w)
        return np.where(inside, ih * in_w + iw, -1)

    for phase in plan.phases:
        if phase.taps_h == 0:
            check_no_tap(problem, phase)
            continue
        near_edges = {0, 1, 2, phase.count_h // 2, phase.count_h - 2, phase.count_h - 1}
        rows = np.array(sorted(near_edges & set(range(phase.count_h))), dtype=np.int64)
        if rows.size == 0 or phase.count_w == 0:
            continue
        cols = np.arange(phase.count_w)
        want_h = input_positions(problem, 0, rows * problem.stride[0] + phase.first_h)
        want_w = input_positions(problem, 1, cols * problem.stride[1] + phase.first_w)
        assert want_h.shape[1] == phase.taps_h and want_w.shape[1] == phase.taps_w
        strips = cols // plan.tile_w
        position = rows[:, None] * plan.pitch + (cols - strips * plan.tile_w)
        for tap_h in range(phase.taps_h):
            for tap_w in range(phase.taps_w):
                shift = tap_h * plan.tap_step_h * plan.pitch
                shift += phase.first_pixel + tap_w * plan.tap_step_w
                assert shift <= plan.reach
                row, col = np.divmod(position + shift, plan.pitch)
                image = 0
                if plan.line_samples > 1:
                    image, row = np.divmod(row, plan.image_rows)
                ih = row + plan.row_offset
                iw = col + strips * plan.tile_w + plan.col_offset
                want = pixel(want_h[:, tap_h, None], want_w[None, :, tap_w])
                got = pixel(ih, iw)
                assert (got == want).all(), (tap_h, tap_w)
                assert ((image == 0) | (got == -1)).all(), "a pixel of the next image"


def check_no_tap(problem, phase):
    """No input reaches the outputs of this phase: along one axis or both no tap falls on one."""
    taps_h = input_positions(problem, 0, [phase.first_h]).size
    taps_w = input_positions(problem, 1, [phase.first_w]).size
    assert taps_h * taps_w == 0


def line_units(pixels):
    return -(-pixels // UNIT)


def check_ring(plan, chunk_tiles):
    """Follows a warpgroup of each segment over all chunks of a line: each product
    reads units that are there and not yet given back, at the place where the ring has them, and
    never waits for a unit that cannot come before it gives one back.
    """
    ring = plan.ring_units * UNIT
    readable = ring + plan.mirror_pixels
    assert line_units(plan.tile_pixels + plan.reach) == plan.window_units

    def wrapped(pixel):
        return pixel - ring if pixel >= ring else pixel

    # Units of a line beyond its first ones are like those before: a few tiles past a lap suffice.
    enough = min(plan.num_tiles, 2 * plan.ring_units * UNIT // plan.tile_pixels + 3)
    for segment in range(plan.num_segments):
        base = 0  # unit of the ring where the chunk's line begins
        for first in range(0, enough, chunk_tiles):
            tiles = min(chunk_tiles, plan.num_tiles - first, enough)
            with_taps = [phase for phase in plan.phases if phase.taps_h > 0]
            # Loaded anew for every phase, and twice for it: another ic block of the same tile.
            again = plan.num_ic_blocks > plan.ring_ic_blocks
            for phases in (
                [[phase] for phase in with_taps for _ in range(2)] if again else [with_taps]
            ):
                follow_chunk(plan, phases, segment, base, tiles, wrapped, readable)
                base += line_units(tiles * plan.tile_pixels + plan.reach)
                base %= plan.ring_units


def follow_chunk(plan, phases, segment, base, tiles, wrapped, readable):
    ring = plan.ring_units * UNIT
    ready = free = 0  # units of the line awaited, and given back
    tile_pixel = base * UNIT
    for tile in range(tiles):
        origin = tile * plan.tile_pixels
        continues = tile + 1 < tiles
        tile_end = origin + plan.tile_pixels if continues else 1 << 40
        for number, phase in enumerate(phases):
            last_use = number == len(phases) - 1
            first = segment * plan.segment_pixels + phase.first_pixel
            needed = origin + first
            top = wrapped(tile_pixel + first)
            row_step = plan.tap_step_h * plan.pitch
            extent = plan.segment_pixels + (phase.taps_w - 1) * plan.tap_step_w
            for _ in range(phase.taps_h):
                ready = max(ready, -(-(needed + extent) // UNIT))
                assert ready - free <= plan.ring_units, "waits for a unit that has no room"
                pixel = top
                for tap_w in range(phase.taps_w):
                    start = needed + tap_w * plan.tap_step_w  # of the line
                    assert 0 <= pixel < ring and (base * UNIT + start - pixel) % ring == 0
                    assert pixel + plan.segment_pixels <= readable
                    last = (plan.ring_ic_blocks - 1) * plan.ring_block_pixels + pixel
                    assert (last + plan.n) * PIXEL_BYTES <= plan.smem_bytes - 1024  # dropped
                    assert free * UNIT <= start and start + plan.segment_pixels <= ready * UNIT
                    pixel = wrapped(pixel + plan.tap_step_w)
                if last_use:
                    free = max(free, min(needed, tile_end) // UNIT)  # from the first tap on
                    assert free * UNIT <= needed
                top, needed = wrapped(top + row_step), needed + row_step
        if continues:
            end = tile_end // UNIT
            tile_pixel = wrapped(tile_pixel + plan.tile_pixels)
        else:
            end = line_units(origin + plan.tile_pixels + plan.reach)
        ready = max(ready, end)
        assert ready - free <= plan.ring_units, "waits for a unit that has no room"
        free = max(free, end)
    assert free == line_units(tiles * plan.tile_pixels + plan.reach)


def check_pooling(plan):
    """Windows are 2 x 2 and lie in one segment whole."""
    assert plan.num_strips == plan.num_phases == 1
    assert plan.segment_pixels > 0 and plan.segment_pixels % (2 * plan.pitch) == 0
    assert plan.tile_w <= plan.pitch and plan.n % 8 == 0


def check(plan, problem, with_outputs=True):
    check_resources(plan, problem)
    check_chunks(plan, problem)
    if with_outputs:
        check_every_output_once(plan, problem)
    check_taps(plan, problem)
    check_ring(plan, plan.chunk_tiles)
    if plan.mirror_pixels > 0:  # the cost alone decides how long chunks are
        check_ring(plan, plan.num_tiles)
    if plan.pooled:
        check_pooling(plan)


@pytest.fixture(scope="module")
def probe(tmp_path_factory):
    return build_probe(tmp_path_factory.mktemp("plan"))


def check_all(probe, problems) -> dict[str, int]:
    """Checks every plan and cut of these; how many of each kind there were."""
    names = "pooled stacked single strips resident streamed wrapping".split()
    kinds = dict.fromkeys([*names, "side by side"], 0)
    for problem, (plan, pooled, cuts) in zip(problems, probe(problems), strict=True):
        for one in (plan, pooled, *cuts):
            if not one.usable:
                continue
            try:
                check(one, problem)
            except AssertionError as error:
                raise AssertionError(f"{problem}: {vars(one)}") from error
            kinds["pooled"] += one.pooled
            kinds["stacked"] += one.line_samples > 1
            kinds["side by side"] += one.ring_ic_blocks > 1
            kinds["single"] += one.mirror_pixels == 0
            kinds["strips"] += one.num_strips > 1
            kinds["resident"] += one.resident_weights
            kinds["streamed"] += 1 - one.resident_weights
            kinds["wrapping"] += one.mirror_pixels > 0 and one.num_tiles > 4
    return kinds


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_known_problems(probe, shape):
    problem = Problem(shape)
    assert probe([problem])[0][0].usable
    check_all(probe, [problem])


@pytest.mark.parametrize("seed", range(4))
def test_random_problems(probe, seed):
    kinds = check_all(probe, random_problems(60, seed))
    assert min(kinds.values()) >= 10, kinds  # the problems reach every kind of plan


@pytest.mark.parametrize(("size", "share"), [(7, 0.7), (14, 0.75)])
def test_small_images_fill_tiles(probe, size, share):
    """Most pixels of the tiles are outputs."""
    plan = probe([Problem((512, 128, 128, 1, (size, size), (3, 3), (1, 1), (1, 1), (1, 1)))])[0][0]
    tiles = -(-512 // plan.line_samples) * plan.num_tiles
    assert 512 * size * size >= share * tiles * plan.tile_pixels


def test_the_cheapest_cut_is_taken(probe):
    compared = 0
    for plan, pooled, cuts in probe(random_problems(60, 11)):
        for best, is_pooled in ((plan, 0), (pooled, 1)):
            # Narrow images are not cut into strips.
            others = [
                cut.cost
                for cut in cuts
                if cut.pooled == is_pooled and cut.tile_w == max(f.count_w for f in cut.phases)
            ]
            assert best.usable or not others
            assert not others or best.cost <= min(others)
            compared += len(others) > 1
    assert compared >= 30


# Each a mistake in the header that the checks above must see.
MISTAKES = {
    "pitch too small": ("round_up(pitch < 8 ? 8 : pitch, kVectorPixels)", "tile_pitch(pitch)"),
    "left zeros not shared": ("right > left ? right", "right > left + 8 ? right"),
    "reach without columns": ("beyond_h) * plan.pitch + beyond_w;", "beyond_h) * plan.pitch;"),
    "reach of the last phase only": ("raise(beyond_h, rows);", "beyond_h = rows;"),
    "first phase's place for all": ("= phase.row_shift * plan.pitch", "= 0 * plan.pitch"),
    "phases without taps last": ("has_taps != (with_taps == 1)", "has_taps != (with_taps == 0)"),
    "steps over a lap": ("* plan.ring_ic_blocks < shape.producer_warps", "< 0"),
    "turns with shared stages": (
        "blocks_per_sweep == shape.consumers &&",
        "blocks_per_sweep > 0 &&",
    ),
    "windows aligned to units": ("plan.reach + kUnitPixels - 1", "plan.reach"),
    "mirror too short": ("single ? 0 : round_up(n, kBatchPixels)", "single ? 0 : n / 64 * 32"),
    "store buffers forgotten": ("smem_limit - store_bytes - kBarrierBytes", "smem_limit"),
    "half pairs of rows": (
        "n / (2 * plan.pitch) * (2 * plan.pitch)",
        "n / plan.pitch * plan.pitch",
    ),
    "last tile missing": ("ceil_div(longest, plan.tile_pixels)", "longest / plan.tile_pixels + 0"),
    "images too close": ("raise(plan.image_rows, max_h);", "plan.image_rows = max_h - 1;"),
    "taps of the next image": (
        "plan.image_rows = below + plan.row_offset;",
        "plan.image_rows = below + 2 * plan.row_offset;",
    ),
    "taps the wrong way": ("h.offset_first - (h.tap_count - 1)", "h.offset_first - (h.tap_count)"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_the_checks_can_fail(tmp_path, name):
    right, wrong = MISTAKES[name]
    text = (ROOT / "kernels_src" / "cuda" / HEADER).read_text()
    assert text.count(right) == 1
    helper = "inline int tile_pitch(int pitch) { return pitch < 12 ? 8 : (pitch - 4) / 4 * 4; }\n"
    text = text.replace(right, wrong).replace("struct Phase {", helper + "struct Phase {", 1)
    probe = build_probe(tmp_path, text)
    with pytest.raises(AssertionError):
        check_all(probe, random_problems(60, 0))


def test_too_many_phases_are_refused(probe):
    plan = probe([Problem((1, 64, 64, 1, (8, 8), (5, 5), (5, 5), (0, 0), (1, 1)))])[0][0]
    assert not plan.usable and "phases" in plan.reason


def test_phases_without_taps_come_first(probe):
    plan = probe([Problem((1, 64, 64, 1, (8, 8), (1, 1), (2, 2), (0, 0), (1, 1)))])[0][0]
    assert plan.usable and [phase.taps_h for phase in plan.phases] == [0, 0, 0, 1]


def test_warpgroups_take_turns_with_weights_of_their_own(probe):
    """1/69 and 2/11: two blocks of output channels. 2/19's weights are resident."""
    (p69, _, _), (_, p11, _), (p19, _, _), (p65, _, _) = probe(
        [Problem(SHAPES[i]) for i in (1, 2, 3, 0)]
    )
    assert [plan.alternate for plan in (p69, p11, p19, p65)] == [1, 1, 0, 0]
