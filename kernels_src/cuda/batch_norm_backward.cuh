// Gradients of BatchNorm by a batch's statistics, of a tensor in memory. They are GroupNorm's with a group for each
// channel, but that a group lies in all samples: its kernels read value and gradient, for the moments of both and for
// the gradient of value, and between them a channel's moments are joined over the samples. Bound by memory.
#pragma once

#include "../batch_norm_call.h"
#include "batch_norm_backward_finalise.cuh"
#include "group_norm_gradient.cuh"

namespace tconv {
namespace cuda {

// Made once for its size and once, with a workspace, for its run.
template <typename Inner = ChainInner<0, float>>
class BatchNormBackward {
 public:
  using Kernels = GroupNormGradient<Inner, float>;
  using Args = typename Kernels::Args;

  BatchNormBackward(const BatchNormCall& call, WorkspacePlaces& places, const Inner& inner = {})
      : call_(call), args_(Kernels(as_group_norm(call), inner, false, places).args) {}

  int64_t run() const {
    return args_.plane <= GroupNormGradientConfig::kMaxOfWarp ? launch<32>()
                                                              : launch<GroupNormGradientConfig::kThreads>();
  }

 private:
  // Without gradients of weight and bias, which are sums over samples here.
  static GroupNormGradientCall as_group_norm(const BatchNormCall& call) {
    GroupNormGradientCall made{};
    made.conv = call.conv;
    made.grad = call.grad, made.value = call.value, made.weight = call.norm.weight;
    made.batch = call.batch, made.channels = call.channels, made.height = call.plane, made.width = 1;
    made.row_columns = 1, made.num_groups = call.channels, made.eps = call.norm.eps;
    made.grad_value = call.grad_value;
    return made;
  }

  template <int kLanes>
  int64_t launch() const {
    constexpr int kThreads = GroupNormGradientConfig::kThreads;
    const dim3 blocks = norm_blocks(args_.num_units, kThreads / kLanes);
    void* const stream = call_.conv.stream;
    TCONV_RETURN_IF_ERROR(
        launch_kernel(group_norm_gradient_sums_kernel<kLanes, Args>, blocks, dim3(kThreads), 0, stream, args_));
    TCONV_RETURN_IF_ERROR(launch_kernel(batch_norm_backward_finalise_kernel<Args>,
                                        dim3(static_cast<unsigned>(call_.channels)),
                                        dim3(BatchNormBackwardConfig::kThreads), 0, stream, args_, call_.batch,
                                        static_cast<float*>(call_.grad_weight), static_cast<float*>(call_.grad_bias)));
    return launch_kernel(group_norm_gradient_apply_kernel<kLanes, Args>, blocks, dim3(kThreads), 0, stream, args_);
  }

  BatchNormCall call_;
  Args args_;
};

}  // namespace cuda
}  // namespace tconv
