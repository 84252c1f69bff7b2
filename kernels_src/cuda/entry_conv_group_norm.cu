// Pattern 2 on CUDA: transposed convolution with its element-wise epilogue, then GroupNorm.
//   convolution -> out (and moments of it) -> GroupNorm in place
#include <type_traits>

#include "conv_transpose_dispatch.cuh"
#include "group_norm_plan.cuh"

namespace tconv {
namespace cuda {
namespace {

template <typename S>
struct ConvGroupNorm {
  norm::WorkspaceLayout layout;
  norm::GroupNormPlan<S> group_norm;
  int64_t conv_workspace;

  explicit ConvGroupNorm(const ConvGroupNormCall& call)
      : group_norm(shape(call), producer_partials(call), layout),
        conv_workspace(layout.reserve(conv_workspace_bytes<true>(call.conv))) {}

  static norm::GroupNormShape shape(const ConvGroupNormCall& call) {
    const ConvTransposeProblem& p = call.conv.problem;
    return {p.batch, p.out_channels, p.out_h * p.out_w, call.group_norm.num_groups};
  }

  // The convolution's moments are fp32.
  static int64_t producer_partials(const ConvGroupNormCall& call) {
    return std::is_same<S, double>::value ? 0 : conv_num_partials(call.conv);
  }

  int64_t run(const ConvGroupNormCall& call) const {
    const ConvCall& conv = call.conv;
    if (shape(call).elements() == 0) return kOk;
    if (conv.workspace_bytes < layout.bytes()) return kWorkspaceTooSmall;
    ConvOutputs outputs{conv.out, nullptr};
    if constexpr (!std::is_same<S, double>::value) outputs.partials = group_norm.producer_partials(conv.workspace);
    TCONV_RETURN_IF_ERROR(
        launch_conv_transpose<true>(conv, outputs, norm::at_offset<char>(conv.workspace, conv_workspace)));
    return group_norm.run(static_cast<S*>(conv.out), norm::make_group_norm_affine<S>(call.group_norm), conv.workspace,
                          static_cast<cudaStream_t>(conv.stream));
  }
};

}  // namespace
}  // namespace cuda
}  // namespace tconv

// Bytes, or a negative Status.
TCONV_EXPORT int64_t tconv_cuda_workspace_bytes(const tconv::ConvGroupNormCall* call) {
  return tconv::cuda::norm::dispatch_dtype(call->conv.dtype, [&](auto storage) {
    return tconv::cuda::ConvGroupNorm<decltype(storage)>(*call).layout.bytes();
  });
}

TCONV_EXPORT int64_t tconv_cuda_run(const tconv::ConvGroupNormCall* call) {
  return tconv::cuda::norm::dispatch_dtype(call->conv.dtype, [&](auto storage) {
    return tconv::cuda::ConvGroupNorm<decltype(storage)>(*call).run(*call);
  });
}

TCONV_EXPORT const char* tconv_cuda_error_string(int64_t code) { return tconv::cuda::error_string(code); }
