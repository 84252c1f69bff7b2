// Pattern 3 on CUDA: transposed convolution, BatchNorm, activation, max-pool, GroupNorm. Two ways:
//   2 x 2 windows on Hopper: convolution, pooled in its epilogue -> out (and moments of what was pooled)
//   -> training: BatchNorm's affine map per channel -> BatchNorm + activation + GroupNorm in place
//   otherwise: convolution -> workspace (and moments of it), unless its output was computed before -> training:
//   BatchNorm's affine map per channel -> BatchNorm + activation + max-pool -> out (and moments of it) -> GroupNorm in
//   place
// TCONV_KERNEL forces the second way by naming another kernel than Hopper's.
#include <type_traits>

#include "batch_norm_plan.cuh"
#include "conv_transpose_pooled.cuh"
#include "pool_batch_norm_activation.cuh"
#include "dtype_parts.h"

namespace tconv {
namespace cuda {
namespace {

// What the second way wants of the convolution.
constexpr Outputs kInPasses = Outputs::kSeldomWithMoments;

template <typename S>
struct ConvBatchNormPoolGroupNorm {
  norm::WorkspaceLayout layout;
  const bool pooled;  // in the convolution's epilogue
  norm::BatchNormPlan<S> batch_norm;
  norm::GroupNormPlan<S> group_norm;
  int64_t pre_norm, conv_workspace;  // [batch][out_channels][out_h][out_w], not when pooled; the convolution's scratch

  explicit ConvBatchNormPoolGroupNorm(const ConvBatchNormPoolGroupNormCall& call)
      : pooled(pools_in_epilogue(call)),
        batch_norm(call.batch_norm_pool, call.conv.layer.batch, call.conv.layer.out_channels,
                   call.conv.layer.out_h * call.conv.layer.out_w, conv_partials(call), layout),
        group_norm(pooled_shape(call), norm::PoolConfig::num_partials(pooled_shape(call).plane), layout),
        pre_norm(layout.reserve(pooled || call.conv_out != nullptr ? 0 : pre_norm_elements(call) * sizeof(S))),
        conv_workspace(layout.reserve(pooled                     ? plan_pooled(call.conv).workspace_bytes
                                      : call.conv_out != nullptr ? 0
                                                                 : conv_workspace_bytes<kInPasses>(call.conv))) {}

  static bool pools_in_epilogue(const ConvBatchNormPoolGroupNormCall& call) {
    return call.conv_out == nullptr && has_2x2_windows(call) && plan_pooled(call.conv).status == kOk;
  }

  // Are windows 2 x 2, side by side and unpadded?
  static bool has_2x2_windows(const ConvBatchNormPoolGroupNormCall& call) {
    const ConvTransposeLayer& p = call.conv.layer;
    return norm::make_pool_geometry(p.out_h, p.out_w, call.batch_norm_pool).is_2x2() &&
           call.batch_norm_pool.pooled_h == p.out_h / 2 && call.batch_norm_pool.pooled_w == p.out_w / 2;
  }

  void explain(const ConvBatchNormPoolGroupNormCall& call) const {
    Explanation* const to = call.conv.explanation;
    if (to == nullptr) return;
    if (pooled) {
      to->kernel = "hopper", to->way = "with pooling, then BatchNorm, activation and GroupNorm";
      return;
    }
    to->way = "then BatchNorm, activation, pooling and GroupNorm";
    to->rule_out("hopper with pooling", call.conv_out != nullptr ? reason::kComputedBefore
                                        : has_2x2_windows(call)  ? plan_pooled(call.conv).reason
                                                                 : reason::kOtherWindows);
  }

  static int64_t pre_norm_elements(const ConvBatchNormPoolGroupNormCall& call) {
    const ConvTransposeLayer& p = call.conv.layer;
    return p.batch * p.out_channels * p.out_h * p.out_w;
  }

  static norm::GroupNormShape pooled_shape(const ConvBatchNormPoolGroupNormCall& call) {
    const ConvTransposeLayer& p = call.conv.layer;
    return {p.batch, p.out_channels, call.batch_norm_pool.pooled_h * call.batch_norm_pool.pooled_w,
            call.group_norm.num_groups};
  }

  // The convolution's moments are fp32.
  int64_t conv_partials(const ConvBatchNormPoolGroupNormCall& call) const {
    if (pooled) return plan_pooled(call.conv).num_partials;
    if (call.conv_out != nullptr) return 0;
    return std::is_same<S, double>::value ? 0 : conv_num_partials<kInPasses>(call.conv);
  }

