// Host side of the gathered kernel.
#pragma once

#include <algorithm>

#include "check.h"
#include "conv_transpose_gathered.cuh"

namespace tconv {
namespace cuda {
namespace hopper {

// In front of the weights' transform, behind which the convolution may start.
template <typename Storage>
int64_t launch_gathered_pixels(const Plan& plan, const ConvCall& call, uint4* to, GuardState* guard) {
  using Config = GatheredPixelsConfig;
  const ConvTransposeLayer& p = call.layer;
  GatheredPixelsArgs<Storage> args{};
  args.x = static_cast<const Storage*>(call.x);
  args.x_stride_n = p.x_stride_n, args.x_stride_c = p.x_stride_c;
  args.x_stride_h = p.x_stride_h, args.x_stride_w = p.x_stride_w;
#ifdef TCONV_WALKS_DEPTH
  const DepthWalk& depth = call.depth;
  const int64_t in_depth = depth.walks() ? depth.in_depth : 1, groups = plan.num_groups >> plan.residue_bits;
  const int64_t images = depth.walks() ? p.batch / depth.slices * in_depth : p.batch;
  if (depth.walks()) args.x_stride_n = depth.x_stride_n;
  args.x_stride_d = depth.x_stride_d;
  args.by_depth = FastDivisor::make(static_cast<uint32_t>(in_depth));
  args.channels = plan.in_channels_per_group / static_cast<int>(depth.tap_count()), args.blocks = plan.tap_blocks;
#else
  const int64_t images = p.batch, groups = plan.num_groups;
  args.channels = plan.in_channels_per_group, args.blocks = plan.num_ic_blocks;
#endif
  args.pixels = static_cast<int>(images * p.in_h * p.in_w);
  args.by_image = FastDivisor::make(static_cast<uint32_t>(p.in_h * p.in_w));
  args.by_width = FastDivisor::make(static_cast<uint32_t>(p.in_w));
  args.by_blocks = FastDivisor::make(static_cast<uint32_t>(args.blocks));
  args.by_all_blocks = FastDivisor::make(static_cast<uint32_t>(groups * args.blocks));
  args.to = to, args.guard = guard;
  const unsigned blocks = static_cast<unsigned>(ceil_div(args.pixels, Config::kPixels)) * args.by_all_blocks.divisor;
  return launch_kernel(pack_gathered_pixels_kernel<Storage>, dim3(blocks), dim3(Config::kThreads), 0, call.stream,
                       args);
}

template <int N, typename Storage>
int64_t launch_gathered_of(const GatheredArgs<Storage>& args, int tiles, void* stream) {
  const auto kernel = conv_transpose_gathered_kernel<N, Storage>;
  TCONV_RETURN_IF_ERROR(allow_dynamic_smem(kernel, GatheredConfig::smem_bytes(N)));
  return launch_overlapped(kernel, dim3(static_cast<unsigned>(tiles)), dim3(GatheredConfig::kThreads),
                           GatheredConfig::smem_bytes(N), stream, args);
}

#ifdef TCONV_WALKS_DEPTH
// Fills in what depends on the call's depth.
template <typename Storage>
void describe_depth(GatheredArgs<Storage>& args, const ConvCall& call) {
  const DepthWalk& depth = call.depth;
  args.depth_taps = static_cast<int>(depth.tap_count());
  args.by_slices = FastDivisor::make(static_cast<uint32_t>(depth.walks() ? depth.slices : 1));
  args.in_depth = depth.walks() ? static_cast<int>(depth.in_depth) : 1;
  args.tap_slices = static_cast<int>(depth.step);
  for (int i = 0; i < depth.residues(); ++i) args.first_slices[i] = static_cast<int>(depth.first_of(i));
  args.channel_stride = depth.walks() ? static_cast<int>(depth.out_stride_c) : args.plane;
  args.stride_n =
      depth.walks() ? static_cast<int>(depth.out_stride_n) : static_cast<int>(call.layer.out_channels) * args.plane;
  args.stride_d = static_cast<int>(depth.out_stride_d);
}

#endif
// Behind the pixels and the weights' transform. args: but for what follows from plan and call.
template <typename Storage>
int64_t launch_gathered(GatheredArgs<Storage> args, const ConvCall& call) {
  const ConvTransposeLayer& p = call.layer;
  void* const stream = call.stream;
  const Plan& plan = args.plan;
  args.in_h = static_cast<int>(p.in_h), args.in_w = static_cast<int>(p.in_w), args.out_w = static_cast<int>(p.out_w);
  args.stride_h = static_cast<int>(p.stride_h), args.stride_w = static_cast<int>(p.stride_w);
  args.plane = static_cast<int>(p.out_h * p.out_w);
#ifdef TCONV_WALKS_DEPTH
  describe_depth(args, call);
#endif
  const auto num_taps = [&](int phase) { return plan.phases[phase].taps_h * plan.phases[phase].taps_w; };
  for (int i = 0; i < plan.num_phases; ++i) args.phases[i] = i;
  std::stable_sort(args.phases, args.phases + plan.num_phases, [&](int a, int b) { return num_taps(a) > num_taps(b); });
  int tiles = 0;
  for (int i = 0; i < plan.num_phases; ++i) {
    const Phase& phase = plan.phases[args.phases[i]];
    const int image = phase.out_count_h * phase.out_count_w;
    args.first_tiles[i] = tiles;
    args.pixels_of[i] = static_cast<int>(p.batch) * image;
    args.runs[i] = ceil_div(args.pixels_of[i], plan.gathered_n);
    args.by_image[i] = FastDivisor::make(static_cast<uint32_t>(std::max(image, 1)));
    args.by_width[i] = FastDivisor::make(static_cast<uint32_t>(std::max(phase.out_count_w, 1)));
    args.by_runs[i] = FastDivisor::make(static_cast<uint32_t>(std::max(args.runs[i], 1)));
    tiles += args.runs[i] * plan.num_sweeps * plan.num_groups;
  }
  if (plan.gathered_n == 128) return launch_gathered_of<128, Storage>(args, tiles, stream);
  return launch_gathered_of<256, Storage>(args, tiles, stream);
}

}  // namespace hopper
}  // namespace cuda
}  // namespace tconv
