// Gradients of a convolution and of what follows it: a chain of element-wise operations, or GroupNorm behind one. Where
// both of the convolution's gradients read packed pixels (packed_gradients.cuh), these are formed at once from the
// convolution's output and the gradient behind the chain: the gradient of the output, as large as that, is neither
// written nor read, but where tensor cores cannot do what the numbers ask for. The output is there, or computed along,
// slice by slice (chain_slices.cuh).
#pragma once

#include <algorithm>
#include <vector>

#include "chain_packer.cuh"
#ifndef TCONV_WALKS_DEPTH
#include "chain_slices.cuh"
#endif

namespace tconv {
namespace cuda {

// Does every row (or column) of the output lie in exactly one place of the planes?
inline bool covered_once(const SlidingAxis& axis, int64_t out, int64_t stride, int64_t dilation, int64_t padding) {
  std::vector<int> times(static_cast<size_t>(out), 0);
  const int64_t class_step = axis.classes > 1 ? dilation : 0;
  for (int64_t c = 0; c < axis.classes; ++c)
    for (int64_t i = 0; i < axis.plane_size; ++i) {
      const int64_t at = i * stride + c * class_step - padding;
      if (at >= 0 && at < out) ++times[static_cast<size_t>(at)];
    }
  return std::all_of(times.begin(), times.end(), [](int n) { return n == 1; });
}

// Of the convolution's gradients, whose g is to be formed as it is packed.
inline bool packs_chain(const GradientCall& call, const GradientsPlan& plan) {
#ifdef TCONV_WALKS_DEPTH
  // Whole volumes, without GroupNorm behind them, whose output is there.
  if (!of_volumes(call) || plan.status != kOk || !plan.packed || plan.weight->kernel != kHopper) return false;
#else
  if (plan.status != kOk || !plan.packed || plan.weight->kernel != kHopper || plan.weight->one_tap.usable) return false;
#endif
  const ConvTransposeLayer& p = call.conv.layer;
  const SlidingLayer& sliding = plan.weight->sliding;
  const WeightGradientLayout& layout = plan.weight->goes().layout;
#ifdef TCONV_WALKS_DEPTH
  const DepthAxis& depth = call.depth;
  const int64_t go = std::min<int64_t>(plan.weight->goes().images / sliding.d.plane_size, p.batch) * depth.out;
  if (!covered_once(sliding.d, depth.out, depth.stride, depth.dilation, depth.padding)) return false;
#else
  const int64_t go = std::min<int64_t>(plan.weight->goes().images, p.batch);
#endif
  return layout.abreast == 1 && go * p.out_channels * p.out_h * p.out_w <= INT32_MAX &&
         p.out_channels / p.groups % 8 == 0 &&
         pixels_beyond(layout) <= std::min(layout.segment, int{ChainPackConfig::kMostBeyond}) &&
         covered_once(sliding.h, p.out_h, p.stride_h, p.dilation_h, p.padding_h) &&
         covered_once(sliding.w, p.out_w, p.stride_w, p.dilation_w, p.padding_w);
}

inline GroupNormGradientCall chain_call_of(const GradientCall& call) {
  GroupNormGradientCall chain = call.of_chain;
  chain.conv.dtype = call.conv.dtype, chain.conv.stream = call.conv.stream;
  chain.conv.workspace = call.conv.workspace, chain.conv.workspace_bytes = call.conv.workspace_bytes;
  return chain;
}

#ifndef TCONV_WALKS_DEPTH
// Is grad alone wanted?
inline bool chain_alone(const GradientCall& call) { return call.of_chain.grad_value != nullptr; }

#endif
// take(how to launch it, bytes of workspace). Behind the workspace of the convolution's gradients, but for slices.
// call.grad: where g may be materialised, unless its output is computed along.
template <typename Storage, typename Take>
int64_t with_chain_launch(const GradientCall& call, const DeviceLimits& device, const Take& take) {
  if constexpr (sizeof(Storage) == 8) {
    return kUnsupportedKernel;
  } else {
    const GradientsPlan plan(call, device);
    if (!packs_chain(call, plan)) return kUnsupportedKernel;
#ifdef TCONV_CHAINS_READ_TENSORS
    return with_chain_of_vectors(call.of_chain.chain, [&](auto index) -> int64_t {
#else
    return with_chain(call.of_chain.chain, [&](auto index) -> int64_t {
#endif
      constexpr int kChain = decltype(index)::value;
#ifdef TCONV_READS_MASK
      if (Chain<kChain>::kReadsMask != call.of_chain.reads_mask) return kUnsupportedKernel;
#endif
      WorkspacePlaces places(call.conv.workspace);
      GroupNormGradientCall chain = chain_call_of(call);
      chain.grad_value = const_cast<void*>(call.grad), chain.row_columns = chain.width;
#ifdef TCONV_WALKS_DEPTH
      if (call.computes_value) return kUnsupportedKernel;
#else
      if (call.computes_value) {
        if constexpr (sizeof(Storage) == 4) {
          const ChainSlices<kChain> slices(call, chain, plan, device, places);
          if (slices.usable()) return take([&] { return slices.launch(); }, places.bytes());
        }
        return kUnsupportedKernel;
      }
#endif
      places.reserve<char>(plan.total_bytes);
      const ChainPacker<kChain, Storage> packer(call, chain, *plan.weight, places);
      const auto launch = [&]() -> int64_t {
#ifndef TCONV_WALKS_DEPTH
        TCONV_RETURN_IF_ERROR(packer.sum_up(packer.args()));
#endif
        GradientCall packing = call;
        packing.packer = &packer;
        TCONV_RETURN_IF_ERROR(
            launch_packed_gradients<Storage>(packing, *plan.input, *plan.weight, *plan.packed, device));
        return packer.add_up();
      };
      return take(launch, places.bytes());
    });
  }
}

template <typename Storage>
int64_t chain_packed_bytes(const GradientCall& call) {
  DeviceLimits device;
  if (query_device_limits(&device) != kOk) return 0;  // the launch will say why
  return with_chain_launch<Storage>(call, device, [](const auto&, int64_t bytes) { return bytes; });
}

// kUnsupportedKernel where g has to be formed first.
inline int64_t chain_gradients_workspace_bytes(const GradientCall& call) {
#ifndef TCONV_WALKS_DEPTH
  if (chain_alone(call)) return group_norm_gradient_workspace_bytes(chain_call_of(call));
#endif
  switch (call.conv.dtype) {
    case kFloat32: return chain_packed_bytes<float>(call);
    case kFloat16: return chain_packed_bytes<__half>(call);
    case kBFloat16: return chain_packed_bytes<__nv_bfloat16>(call);
    default: return kUnsupportedKernel;
  }
}

template <typename Storage>
int64_t launch_chain_gradients(const GradientCall& call) {
#ifndef TCONV_WALKS_DEPTH
  if (chain_alone(call)) return launch_group_norm_gradient<Storage>(chain_call_of(call));
#endif
  DeviceLimits device;
  TCONV_RETURN_IF_ERROR(query_device_limits(&device));
  return with_chain_launch<Storage>(call, device, [&](const auto& launch, int64_t bytes) -> int64_t {
    if (call.conv.workspace_bytes < bytes) return kWorkspaceTooSmall;
    return launch();
  });
}

inline int64_t run_chain_gradients(const GradientCall& call) {
  switch (call.conv.dtype) {
    case kFloat32: return launch_chain_gradients<float>(call);
    case kFloat64: return launch_chain_gradients<double>(call);
    case kFloat16: return launch_chain_gradients<__half>(call);
    case kBFloat16: return launch_chain_gradients<__nv_bfloat16>(call);
    default: return kUnsupportedDType;
  }
}

}  // namespace cuda
}  // namespace tconv
