// Host side of the kernel for volumes of few channels: which calls it takes, its launch.
#pragma once

#include <algorithm>

#include "check.h"
#include "conv_transpose_few_channels.cuh"
#include "conv_transpose_portable_plan.h"
#include "generated_few_channels.h"

namespace tconv {
namespace cuda {

template <typename Layer>
bool is_few_channels_layer(const ConvCall& call) {
  const ConvTransposeLayer& p = call.layer;
  const int64_t of_call[] = {p.in_channels / call.depth.tap_count(),
                             p.groups,
                             p.kernel_h,
                             p.kernel_w,
                             p.stride_h,
                             p.stride_w,
                             p.padding_h,
                             p.padding_w,
                             p.dilation_h,
                             p.dilation_w};
  constexpr FewChannelsAxis h = few_channels_axis<Layer>(1), w = few_channels_axis<Layer>(2);
  constexpr int64_t compiled[] = {Layer::kChannels, 1,         h.kernel,  w.kernel,   h.stride,
                                  w.stride,         h.padding, w.padding, h.dilation, w.dilation};
  return std::equal(std::begin(of_call), std::end(of_call), std::begin(compiled));
}

// Calls f(layer, depth taps), both as types, for the compiled layer that the call is one of, and as many taps; returns
// `otherwise` where there is none.
template <int kNumber = 0, int kDepthTaps = 1, typename Result, typename Function>
Result with_few_channels(const ConvCall& call, Result otherwise, Function&& f) {
  if constexpr (kNumber == kNumFewChannels) {
    return otherwise;
  } else {
    using Layer = FewChannels<kNumber>;
    constexpr FewChannelsAxis depth = few_channels_axis<Layer>(0);
    if constexpr (kDepthTaps > depth.kernel) {
      return with_few_channels<kNumber + 1, 1>(call, otherwise, f);
    } else {
      if constexpr (depth.has_residue_of(kDepthTaps) && FewChannelsConfig<Layer, kDepthTaps>::kUsable) {
        if (call.depth.taps == kDepthTaps && is_few_channels_layer<Layer>(call))
          return f(Layer{}, std::integral_constant<int, kDepthTaps>{});
      }
      return with_few_channels<kNumber, kDepthTaps + 1>(call, otherwise, f);
    }
  }
}

template <typename Config>
int64_t few_channels_blocks(const ConvCall& call) {
  const ConvTransposeLayer& p = call.layer;
  return p.batch * ceil_div(p.out_channels, Config::kOutChannels) *
         ceil_div(ceil_div(p.out_h, Config::height().stride), Config::kBlockRows) *
         ceil_div(ceil_div(p.out_w, Config::width().stride), 32);
}

// Slices of a layer that the kernel is compiled for?
inline bool few_channels_serves(const ConvCall& call) {
  if (!call.depth.walks() || call.depth.residues() > 1 || call.dtype == kFloat64) return false;
  return with_few_channels(call, false, [&](auto layer, auto taps) {
    return few_channels_blocks<FewChannelsConfig<decltype(layer), taps>>(call) <= INT32_MAX;
  });
}

template <typename Storage>
int64_t launch_few_channels(const ConvCall& call, void* out) {
  return with_few_channels(call, int64_t{kUnsupportedKernel}, [&](auto layer, auto taps) -> int64_t {
    using Layer = decltype(layer);
    using Config = FewChannelsConfig<Layer, taps>;
    const ConvTransposeLayer& p = call.layer;
    const DepthWalk& depth = call.depth;
    FewChannelsArgs<Storage> args{};
    args.x = static_cast<const Storage*>(call.x);
    args.weight = static_cast<const Storage*>(call.weight);
    args.out = static_cast<Storage*>(out);
    args.epilogue = make_epilogue_args<Storage>(call);
    args.x_stride_n = depth.x_stride_n;
    args.x_stride_d = depth.x_stride_d;
    args.x_stride_c = p.x_stride_c;
    args.x_stride_h = p.x_stride_h;
    args.x_stride_w = p.x_stride_w;
    args.out_stride_n = depth.out_stride_n;
    args.out_stride_d = depth.out_stride_d;
    args.out_stride_c = depth.out_stride_c;
    args.in_depth = static_cast<int>(depth.in_depth);
    args.in_h = static_cast<int>(p.in_h);
    args.in_w = static_cast<int>(p.in_w);
    args.out_h = static_cast<int>(p.out_h);
    args.out_w = static_cast<int>(p.out_w);
    args.out_channels = static_cast<int>(p.out_channels);
    args.slices = static_cast<int>(depth.slices);
    args.depth_first = static_cast<int>(depth.first);
    args.depth_step = static_cast<int>(depth.step);
    args.kernel_depth = static_cast<int>(depth.kernel_depth);
    args.kernel_first = static_cast<int>(depth.kernel_first);
    args.kernel_step = static_cast<int>(depth.kernel_step);
    args.row_blocks = static_cast<int>(ceil_div(ceil_div(p.out_h, Config::height().stride), Config::kBlockRows));
    args.column_blocks = static_cast<int>(ceil_div(ceil_div(p.out_w, Config::width().stride), 32));
    args.channel_blocks = static_cast<int>(ceil_div(p.out_channels, Config::kOutChannels));
    const auto kernel = conv_transpose_few_channels_kernel<Layer, taps, Storage>;
    TCONV_RETURN_IF_ERROR(allow_dynamic_smem(kernel, Config::kSmemBytes));
    return launch_kernel(kernel, dim3(static_cast<unsigned>(few_channels_blocks<Config>(call))), dim3(Config::kThreads),
                         Config::kSmemBytes, call.stream, args);
  });
}

}  // namespace cuda
}  // namespace tconv
