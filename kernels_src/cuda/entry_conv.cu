// Exported functions of pattern 1: transposed convolution with an element-wise epilogue.
#ifdef TCONV_SAMPLES_INPUTS
#define TCONV_INPUT_SCALE_FROM_DEVICE  // fp16_containers.cuh
#endif
#include "conv_transpose.cuh"
#include "conv_transpose_dispatch.cuh"
#include "dtype_parts.h"
#ifdef TCONV_REDUCES_CHANNELS
#include "channel_extremum.cuh"
#endif
#ifdef TCONV_READS_TENSORS
#include "join_tensors.cuh"
#endif
#ifdef TCONV_JOINS_QUADS
#include "join_quads.cuh"
#endif

namespace tconv {
namespace cuda {
constexpr auto kOutputs = Outputs::kAlone;
}  // namespace cuda
}  // namespace tconv

#ifdef TCONV_HOPPER_PART
TCONV_EXPORT_HOPPER_PART(tconv::cuda::hopper::launch_of_part<tconv::cuda::kOutputs>)
#else
TCONV_EXPORT int64_t tconv_cuda_workspace_bytes(const tconv::ConvOnlyCall* call) {
  TCONV_HAND_OVER(tconv_cuda_workspace_bytes, call)
#ifdef TCONV_JOINS_QUADS
  if (call->conv.joined.can != nullptr)
    *call->conv.joined.can = tconv::cuda::joins_quads<tconv::cuda::kOutputs>(call->conv);
#endif
#ifdef TCONV_KEEPS_MASK
  if (call->conv.mask.can != nullptr) *call->conv.mask.can = tconv::cuda::keeps_mask<tconv::cuda::kOutputs>(call->conv);
#endif
#ifdef TCONV_REDUCES_CHANNELS
  if (call->extremum != tconv::kNoExtremum) return tconv::cuda::extremum_workspace_bytes(call->conv);
#endif
  return tconv::cuda::conv_workspace_bytes<tconv::cuda::kOutputs>(call->conv);
}

TCONV_EXPORT int64_t tconv_cuda_run(const tconv::ConvOnlyCall* call) {
  TCONV_HAND_OVER(tconv_cuda_run, call)
#ifdef TCONV_REDUCES_CHANNELS
  if (call->extremum != tconv::kNoExtremum) return tconv::cuda::launch_extremum(call->conv, call->extremum);
#endif
  const tconv::ConvCall& conv = call->conv;
  if (conv.workspace_bytes < tconv::cuda::conv_workspace_bytes<tconv::cuda::kOutputs>(conv))
    return tconv::kWorkspaceTooSmall;
#ifdef TCONV_READS_TENSORS
#ifdef TCONV_JOINS_QUADS
  return tconv::cuda::launch_joined<tconv::cuda::kOutputs>(conv);
#else
  const int64_t status =
      tconv::cuda::launch_conv_transpose<tconv::cuda::kOutputs>(conv, {conv.out, nullptr}, conv.workspace);
  return status != tconv::kOk ? status : tconv::cuda::launch_join(conv);
#endif
#else
  return tconv::cuda::launch_conv_transpose<tconv::cuda::kOutputs>(conv, {conv.out, nullptr}, conv.workspace);
#endif
}

TCONV_EXPORT const char* tconv_cuda_error_string(int64_t code) { return tconv::cuda::error_string(code); }
#endif
