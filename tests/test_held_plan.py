"""How a convolution whose outputs are held is cut (kernels_src/cuda/conv_group_norm_held_plan.h):
every output is some block's, every pixel that it needs is in the block's window, which is loaded
whole, each pixel once, and all fits.
"""

import subprocess

import pytest

from tests.solution_tools import ROOT

_PROBE = r"""
#include <cstdio>
#include <vector>
#include "conv_group_norm_held_plan.h"
using namespace tconv;
int main() {
  long long ci, co, h, w, kh, kw, ph, pw, d;
  int value_bytes, smem, sms;
  while (std::scanf("%lld %lld %lld %lld %lld %lld", &ci, &co, &h, &w, &kh, &kw) == 6 &&
         std::scanf("%lld %lld %lld %d %d %d", &ph, &pw, &d, &value_bytes, &smem, &sms) == 6) {
    ConvTransposeLayer p{};
    p.batch = 4, p.in_channels = ci, p.out_channels = co, p.groups = 1, p.in_h = h, p.in_w = w;
    p.out_h = h - 1 - 2 * ph + d * (kh - 1) + 1, p.out_w = w - 1 - 2 * pw + d * (kw - 1) + 1;
    p.kernel_h = kh, p.kernel_w = kw, p.padding_h = ph, p.padding_w = pw;
    p.stride_h = p.stride_w = 1, p.dilation_h = p.dilation_w = d;
    const held::Plan q = held::make_plan(p, value_bytes, smem, sms);
    bool covered = true, inside = true;
    for (int strip = 0; q.usable && strip < q.num_strips; ++strip)
      for (long long row = 0; row < p.out_h; ++row)
        for (long long c = 0; c < q.columns(strip, p.out_w); ++c) {
          const long long col = c + strip * q.strip_w, at = row * q.pitch + c;
          const long long tile = at / held::kTilePixels, first = tile * held::kTilePixels;
          covered &= tile < q.num_tiles;
          for (int i = 0; i < q.taps_h; ++i)
            for (int j = 0; j < q.taps_w; ++j) {
              const long long tap = q.first_pixel + i * q.tap_step_h + j * q.tap_step_w;
              const long long pixel = at - first + tap;
              inside &= pixel >= 0 && pixel < q.window_pixels;
              // Which input that is, and which the formula asks for (taps ascend).
              const long long line = first + pixel;
              const long long in_row = line / q.pitch + q.row_offset;
              const long long in_col = line % q.pitch + q.col_offset + strip * q.strip_w;
              inside &= in_row == row + ph - (q.taps_h - 1 - i) * d;
              inside &= in_col == col + pw - (q.taps_w - 1 - j) * d;
            }
        }
    covered &= !q.usable || (q.columns(q.num_strips - 1, p.out_w) > 0 &&
                             q.columns(q.num_strips - 1, p.out_w) <= q.pitch);
    const int blocks = q.usable ? q.blocks_per_sample() : 0;
    // By the quads that a window is loaded in: how often each of its pixels, and from where.
    bool loaded = q.window_pixels * held::kPixelBytes <= q.stage_bytes;
    for (int block = 0; block < blocks; ++block) {
      const int strip = block % q.num_strips, tile = block / q.num_strips;
      const held::WindowQuads quads(q, strip, tile);
      loaded &= quads.count <= q.window_quads;
      std::vector<int> times(q.window_pixels);
      for (int quad = 0; quad < quads.count; ++quad) {
        const int in_col = quads.column(quad) + strip * q.strip_w + q.col_offset;
        loaded &= w % 4 != 0 || in_col % 4 == 0;
        for (int j = 0; j < 4; ++j) {
          if (!quads.has_pair(quad, j / 2)) continue;
          const int pixel = quads.pixel(quad) + j, line = tile * held::kTilePixels + pixel;
          ++times[pixel];
          loaded &= line / q.pitch == quads.row(quad) && line % q.pitch == quads.column(quad) + j;
        }
      }
      for (int count : times) loaded &= count == 1;
      for (int beyond = quads.count; beyond < quads.count + 16; ++beyond)
        loaded &= !quads.has_pair(beyond, 0) && !quads.has_pair(beyond, 1);
    }
    std::printf("%d %d %d %d %d %d\n", q.usable, blocks, q.smem_bytes, covered, inside, loaded);
  }
}
"""
SMEM, PROCESSORS = 232448, 132  # an H200's
SIZES = [(256, 256), (255, 253), (1, 1), (7, 300), (300, 7), (64, 64), (100, 36), (13, 21)]
FILTERS = [(3, 3, 0, 0, 1), (3, 3, 1, 1, 1), (1, 1, 0, 0, 1), (2, 3, 1, 0, 1), (3, 3, 2, 2, 2)]


@pytest.fixture(scope="module")
def plans(tmp_path_factory):
    """{(size, filter, bytes of a value): (usable, blocks, shared bytes, covered, inside,
    loaded)}
    """
    folder = tmp_path_factory.mktemp("probe")
    (folder / "probe.cpp").write_text(_PROBE)
    include = f"-I{ROOT / 'kernels_src' / 'cuda'}"
    command = ["g++", "-std=c++17", "-O2", include, "probe.cpp", "-o", "probe"]
    subprocess.run(command, cwd=folder, check=True)
    cases = [(size, taps, value) for size in SIZES for taps in FILTERS for value in (4, 2)]
    numbers = [(64, 64, *size, *taps, value, SMEM, PROCESSORS) for size, taps, value in cases]
    lines = [" ".join(map(str, line)) for line in numbers]
    run = [folder / "probe"]
    text = subprocess.run(run, input="\n".join(lines), capture_output=True, text=True, check=True)
    answers = [tuple(map(int, line.split())) for line in text.stdout.splitlines()]
    return dict(zip(cases, answers, strict=True))


def test_every_output_is_held_and_every_input_it_needs_is_there(plans):
    for case, (usable, blocks, smem, covered, inside, loaded) in plans.items():
        if usable:
            assert covered and inside and loaded and blocks <= PROCESSORS and smem <= SMEM, case


def test_what_must_fit_does(plans):
    for size in [(256, 256), (255, 253), (64, 64), (100, 36), (13, 21), (1, 1)]:
        assert plans[size, FILTERS[0], 4][0] and plans[size, FILTERS[0], 2][0], size
