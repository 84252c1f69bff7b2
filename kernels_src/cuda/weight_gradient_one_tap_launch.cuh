// Host side of the one-tap weight gradient.
#pragma once

#include "weight_gradient_hopper_launch.cuh"
#include "weight_gradient_one_tap.cuh"

namespace tconv {
namespace cuda {
namespace pixels {

struct OneTapPlan {
  bool usable = false;
  int splits = 0;
  int64_t total_bytes = 0;

  OneTapPlan() = default;
  // Of a call that the Hopper kernel can take, whose layout and workspace this one has.
  OneTapPlan(const GradientCall& call, const SlidingLayer& sliding, const PackedGoes& goes,
             const DeviceLimits& device) {
    using Config = OneTapConfig;
    const WeightGradientLayout& layout = goes.layout;
    if (call.conv.dtype != kFloat32 || layout.taps() != 1 || layout.abreast > 1 ||
        layout.segment != WeightGradientConfig::kMaxSegment || layout.x.blocks > Config::kMostBlocks ||
        layout.planes.blocks > Config::kMostBlocks ||
        Config::smem_bytes(layout.x.blocks + layout.planes.blocks) > device.smem_per_block)
      return;
    for (const bool planes : {false, true}) {
      PackArgs<float> args = pack_args<float>(call, sliding, layout, planes, 0, 1);
      args.from = nullptr;  // any address is as aligned as a tensor's, but for slices: `serves`
      if (!packs_pairs(args)) return;
    }
    const int64_t segments = layout.x.sample_segments(1, layout.strips) / layout.x.blocks * goes.samples;
    splits = static_cast<int>(std::min<int64_t>(segments, std::max(1, device.sm_count / layout.groups)));
    total_bytes = goes.total_bytes + int64_t{splits} * layout.groups * 2 * layout.planes.blocks *
                                         WeightGradientConfig::kTileValues * static_cast<int64_t>(sizeof(float));
    usable = true;
  }

  bool serves(const GradientCall& call) const {
    const auto aligned = [](const void* p) { return reinterpret_cast<uintptr_t>(p) % (2 * sizeof(float)) == 0; };
    return usable && aligned(call.conv.x) && aligned(call.grad);
  }
};

// Where it leaves the parts of its tap.
struct OneTapPlaces {
  int groups, x_blocks, planes_blocks, splits;

  __device__ __forceinline__ static int in_tile(int row, int column) { return HopperPlaces::in_tile(row, column); }

  __device__ __forceinline__ TapParts operator()(int pair, int) const {
    const int blocks = pair / planes_blocks, group = blocks / x_blocks;
    TapParts at;
    at.first = (group * 2 + blocks - group * x_blocks) * planes_blocks + pair - blocks * planes_blocks;
    at.outer = splits, at.outer_step = groups * 2 * planes_blocks;
    at.inner = x_blocks == 1 ? 2 : 1, at.inner_step = planes_blocks;
    return at;
  }
};

// keeps_planes: packed g stays in the workspace, for after_go.
template <typename AfterGo>
int64_t launch_weight_gradient_one_tap(const GradientCall& call, const SlidingLayer& sliding, const PackedGoes& goes,
                                       const OneTapPlan& plan, void* workspace, GradientState* state, bool keeps_planes,
                                       const AfterGo& after_go) {
  using Config = OneTapConfig;
  const WeightGradientLayout& layout = goes.layout;
  const bool two_x = layout.x.blocks == 2, two_planes = layout.planes.blocks == 2;
  const auto kernel = two_x ? two_planes ? weight_gradient_one_tap_kernel<2, 2> : weight_gradient_one_tap_kernel<2, 1>
                      : two_planes ? weight_gradient_one_tap_kernel<1, 2>
                                   : weight_gradient_one_tap_kernel<1, 1>;
  const int smem = Config::smem_bytes(layout.x.blocks + layout.planes.blocks);
  const int64_t batch = call.conv.layer.batch;
  for (int64_t first = 0; first < batch; first += goes.images) {
    const int count = static_cast<int>(std::min<int64_t>(goes.images, batch - first));
    OneTapArgs args{};
    args.x = pack_args<float>(call, sliding, layout, false, first, count);
    args.planes = pack_args<float>(call, sliding, layout, true, first, count);
    args.x.state = args.planes.state = state;
    if (keeps_planes) args.planes.to = goes.planes(workspace);
    args.num_samples = count, args.num_splits = plan.splits;
    args.parts = goes.parts(workspace);
    args.accumulate = first > 0;
    TCONV_RETURN_IF_ERROR(allow_dynamic_smem(kernel, smem));
    TCONV_RETURN_IF_ERROR(launch_kernel(kernel, dim3(static_cast<unsigned>(plan.splits * layout.groups)),
                                        dim3(Config::kThreads), smem, call.conv.stream, args));
    TCONV_RETURN_IF_ERROR(after_go(first, count));
  }
  const OneTapPlaces places{layout.groups, layout.x.blocks, layout.planes.blocks, plan.splits};
  return launch_weight_gradient_sums<float>(call, sliding, layout, places, goes.parts(workspace), state, nullptr);
}

}  // namespace pixels
}  // namespace cuda
}  // namespace tconv
