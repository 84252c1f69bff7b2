// GroupNorm of a tensor in memory, and its gradients: one kernel where a block's registers hold a group; else moments
// of pieces of planes -> one affine map for each channel of a sample -> the maps applied, so that the tensor is read
// twice and written once. Bound by memory.
#pragma once

#include "../group_norm_call.h"
#include "batch_norm_apply.cuh"
#include "group_norm_gradient.cuh"
#include "group_norm_plan.cuh"

namespace tconv {
namespace cuda {

template <typename S>
class GroupNormForward {
 public:
  explicit GroupNormForward(const GroupNormCall& call)
      : call_(call), shape_{call.batch, call.channels, call.plane, call.norm.num_groups} {
    const int64_t pieces = norm::PlaneMomentsConfig::num_partials(shape_.plane);
    partials_ = layout_.reserve(shape_.batch * pieces * shape_.channels * sizeof(norm::PartialOf<S>));
    table_ = layout_.reserve(shape_.batch * shape_.channels * sizeof(norm::ChannelAffine<norm::AccOf<S>>));
  }

  int64_t workspace_bytes() const { return layout_.bytes(); }

  int64_t run() const {
    const auto stream = static_cast<cudaStream_t>(call_.conv.stream);
    const auto* value = static_cast<const S*>(call_.value);
    auto* result = static_cast<S*>(call_.result);
    const norm::GroupNormAffine<S> affine = norm::make_group_norm_affine<S>(call_.norm);
    const bool alike = norm::elements_past_boundary(value) == norm::elements_past_boundary(result);
    if (alike && norm::GroupNormSingleBlockConfig<S>::fits(shape_))
      return norm::launch_group_norm_single_block<S>(value, result, shape_, affine, stream);
    auto* partials = norm::at_offset<norm::PartialOf<S>>(call_.conv.workspace, partials_);
    auto* table = norm::at_offset<norm::ChannelAffine<norm::AccOf<S>>>(call_.conv.workspace, table_);
    TCONV_RETURN_IF_ERROR(
        norm::launch_group_norm_plane_moments<S>(value, partials, shape_.batch, shape_.channels, shape_.plane, stream));
    TCONV_RETURN_IF_ERROR(norm::launch_group_norm_finalise<S>(
        partials, norm::PlaneMomentsConfig::num_partials(shape_.plane), shape_, affine, table, stream));
    // Every channel of a sample has a map of its own.
    return norm::launch_batch_norm_apply<S>(value, table, result, 1, shape_.batch * shape_.channels, shape_.plane,
                                            stream);
  }

 private:
  const GroupNormCall& call_;
  norm::GroupNormShape shape_;
  norm::WorkspaceLayout layout_;
  int64_t partials_, table_;
};

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
