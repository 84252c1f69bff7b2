// GroupNorm of a tensor in memory, and its gradients.
#pragma once

#include "group_norm_forward.cuh"
#include "group_norm_gradient.cuh"

namespace tconv {
namespace cuda {

inline GroupNormGradientCall gradient_call_of(const GroupNormCall& call) {
  GroupNormGradientCall made{};
  made.conv = call.conv;
  made.grad = call.grad, made.value = call.value, made.weight = call.norm.weight;
  made.batch = call.batch, made.channels = call.channels, made.height = call.plane, made.width = 1;
  made.row_columns = 1, made.num_groups = call.norm.num_groups, made.eps = call.norm.eps;
  made.grad_value = call.grad_value, made.grad_weight = call.grad_weight, made.grad_bias = call.grad_bias;
  return made;
}

inline int64_t group_norm_workspace_bytes(const GroupNormCall& call) {
  if (call.grad != nullptr) return group_norm_gradient_workspace_bytes(gradient_call_of(call));
  return norm::dispatch_dtype(call.conv.dtype, [&](auto storage) -> int64_t {
    return GroupNormForward<decltype(storage)>(call).workspace_bytes();
  });
}

inline int64_t launch_group_norm(const GroupNormCall& call) {
  return norm::dispatch_dtype(call.conv.dtype, [&](auto storage) -> int64_t {
    using S = decltype(storage);
    return call.grad != nullptr ? launch_group_norm_gradient<S>(gradient_call_of(call))
                                : GroupNormForward<S>(call).run();
  });
}

}  // namespace cuda
}  // namespace tconv
