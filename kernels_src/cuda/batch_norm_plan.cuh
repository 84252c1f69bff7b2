// Which kernels give BatchNorm its affine map per channel, and what scratch memory they need.
//   batch statistics: partial moments (from the convolution, or measured) -> finalise
//   running statistics: none, the kernel that applies the maps works them out
#pragma once

#include "batch_norm_maps.cuh"
#include "group_norm_plan.cuh"

namespace tconv {
namespace cuda {
namespace norm {

template <typename S>
class BatchNormPlan {
 public:
  using Acc = AccOf<S>;

  // producer_partials: moments per plane that the tensor's producer can write, 0 where it has none exact enough.
  BatchNormPlan(const BatchNormPoolArgs& args, int64_t batch, int64_t channels, int64_t plane,
                int64_t producer_partials, WorkspaceLayout& layout)
      : args_(args), batch_(batch), channels_(channels), plane_(plane), measure_(producer_partials == 0) {
    if (!args.use_batch_stats) return;
    table_ = layout.reserve(channels * sizeof(ChannelAffine<Acc>));
    num_partials_ = measure_ ? PlaneMomentsConfig::num_partials(plane) : producer_partials;
    partials_ = layout.reserve(batch * num_partials_ * channels * sizeof(PartialOf<S>));
  }

  // Where the producer of the tensor must write its partials; null where none are wanted.
  PartialOf<S>* producer_partials(void* workspace) const {
    return !args_.use_batch_stats || measure_ ? nullptr : at_offset<PartialOf<S>>(workspace, partials_);
  }

  // What the kernel that follows `run` applies.
  BatchNormMaps<S> maps(void* workspace) const {
    return {args_.use_batch_stats ? table(workspace) : nullptr, static_cast<const Acc*>(args_.running_mean),
            static_cast<const Acc*>(args_.running_var), affine()};
  }

  // Training mode: makes the maps of data [batch][channels][plane], and args.batch_mean / batch_var.
  int64_t run(const S* data, void* workspace, cudaStream_t stream) const {
    if (!args_.use_batch_stats) return kOk;
    auto* partials = at_offset<PartialOf<S>>(workspace, partials_);
    if (measure_)
      TCONV_RETURN_IF_ERROR(launch_group_norm_plane_moments<S>(data, partials, batch_, channels_, plane_, stream));
    return launch_batch_norm_finalise<S>(partials, batch_ * num_partials_, channels_, affine(), table(workspace),
                                         static_cast<Acc*>(args_.batch_mean), static_cast<Acc*>(args_.batch_var),
                                         args_.updated, stream);
  }

 private:
  ChannelAffine<Acc>* table(void* workspace) const { return at_offset<ChannelAffine<Acc>>(workspace, table_); }

  BatchNormAffine<S> affine() const {
    return {static_cast<const S*>(args_.weight), static_cast<const S*>(args_.bias), args_.eps};
  }

  BatchNormPoolArgs args_;
  int64_t batch_, channels_, plane_;
  bool measure_;
  int64_t num_partials_ = 0, partials_ = 0, table_ = 0;
};

}  // namespace norm
}  // namespace cuda
}  // namespace tconv
