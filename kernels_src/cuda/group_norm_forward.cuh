// GroupNorm of a tensor in memory: one kernel where a block's registers hold a group; else moments of pieces of planes
// -> one affine map for each channel of a sample -> the maps applied, so that the tensor is read twice and written
// once. Bound by memory.
#pragma once

#include <type_traits>

#include "../group_norm_call.h"
#include "batch_norm_apply.cuh"
#include "group_norm_plan.cuh"

namespace tconv {
namespace cuda {

// Behind: as batch_norm_apply.cuh has it; other than NothingBehind it is group_norm_single_block.cuh's Transform, too.
template <typename S, typename Behind = norm::NothingBehind>
class GroupNormForward {
 public:
  explicit GroupNormForward(const GroupNormCall& call, const Behind& behind = {})
      : call_(call), behind_(behind), shape_{call.batch, call.channels, call.plane, call.norm.num_groups} {
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
    if (alike && norm::GroupNormSingleBlockConfig<S>::fits(shape_)) {
      if constexpr (std::is_same_v<Behind, norm::NothingBehind>)
        return norm::launch_group_norm_single_block<S>(value, result, shape_, affine, stream);
      else
        return norm::launch_group_norm_single_block<S>(value, result, shape_, affine, stream, behind_);
    }
    auto* partials = norm::at_offset<norm::PartialOf<S>>(call_.conv.workspace, partials_);
    auto* table = norm::at_offset<norm::ChannelAffine<norm::AccOf<S>>>(call_.conv.workspace, table_);
    TCONV_RETURN_IF_ERROR(
        norm::launch_group_norm_plane_moments<S>(value, partials, shape_.batch, shape_.channels, shape_.plane, stream));
    TCONV_RETURN_IF_ERROR(norm::launch_group_norm_finalise<S>(
        partials, norm::PlaneMomentsConfig::num_partials(shape_.plane), shape_, affine, table, stream));
    // Every channel of a sample has a map of its own.
    return norm::launch_batch_norm_apply<S>(value, table, result, 1, shape_.batch * shape_.channels, shape_.plane,
                                            stream, behind_);
  }

 private:
  const GroupNormCall& call_;
  Behind behind_;
  norm::GroupNormShape shape_;
  norm::WorkspaceLayout layout_;
  int64_t partials_, table_;
};

}  // namespace cuda
}  // namespace tconv
