// Which kernel a tail is: by its number, with the steps that the generator wrote of it, and by dtype. Only the kernels
// of the tails that a library has are compiled.
#pragma once

#include "channel_softmax.cuh"
#ifdef TCONV_NORM_TAILS
#include "norm_tail.cuh"
#endif
#ifdef TCONV_CENTRED_TAILS
#include "centred_batch_norm.cuh"
#endif
#include "plane_softmax.cuh"
#include "row_norm.cuh"
#include "window_pool.cuh"

namespace tconv {
namespace cuda {

// Other kinds read their values once, and keep nothing in between.
inline int64_t tail_workspace_bytes(const TailCall& call) {
  return norm::dispatch_dtype(call.conv.dtype, [&](auto storage) -> int64_t {
    using S = decltype(storage);
    switch (call.asked) {
      case TailOperator::kPlaneSoftmax: return plane_softmax_workspace_bytes<S>(call);
#ifdef TCONV_NORM_TAILS
      case TailOperator::kGroupNorm: return group_norm_tail_workspace_bytes<S>(call);
      case TailOperator::kBatchNorm: return batch_norm_tail_workspace_bytes(call);
#endif
#ifdef TCONV_CENTRED_TAILS
      case TailOperator::kCentredBatchNorm: return CentredBatchNorm(call).workspace_bytes();
#endif
      default: return 0;
    }
  });
}

// A number of another kind of tail than the operator's computes nothing.
template <typename Step, typename S>
int64_t launch_tail_as(const TailCall& call) {
  constexpr TailKind kKind = Step::kKind;
  if constexpr (kKind == TailKind::kLayerNorm) {
    if (call.asked == TailOperator::kLayerNorm) return launch_row_norm<Step, S>(call);
  } else if constexpr (kKind == TailKind::kSoftmax) {
    if (call.asked == TailOperator::kSoftmax) return launch_channel_softmax<Step, S>(call);
  } else if constexpr (kKind == TailKind::kPlaneSoftmax) {
    if (call.asked == TailOperator::kPlaneSoftmax) return launch_plane_softmax<Step, S>(call);
#ifdef TCONV_NORM_TAILS
  } else if constexpr (kKind == TailKind::kGroupNorm) {
    if (call.asked == TailOperator::kGroupNorm) return launch_group_norm_tail<Step, S>(call);
  } else if constexpr (kKind == TailKind::kBatchNorm) {
    if (call.asked == TailOperator::kBatchNorm) {
      if constexpr (std::is_same_v<S, float>)
        return launch_batch_norm_tail<Step>(call);
      else
        return kUnsupportedDType;
    }
#endif
#ifdef TCONV_CENTRED_TAILS
  } else if constexpr (kKind == TailKind::kCentredBatchNorm) {
    if (call.asked == TailOperator::kCentredBatchNorm) {
      if constexpr (std::is_same_v<S, float>)
        return CentredBatchNorm(call).run<Step>();
      else
        return kUnsupportedDType;
    }
#endif
  } else {
    constexpr bool kLargest = kKind == TailKind::kMaxPool;
    if (call.asked == TailOperator::kPool) return launch_window_pool<Step, kLargest, S>(call);
  }
  return unsupported_tail(call, "the tail of this number is of another kind");
}

template <typename Step>
int64_t launch_tail_numbered(const TailCall& call) {
  switch (call.conv.dtype) {
    case kFloat32: return launch_tail_as<Step, float>(call);
    case kFloat16: return launch_tail_as<Step, __half>(call);
    case kBFloat16: return launch_tail_as<Step, __nv_bfloat16>(call);
    default: return kUnsupportedDType;
  }
}

template <int kNumber = 0>
int64_t launch_tail(const TailCall& call) {
  if constexpr (kNumber < kNumTails) {
    return call.number == kNumber ? launch_tail_numbered<Tail<kNumber>>(call) : launch_tail<kNumber + 1>(call);
  } else {
    return unsupported_tail(call, "no tail of the library has this number");
  }
}

}  // namespace cuda
}  // namespace tconv
