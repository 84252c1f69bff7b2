// Which kernels form a tail's gradients: by its number, with the steps that the generator wrote of it, and by dtype.
#pragma once

#include "channel_softmax_gradient.cuh"
#ifdef TCONV_NORM_TAILS
#include "norm_tail_gradient.cuh"
#endif
#ifdef TCONV_CENTRED_TAILS
#include "centred_batch_norm_backward.cuh"
#endif
#include "plane_softmax_gradient.cuh"
#include "row_norm_gradient.cuh"
#include "window_pool_gradient.cuh"

namespace tconv {
namespace cuda {

inline int64_t tail_gradient_workspace_bytes(const TailGradientCall& call) {
  return norm::dispatch_dtype(call.conv.dtype, [&](auto storage) -> int64_t {
    using S = decltype(storage);
    switch (call.asked) {
      case TailOperator::kLayerNorm: return row_norm_gradient_workspace_bytes<S>(call);
      case TailOperator::kSoftmax: return channel_softmax_gradient_workspace_bytes(call);
      case TailOperator::kPlaneSoftmax: return plane_softmax_gradient_workspace_bytes<S>(call);
      case TailOperator::kPool: return window_pool_gradient_workspace_bytes(call);
#ifdef TCONV_NORM_TAILS
      case TailOperator::kGroupNorm:
      case TailOperator::kBatchNorm: return norm_tail_gradient_workspace_bytes(call);
#ifdef TCONV_CENTRED_TAILS
      case TailOperator::kCentredBatchNorm: return centred_batch_norm_backward_workspace_bytes(call);
#endif
#else
      default: break;
#endif
    }
    return kUnsupportedKernel;
  });
}

// A number of another kind of tail than the operator's computes nothing.
template <typename Step, typename S>
int64_t launch_tail_gradient_as(const TailGradientCall& call) {
  constexpr TailKind kKind = Step::kKind;
  if constexpr (kKind == TailKind::kLayerNorm) {
    if (call.asked == TailOperator::kLayerNorm) return launch_row_norm_gradient<Step, S>(call);
  } else if constexpr (kKind == TailKind::kSoftmax) {
    if (call.asked == TailOperator::kSoftmax) return launch_channel_softmax_gradient<Step, S>(call);
  } else if constexpr (kKind == TailKind::kPlaneSoftmax) {
    if (call.asked == TailOperator::kPlaneSoftmax) return launch_plane_softmax_gradient<Step, S>(call);
#ifdef TCONV_NORM_TAILS
  } else if constexpr (kKind == TailKind::kGroupNorm) {
    if (call.asked == TailOperator::kGroupNorm) return launch_norm_tail_gradient<GroupNormTailGradient<Step, S>>(call);
  } else if constexpr (kKind == TailKind::kBatchNorm) {
    if (call.asked == TailOperator::kBatchNorm) {
      if constexpr (std::is_same_v<S, float>)
        return launch_norm_tail_gradient<BatchNormTailGradient<Step>>(call);
      else
        return kUnsupportedDType;
    }
#endif
#ifdef TCONV_CENTRED_TAILS
  } else if constexpr (kKind == TailKind::kCentredBatchNorm) {
    if (call.asked == TailOperator::kCentredBatchNorm) {
      if constexpr (std::is_same_v<S, float>)
        return launch_norm_tail_gradient<CentredBatchNormBackward<Step>>(call);
      else
        return kUnsupportedDType;
    }
#endif
  } else {
    constexpr bool kLargest = kKind == TailKind::kMaxPool;
    if (call.asked == TailOperator::kPool) return launch_window_pool_gradient<Step, kLargest, S>(call);
  }
  return unsupported_tail(call, "the tail of this number is of another kind");
}

template <int kNumber = 0>
int64_t launch_tail_gradient(const TailGradientCall& call) {
  if constexpr (kNumber < kNumTails) {
    if (call.number != kNumber) return launch_tail_gradient<kNumber + 1>(call);
    switch (call.conv.dtype) {
      case kFloat32: return launch_tail_gradient_as<Tail<kNumber>, float>(call);
      case kFloat16: return launch_tail_gradient_as<Tail<kNumber>, __half>(call);
      case kBFloat16: return launch_tail_gradient_as<Tail<kNumber>, __nv_bfloat16>(call);
      default: return kUnsupportedDType;
    }
  } else {
    return unsupported_tail(call, "no tail of the library has this number");
  }
}

}  // namespace cuda
}  // namespace tconv
