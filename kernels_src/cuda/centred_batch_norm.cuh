// BatchNorm by a batch's statistics whose result has each plane's mean taken away, with the steps behind that: moments
// of pieces of planes -> one affine map for each channel of a sample -> the maps applied. The tensor is read twice and
// written once.
#pragma once

#include "centred_batch_norm_finalise.cuh"
#include "norm_tail.cuh"

namespace tconv {
namespace cuda {

class CentredBatchNorm {
 public:
  explicit CentredBatchNorm(const TailCall& call)
      : call_(call), num_partials_(norm::PlaneMomentsConfig::num_partials(call.plane)) {
    table_ = layout_.reserve(call.batch * call.channels * sizeof(norm::ChannelAffine<float>));
    partials_ = layout_.reserve(call.batch * num_partials_ * call.channels * sizeof(norm::CentredMoments));
  }

  int64_t workspace_bytes() const { return layout_.bytes(); }

  template <typename Step>
  int64_t run() const {
    const auto stream = static_cast<cudaStream_t>(call_.conv.stream);
    const auto* value = static_cast<const float*>(call_.value);
    auto* partials = norm::at_offset<norm::CentredMoments>(call_.conv.workspace, partials_);
    auto* table = norm::at_offset<norm::ChannelAffine<float>>(call_.conv.workspace, table_);
    const norm::BatchNormAffine<float> affine{static_cast<const float*>(call_.weight),
                                              static_cast<const float*>(call_.bias), call_.eps};
    TCONV_RETURN_IF_ERROR(
        norm::launch_centred_plane_moments(value, partials, call_.batch, call_.channels, call_.plane, stream));
    TCONV_RETURN_IF_ERROR(norm::launch_centred_batch_norm_finalise(partials, call_.batch, num_partials_, call_.channels,
                                                                   affine, table, call_.updated, stream));
    // Every channel of a sample has a map of its own.
    return norm::launch_batch_norm_apply(value, table, static_cast<float*>(call_.result), 1,
                                         call_.batch * call_.channels, call_.plane, stream,
                                         steps_behind<Step, float>(call_));
  }

 private:
  const TailCall& call_;
  int64_t num_partials_;
  norm::WorkspaceLayout layout_;
  int64_t table_, partials_;
};

}  // namespace cuda
}  // namespace tconv
