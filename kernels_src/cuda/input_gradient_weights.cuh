// The weights as the forward's kernels read them for the input gradient: in and out channels swapped, classes of taps
// as channels (sliding_layer.h), taps flipped.
//   weight [in_channels, out_channels/groups, kernel_h, kernel_w]
//   -> [group][class h][class w][oc of group] x [ic of group] x [taps_h][taps_w], zeros for taps beyond the kernel's
//   end
#pragma once

#ifdef TCONV_WALKS_DEPTH
#include <algorithm>

#endif
#include "../gradient_call.h"
#include "check.h"
#include "fast_divisor.h"
#ifdef TCONV_SKIPS_TAPS
#ifdef TCONV_WALKS_DEPTH
#include "present_taps.h"
#endif
#endif
#include "sliding_layer.h"

namespace tconv {
namespace cuda {

struct SwappedWeightsConfig {
  static constexpr int kThreads = 256;
  static constexpr int kMaxBlocks = 4096;
};

template <typename Storage>
struct SwappedWeightsArgs {
  const Storage* weight;
  Storage* swapped;
  SlidingAxis h, w;
  int64_t kernel_h, kernel_w, ic_per_group, oc_per_group, count;
  FastDivisor64 by_taps_h, by_taps_w, by_channels, by_ic, by_oc, by_classes_w;
#ifdef TCONV_WALKS_DEPTH
  SlidingAxis d;
  int64_t kernel_d, channels_per_group;
  FastDivisor64 by_taps_d, by_padded;  // channels of a group, with those that have zeros behind the others
#ifdef TCONV_SKIPS_TAPS
  PresentTaps taps;  // of blocks, if there are some, the channels are: by_taps_d divides by one
#endif
#endif
};

template <typename Storage>
__global__ void __launch_bounds__(SwappedWeightsConfig::kThreads)
    swap_weights_kernel(const __grid_constant__ SwappedWeightsArgs<Storage> args) {
  const int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < args.count; i += step) {
    int64_t rest = i;
    const auto next_digit = [&rest](const FastDivisor64& by) {
      const int64_t quotient = by.quotient(rest), digit = rest - quotient * static_cast<int64_t>(by.divisor);
      rest = quotient;
      return digit;
    };
    const int64_t tap_w = args.w.taps - 1 - next_digit(args.by_taps_w);
    const int64_t tap_h = args.h.taps - 1 - next_digit(args.by_taps_h);
#ifdef TCONV_WALKS_DEPTH
#ifdef TCONV_SKIPS_TAPS
    int64_t tap_d = args.d.taps - 1 - next_digit(args.by_taps_d);
    const int64_t ic = next_digit(args.by_ic);
    int64_t of_group = next_digit(args.by_padded);
    const int64_t group = rest;
    if (args.taps.count > 0) {
      constexpr int kBlock = PresentTaps::kBlockChannels;
      const int place = args.taps.places[of_group / kBlock],
                blocks = static_cast<int>(args.channels_per_group / kBlock);
      tap_d = place / blocks;
      of_group = (place - tap_d * blocks) * kBlock + of_group % kBlock;
    }
#else
    const int64_t tap_d = args.d.taps - 1 - next_digit(args.by_taps_d);
    const int64_t ic = next_digit(args.by_ic), of_group = next_digit(args.by_padded), group = rest;
#endif
    const int64_t class_d = args.by_channels.quotient(of_group), kd = class_d + tap_d * args.d.kernel_step;
    const int64_t channel = of_group - class_d * static_cast<int64_t>(args.by_channels.divisor);
#else
    const int64_t ic = next_digit(args.by_ic), channel = next_digit(args.by_channels), group = rest;
#endif
    rest = channel;
    const int64_t oc = next_digit(args.by_oc), class_w = next_digit(args.by_classes_w);
    const int64_t kh = rest + tap_h * args.h.kernel_step, kw = class_w + tap_w * args.w.kernel_step;
    const int64_t pair = (group * args.ic_per_group + ic) * args.oc_per_group + oc;
#ifdef TCONV_WALKS_DEPTH
    args.swapped[i] =
        of_group < args.channels_per_group && kd < args.kernel_d && kh < args.kernel_h && kw < args.kernel_w
            ? args.weight[((pair * args.kernel_d + kd) * args.kernel_h + kh) * args.kernel_w + kw]
            : static_cast<Storage>(0.0f);
#else
    args.swapped[i] = kh < args.kernel_h && kw < args.kernel_w
                          ? args.weight[(pair * args.kernel_h + kh) * args.kernel_w + kw]
                          : static_cast<Storage>(0.0f);
#endif
  }
}

#ifdef TCONV_WALKS_DEPTH
// `padded`: channels of a group, if more than those of all planes.
template <typename Storage>
#ifdef TCONV_SKIPS_TAPS
// `taps`: or those of its blocks, of all depth taps.
int64_t launch_swap_weights(const GradientCall& call, const SlidingLayer& sliding, void* swapped, int64_t padded = 0,
                            const PresentTaps& taps = {}) {
#else
int64_t launch_swap_weights(const GradientCall& call, const SlidingLayer& sliding, void* swapped, int64_t padded = 0) {
#endif
#else
template <typename Storage>
int64_t launch_swap_weights(const GradientCall& call, const SlidingLayer& sliding, void* swapped) {
#endif
  const ConvTransposeLayer& p = call.conv.layer;
  SwappedWeightsArgs<Storage> args;
  args.weight = static_cast<const Storage*>(call.conv.weight);
  args.swapped = static_cast<Storage*>(swapped);
  args.h = sliding.h, args.w = sliding.w;
  args.kernel_h = p.kernel_h, args.kernel_w = p.kernel_w;
  int64_t channels = sliding.channels_per_group;
  args.ic_per_group = p.in_channels / p.groups, args.oc_per_group = p.out_channels / p.groups;
  args.count = p.groups * sliding.channels_per_group * args.ic_per_group * sliding.h.taps * sliding.w.taps;
#ifdef TCONV_WALKS_DEPTH
  args.d = sliding.d;
  args.kernel_d = call.depth.in == 0 ? 1 : call.depth.kernel;
  args.channels_per_group = sliding.channels_per_group;
#ifdef TCONV_SKIPS_TAPS
  args.taps = taps;
  const bool of_blocks = taps.count > 0;
  padded = of_blocks ? int64_t{taps.count} * PresentTaps::kBlockChannels : std::max(padded, sliding.channels_per_group);
  const int64_t taps_d = of_blocks ? 1 : sliding.d.taps;
#else
  padded = std::max(padded, sliding.channels_per_group);
  const int64_t taps_d = sliding.d.taps;
#endif
  args.count = args.count / sliding.channels_per_group * padded * taps_d;
  args.by_taps_d = FastDivisor64::make(static_cast<uint64_t>(taps_d));
  args.by_padded = FastDivisor64::make(static_cast<uint64_t>(padded));
  channels /= sliding.d.classes;  // those of a class in depth
#endif
  args.by_taps_h = FastDivisor64::make(static_cast<uint64_t>(sliding.h.taps));
  args.by_taps_w = FastDivisor64::make(static_cast<uint64_t>(sliding.w.taps));
  args.by_channels = FastDivisor64::make(static_cast<uint64_t>(channels));
  args.by_ic = FastDivisor64::make(static_cast<uint64_t>(args.ic_per_group));
  args.by_oc = FastDivisor64::make(static_cast<uint64_t>(args.oc_per_group));
  args.by_classes_w = FastDivisor64::make(static_cast<uint64_t>(sliding.w.classes));
  const int64_t blocks = (args.count + SwappedWeightsConfig::kThreads - 1) / SwappedWeightsConfig::kThreads;
  return launch_kernel(swap_weights_kernel<Storage>,
                       dim3(static_cast<unsigned>(
                           blocks < SwappedWeightsConfig::kMaxBlocks ? blocks : SwappedWeightsConfig::kMaxBlocks)),
                       dim3(SwappedWeightsConfig::kThreads), 0, call.conv.stream, args);
}

}  // namespace cuda
}  // namespace tconv
