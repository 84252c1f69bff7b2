// Convolution -> out (and moments of it) -> GroupNorm in place: of the whole batch, or of slices of it whose outputs
// the second reads from L2.
#pragma once

#include <algorithm>
#include <type_traits>

#include "conv_transpose_dispatch.cuh"
#include "group_norm_plan.cuh"

namespace tconv {
namespace cuda {

inline norm::GroupNormShape shape_of(const ConvGroupNormCall& call) {
  const ConvTransposeLayer& p = call.conv.layer;
  return {p.batch, p.out_channels, p.out_h * p.out_w, call.group_norm.num_groups};
}

// The whole batch.
template <typename S>
struct InPasses {
  norm::WorkspaceLayout layout;
  norm::GroupNormPlan<S> group_norm;
  int64_t conv_workspace;

  explicit InPasses(const ConvGroupNormCall& call)
      : group_norm(shape_of(call), producer_partials(call), layout),
        conv_workspace(layout.reserve(conv_workspace_bytes<Outputs::kWithMoments>(call.conv))) {}

  // The convolution's moments are fp32.
  static int64_t producer_partials(const ConvGroupNormCall& call) {
    return std::is_same<S, double>::value ? 0 : conv_num_partials<Outputs::kWithMoments>(call.conv);
  }

  int64_t run(const ConvGroupNormCall& call) const {
    const ConvCall& conv = call.conv;
    ConvOutputs outputs{conv.out, nullptr};
    if constexpr (!std::is_same<S, double>::value) outputs.partials = group_norm.producer_partials(conv.workspace);
    TCONV_RETURN_IF_ERROR(launch_conv_transpose<Outputs::kWithMoments>(
        conv, outputs, norm::at_offset<char>(conv.workspace, conv_workspace)));
    return group_norm.run(static_cast<S*>(conv.out), norm::make_group_norm_affine<S>(call.group_norm), conv.workspace,
                          static_cast<cudaStream_t>(conv.stream));
  }
};

// A batch cut into slices whose outputs half of L2 holds, as inputs pass through it, too; of one sample at least.
template <typename S>
class InSlices {
 public:
  explicit InSlices(const ConvGroupNormCall& call) : call_(call) {
    const norm::GroupNormShape shape = shape_of(call);
    sample_outputs_ = shape.channels * shape.plane;
    int device = 0, l2_bytes = 0;
    status_ = cudaGetDevice(&device);
    if (status_ == kOk) status_ = cudaDeviceGetAttribute(&l2_bytes, cudaDevAttrL2CacheSize, device);
    const int64_t most = std::max<int64_t>(l2_bytes / 2 / (sample_outputs_ * static_cast<int64_t>(sizeof(S))), 1);
    samples_ = norm::ceil_div(shape.batch, norm::ceil_div(shape.batch, most));  // all but the last of one size
  }

  // Slices use it one after the other; the last one, which is smaller, may be cut into more tiles.
  int64_t workspace_bytes() const {
    const int64_t batch = call_.conv.layer.batch;
    return std::max(InPasses<S>(slice(0)).layout.bytes(),
                    InPasses<S>(slice((batch - 1) / samples_ * samples_)).layout.bytes());
  }

  int64_t run() const {
    TCONV_RETURN_IF_ERROR(status_);
    for (int64_t first = 0; first < call_.conv.layer.batch; first += samples_) {
      const ConvGroupNormCall part = slice(first);
      TCONV_RETURN_IF_ERROR(InPasses<S>(part).run(part));
    }
    return kOk;
  }

 private:
  ConvGroupNormCall slice(int64_t first) const {
    ConvGroupNormCall part = call_;
    ConvTransposeLayer& p = part.conv.layer;
    p.batch = std::min(samples_, p.batch - first);
    part.conv.kernel_choice = kAuto;
    if (first > 0) part.conv.explanation = nullptr;  // the first one's goes for all
    part.conv.x = static_cast<const S*>(call_.conv.x) + first * p.x_stride_n;
    part.conv.out = static_cast<S*>(call_.conv.out) + first * sample_outputs_;
    return part;
  }

  const ConvGroupNormCall& call_;
  int64_t status_, samples_, sample_outputs_;
};

}  // namespace cuda
}  // namespace tconv
