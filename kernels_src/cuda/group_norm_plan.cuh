// Which kernels normalise a tensor by groups, and what scratch memory they need.
//   a group fits one block's registers: one kernel
//   otherwise: partial moments (from the tensor's producer, or measured) -> finalise -> apply in place
// The choice depends on the shape and dtype alone, so a result does not depend on the machine.
#pragma once

#include "../call.h"
#include "group_norm_apply.cuh"
#include "group_norm_plane_moments.cuh"
#include "group_norm_single_block.cuh"

namespace tconv {
namespace cuda {
namespace norm {

// Hands out 256-byte aligned offsets; the same walk gives the size and the addresses.
class WorkspaceLayout {
 public:
  int64_t reserve(int64_t bytes) {
    const int64_t offset = bytes_;
    bytes_ += ceil_div(bytes, 256) * 256;
    return offset;
  }
  int64_t bytes() const { return bytes_; }

 private:
  int64_t bytes_ = 0;
};

template <typename T>
T* at_offset(void* workspace, int64_t offset) {
  return reinterpret_cast<T*>(static_cast<char*>(workspace) + offset);
}

template <typename S>
class GroupNormPlan {
 public:
  // producer_partials: moments per plane that the tensor's producer can write, 0 where it has none exact enough.
  // may_use_one_block: false where run is given `only_if`.
  GroupNormPlan(const GroupNormShape& shape, int64_t producer_partials, WorkspaceLayout& layout,
                bool may_use_one_block = true)
      : shape_(shape),
        measure_(producer_partials == 0),
        one_block_(may_use_one_block && GroupNormSingleBlockConfig<S>::fits(shape)) {
    if (one_block()) return;
    num_partials_ = measure_ ? PlaneMomentsConfig::num_partials(shape.plane) : producer_partials;
    partials_ = layout.reserve(shape.batch * num_partials_ * shape.channels * sizeof(PartialOf<S>));
    table_ = layout.reserve(shape.batch * shape.channels * sizeof(ChannelAffine<AccOf<S>>));
  }

  // Where the producer of the tensor must write its partials; null where none are wanted.
  PartialOf<S>* producer_partials(void* workspace) const {
    return one_block() || measure_ ? nullptr : at_offset<PartialOf<S>>(workspace, partials_);
  }

  // Normalises data [batch][channels][plane] in place; with only_if, where that holds no 0.
  int64_t run(S* data, const GroupNormAffine<S>& affine, void* workspace, cudaStream_t stream,
              const int* only_if = nullptr) const {
    if (one_block()) return launch_group_norm_single_block<S>(data, data, shape_, affine, stream);
    auto* partials = at_offset<PartialOf<S>>(workspace, partials_);
    auto* table = at_offset<ChannelAffine<AccOf<S>>>(workspace, table_);
    if (measure_)
      TCONV_RETURN_IF_ERROR(
          launch_group_norm_plane_moments<S>(data, partials, shape_.batch, shape_.channels, shape_.plane, stream));
    TCONV_RETURN_IF_ERROR(
        launch_group_norm_finalise<S>(partials, num_partials_, shape_, affine, table, stream, only_if));
    return launch_group_norm_apply<S>(data, table, shape_.elements(), shape_.plane, stream, only_if);
  }

  // Does one block hold a group? Then run_transformed may be called instead of run.
  bool one_block() const { return one_block_; }

  // Normalises transform(data) in place.
  template <typename Transform>
  int64_t run_transformed(S* data, const GroupNormAffine<S>& affine, const Transform& transform,
                          cudaStream_t stream) const {
    return launch_group_norm_single_block<S>(data, data, shape_, affine, stream, transform);
  }

 private:
  GroupNormShape shape_;
  bool measure_, one_block_;
  int64_t num_partials_ = 0, partials_ = 0, table_ = 0;
};

template <typename S>
GroupNormAffine<S> make_group_norm_affine(const GroupNormArgs& args) {
  return {static_cast<const S*>(args.weight), static_cast<const S*>(args.bias), args.eps};
}

}  // namespace norm
}  // namespace cuda
}  // namespace tconv
