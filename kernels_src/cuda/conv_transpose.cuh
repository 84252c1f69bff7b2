// The one door to the transposed convolution on CUDA: picks a kernel and launches it.
#pragma once

#include <cuda_runtime.h>

#include "../epilogue.h"
#include "../moments.h"
#include "conv_transpose_hopper_types.h"

namespace tconv {
namespace cuda {

// kOutputs below: what may be wanted of this call? The same in every question about a call, and in its launch: no
// kernel is compiled that the answer rules out.
using tconv::hopper::Outputs;

// Where a convolution writes. `out` is contiguous NCHW of the call's dtype, already through the epilogue.
// `partials`, where not null, receives per-channel moments of those outputs (in fp32, before rounding to the
// call's dtype), laid out [batch][conv_num_partials(call)][out_channels]; every entry is written.
struct ConvOutputs {
  void* out;
  Moments* partials;
#ifdef TCONV_REDUCES_CHANNELS
  int64_t extremum = kNoExtremum;  // where there is one, `out` is what conv_transpose_hopper_extremum.cuh stores
#endif
};

// Tiles per sample of the kernel that launch_conv_transpose will pick for this call.
template <Outputs kOutputs>
int64_t conv_num_partials(const ConvCall& call);

// Scratch bytes (transformed weights ...) that launch_conv_transpose needs at `workspace`.
template <Outputs kOutputs>
int64_t conv_workspace_bytes(const ConvCall& call);

// Enqueues the convolution on call.stream; ignores call.out and call.workspace. Returns a Status or cudaError_t.
template <Outputs kOutputs>
int64_t launch_conv_transpose(const ConvCall& call, const ConvOutputs& outputs, void* workspace);

}  // namespace cuda
}  // namespace tconv
