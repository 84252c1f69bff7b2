// Gradients of BatchNorm whose result has each plane's mean taken away, of a tail: those of BatchNorm but for what
// joins the moments, which leaves coefficients for each channel of a sample.
#pragma once

#include "centred_batch_norm_backward_finalise.cuh"
#include "norm_tail_gradient.cuh"

namespace tconv {
namespace cuda {

// Made once for its size and once, with a workspace, for its run.
template <typename Step>
class CentredBatchNormBackward {
 public:
  using Kernels = GroupNormGradient<NormTailInner<Step, float>, float>;
  using Args = typename Kernels::Args;

  // With a group for each channel. Gradients of weight and bias are sums over samples here.
  CentredBatchNormBackward(const TailGradientCall& call, WorkspacePlaces& places)
      : call_(call),
        args_(Kernels(as_group_norm(call, call.channels),
                      {static_cast<const norm::ChannelAffine<float>*>(call.maps), true}, false, places)
                  .args) {}

  int64_t run() const {
    return args_.plane <= GroupNormGradientConfig::kMaxOfWarp ? launch<32>()
                                                              : launch<GroupNormGradientConfig::kThreads>();
  }

 private:
  template <int kLanes>
  int64_t launch() const {
    using Finalise = CentredBatchNormBackwardConfig;
    constexpr int kThreads = GroupNormGradientConfig::kThreads;
    const dim3 blocks = norm_blocks(args_.num_units, kThreads / kLanes);
    void* const stream = call_.conv.stream;
    TCONV_RETURN_IF_ERROR(
        (launch_kernel(group_norm_gradient_sums_kernel<kLanes, Args>, blocks, dim3(kThreads), 0, stream, args_)));
    TCONV_RETURN_IF_ERROR(launch_kernel(centred_batch_norm_backward_finalise_kernel<Args>,
                                        dim3(static_cast<unsigned>(call_.channels)), dim3(Finalise::kThreads), 0,
                                        stream, args_, call_.batch, Finalise::threads_per_plane(args_.parts_per_plane),
                                        sums_of<float>(call_, 0), sums_of<float>(call_, 1)));
    return launch_kernel(group_norm_gradient_apply_kernel<kLanes, Args>, blocks, dim3(kThreads), 0, stream, args_);
  }

  const TailGradientCall& call_;
  Args args_;
};

inline int64_t centred_batch_norm_backward_workspace_bytes(const TailGradientCall& call) {
  WorkspacePlaces places(nullptr);
  const CentredBatchNormBackward<NoSteps> made(call, places);
  return places.bytes();
}

}  // namespace cuda
}  // namespace tconv