  int64_t run(const ConvBatchNormPoolGroupNormCall& call) const {
    const ConvCall& conv = call.conv;
    const ConvTransposeLayer& p = conv.layer;
    const auto stream = static_cast<cudaStream_t>(conv.stream);
    if (pre_norm_elements(call) == 0) return kOk;
    if (conv.workspace_bytes < layout.bytes()) return kWorkspaceTooSmall;

    explain(call);
    if (pooled) return run_pooled(call, stream);
    S* out = static_cast<S*>(conv.out);
    const S* y = static_cast<const S*>(call.conv_out);
    if (y == nullptr) {
      S* to = norm::at_offset<S>(conv.workspace, pre_norm);
      ConvOutputs outputs{to, nullptr};
      if constexpr (!std::is_same<S, double>::value) outputs.partials = batch_norm.producer_partials(conv.workspace);
      TCONV_RETURN_IF_ERROR(
          launch_conv_transpose<kInPasses>(conv, outputs, norm::at_offset<char>(conv.workspace, conv_workspace)));
      y = to;
    }
    TCONV_RETURN_IF_ERROR(batch_norm.run(y, conv.workspace, stream));
    TCONV_RETURN_IF_ERROR(norm::launch_batch_norm_activation_max_pool<S>(
        y, out, batch_norm.maps(conv.workspace), group_norm.producer_partials(conv.workspace), p.batch, p.out_channels,
        norm::make_pool_geometry(p.out_h, p.out_w, call.batch_norm_pool), stream));
    return group_norm.run(out, norm::make_group_norm_affine<S>(call.group_norm), conv.workspace, stream);
  }

  int64_t run_pooled(const ConvBatchNormPoolGroupNormCall& call, cudaStream_t stream) const {
    const ConvCall& conv = call.conv;
    S* out = static_cast<S*>(conv.out);
    ConvOutputs outputs{out, nullptr};
    if constexpr (!std::is_same<S, double>::value) outputs.partials = batch_norm.producer_partials(conv.workspace);
    TCONV_RETURN_IF_ERROR(launch_pooled(plan_pooled(conv), conv, outputs, call.batch_norm_pool.weight,
                                        norm::at_offset<char>(conv.workspace, conv_workspace)));
    TCONV_RETURN_IF_ERROR(batch_norm.run(out, conv.workspace, stream));
    const auto affine = norm::make_group_norm_affine<S>(call.group_norm);
    const auto maps = batch_norm.maps(conv.workspace);
    if (group_norm.one_block())
      return group_norm.run_transformed(out, affine, norm::BatchNormActivation<S>{maps}, stream);
    const int h = static_cast<int>(call.batch_norm_pool.pooled_h), w = static_cast<int>(call.batch_norm_pool.pooled_w);
    const norm::PoolGeometry windows_of_one{h, w, h, w, 1, 1, 1, 1, 0, 0, 1, 1};
    TCONV_RETURN_IF_ERROR(norm::launch_batch_norm_activation_max_pool<S>(
        out, out, maps, group_norm.producer_partials(conv.workspace), conv.layer.batch, conv.layer.out_channels,
        windows_of_one, stream));
    return group_norm.run(out, affine, conv.workspace, stream);
  }
};

}  // namespace
}  // namespace cuda
}  // namespace tconv

#ifdef TCONV_HOPPER_PART
TCONV_EXPORT_HOPPER_PART(tconv::cuda::hopper::launch_of_part<tconv::cuda::kInPasses, tconv::cuda::Outputs::kPooled>)
#else
// Bytes, or a negative Status.
TCONV_EXPORT int64_t tconv_cuda_workspace_bytes(const tconv::ConvBatchNormPoolGroupNormCall* call) {
  TCONV_HAND_OVER(tconv_cuda_workspace_bytes, call)
  return tconv::cuda::norm::dispatch_dtype(call->conv.dtype, [&](auto storage) {
    return tconv::cuda::ConvBatchNormPoolGroupNorm<decltype(storage)>(*call).layout.bytes();
  });
}

TCONV_EXPORT int64_t tconv_cuda_run(const tconv::ConvBatchNormPoolGroupNormCall* call) {
  TCONV_HAND_OVER(tconv_cuda_run, call)
  return tconv::cuda::norm::dispatch_dtype(call->conv.dtype, [&](auto storage) {
    return tconv::cuda::ConvBatchNormPoolGroupNorm<decltype(storage)>(*call).run(*call);
  });
}

TCONV_EXPORT const char* tconv_cuda_error_string(int64_t code) { return tconv::cuda::error_string(code); }
#endif
