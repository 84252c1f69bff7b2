// Pattern 2 on CUDA: transposed convolution with its element-wise epilogue, then GroupNorm.
//   where a sample's outputs fit the shared memory of the GPU: one kernel, which writes normalised outputs
//   otherwise: convolution -> out (and moments of it) -> GroupNorm in place
// TCONV_KERNEL=held forces the first way, any other kernel's name the second.
#include <algorithm>
#include <type_traits>

#include "conv_group_norm_held_launch.cuh"
#include "conv_transpose_dispatch.cuh"
#include "group_norm_plan.cuh"

namespace tconv {
namespace cuda {
namespace {

norm::GroupNormShape shape_of(const ConvGroupNormCall& call) {
  const ConvTransposeProblem& p = call.conv.problem;
  return {p.batch, p.out_channels, p.out_h * p.out_w, call.group_norm.num_groups};
}

// The second way.
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
    TCONV_RETURN_IF_ERROR(launch_conv_transpose<Outputs::kWithMoments>(conv, outputs, norm::at_offset<char>(conv.workspace, conv_workspace)));
    return group_norm.run(static_cast<S*>(conv.out), norm::make_group_norm_affine<S>(call.group_norm), conv.workspace,
                          static_cast<cudaStream_t>(conv.stream));
  }
};

// The first way, and behind its guard the second half of the second.
template <typename S>
struct Held {
  norm::WorkspaceLayout layout;
  const held::CallPlan& plan;
  norm::GroupNormPlan<S> group_norm;
  int64_t conv_workspace;

  explicit Held(const ConvGroupNormCall& call)
      : plan(held::plan_call(call.conv)),
        group_norm(shape_of(call), 1, layout, false),
        conv_workspace(layout.reserve(held::workspace_bytes(plan, call))) {}

  int64_t run(const ConvGroupNormCall& call) const {
    const ConvCall& conv = call.conv;
    const int* guard = nullptr;
    TCONV_RETURN_IF_ERROR(held::launch<S>(plan, call, group_norm.producer_partials(conv.workspace),
                                          norm::at_offset<char>(conv.workspace, conv_workspace), &guard));
    if (guard == nullptr) return kOk;
    return group_norm.run(static_cast<S*>(conv.out), norm::make_group_norm_affine<S>(call.group_norm), conv.workspace,
                          static_cast<cudaStream_t>(conv.stream), guard);
  }
};

template <typename S>
int64_t workspace_bytes(const ConvGroupNormCall& call) {
  // Room for either way: the blocks of a sample may turn out not to run at once.
  int64_t bytes = InPasses<S>(call).layout.bytes();
  if constexpr (!std::is_same<S, double>::value)
    if (held::plan_call(call.conv).status == kOk) bytes = std::max(bytes, Held<S>(call).layout.bytes());
  return bytes;
}

template <typename S>
int64_t run(const ConvGroupNormCall& call) {
  if (shape_of(call).elements() == 0) return kOk;
  if (call.conv.workspace_bytes < workspace_bytes<S>(call)) return kWorkspaceTooSmall;
  if constexpr (!std::is_same<S, double>::value) {
    if (held::plan_call(call.conv).status == kOk) {
      const int64_t status = Held<S>(call).run(call);
      if (status != cudaErrorCooperativeLaunchTooLarge || call.conv.kernel_choice == kHeld) return status;
    }
  }
  return InPasses<S>(call).run(call);
}

}  // namespace
}  // namespace cuda
}  // namespace tconv

// Bytes, or a negative Status.
TCONV_EXPORT int64_t tconv_cuda_workspace_bytes(const tconv::ConvGroupNormCall* call) {
  return tconv::cuda::norm::dispatch_dtype(call->conv.dtype, [&](auto storage) {
    return tconv::cuda::workspace_bytes<decltype(storage)>(*call);
  });
}

TCONV_EXPORT int64_t tconv_cuda_run(const tconv::ConvGroupNormCall* call) {
  return tconv::cuda::norm::dispatch_dtype(call->conv.dtype, [&](auto storage) {
    return tconv::cuda::run<decltype(storage)>(*call);
  });
}

TCONV_EXPORT const char* tconv_cuda_error_string(int64_t code) { return tconv::cuda::error_string(code); }
