// Pattern 2 on CUDA: transposed convolution with its element-wise epilogue, then GroupNorm.
//   held on chip:  one kernel, which writes normalised outputs, where a sample's fit the shared memory of the GPU
//   in slices:     convolution -> out (and moments of it) -> GroupNorm in place, slice of the batch by slice, in L2
//   in passes:     the same of the whole batch; where one slice is all of it, that is what it is
// The first is taken where it can be, else the last: more slices than one were slower wherever measured.
// TCONV_KERNEL=held forces the first, slices the second, any other kernel's name the last.
#include <algorithm>
#include <type_traits>

#include "conv_group_norm_held_launch.cuh"
#include "conv_group_norm_passes.cuh"
#include "dtype_parts.h"

namespace tconv {
namespace cuda {
namespace {

// The first way, and behind its guard the second half of the others.
template <typename S>
struct HeldOnChip {
  norm::WorkspaceLayout layout;
  const held::CallPlan& plan;
  norm::GroupNormPlan<S> group_norm;
  int64_t conv_workspace;

  explicit HeldOnChip(const ConvGroupNormCall& call)
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
  if (shape_of(call).elements() == 0) return 0;
  if (call.conv.kernel_choice == kInSlices) return InSlices<S>(call).workspace_bytes();
  // Room for either way: the blocks of a sample may turn out not to run at once.
  int64_t bytes = InPasses<S>(call).layout.bytes();
  if constexpr (!std::is_same<S, double>::value)
    if (held::plan_call(call.conv).status == kOk) bytes = std::max(bytes, HeldOnChip<S>(call).layout.bytes());
  return bytes;
}

// Says of a way that is not the first what it is, and why it is taken. `to`: null, or where.
inline void explain(Explanation* to, const char* way, const char* why_not_held) {
  if (to == nullptr) return;
  to->way = way;
  to->rule_out("held", why_not_held);
}

template <typename S>
int64_t run(const ConvGroupNormCall& call) {
  if (shape_of(call).elements() == 0) return kOk;
  if (call.conv.workspace_bytes < workspace_bytes<S>(call)) return kWorkspaceTooSmall;
  Explanation* const to = call.conv.explanation;
  if (call.conv.kernel_choice == kInSlices) {
    explain(to, "then GroupNorm, in slices of the batch", reason::kForced);
    return InSlices<S>(call).run();
  }
  const char* why_not_held = reason::kFP64;
  if constexpr (!std::is_same<S, double>::value) {
    const held::CallPlan& plan = held::plan_call(call.conv);
    why_not_held = plan.reason;
    if (plan.status == kOk) {
      const int64_t status = HeldOnChip<S>(call).run(call);
      why_not_held = reason::kNotAtOnce;
      if (status != cudaErrorCooperativeLaunchTooLarge || call.conv.kernel_choice == kHeld) {
        if (to != nullptr) to->kernel = "held", to->way = "with GroupNorm";
        return status;
      }
    }
  }
  if (to != nullptr && call.conv.kernel_choice == kHeld) to->fail(why_not_held);
  explain(to, "then GroupNorm", why_not_held);
  return InPasses<S>(call).run(call);
}

}  // namespace
}  // namespace cuda
}  // namespace tconv

#ifdef TCONV_HOPPER_PART
TCONV_EXPORT_HOPPER_PART(tconv::cuda::held::launch_of_part)
#else
// Bytes, or a negative Status.
TCONV_EXPORT int64_t tconv_cuda_workspace_bytes(const tconv::ConvGroupNormCall* call) {
  TCONV_HAND_OVER(tconv_cuda_workspace_bytes, call)
  return tconv::cuda::norm::dispatch_dtype(
      call->conv.dtype, [&](auto storage) { return tconv::cuda::workspace_bytes<decltype(storage)>(*call); });
}

TCONV_EXPORT int64_t tconv_cuda_run(const tconv::ConvGroupNormCall* call) {
  TCONV_HAND_OVER(tconv_cuda_run, call)
  return tconv::cuda::norm::dispatch_dtype(call->conv.dtype,
                                           [&](auto storage) { return tconv::cuda::run<decltype(storage)>(*call); });
}

TCONV_EXPORT const char* tconv_cuda_error_string(int64_t code) { return tconv::cuda::error_string(code); }
#endif
