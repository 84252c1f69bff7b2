// Argument block of the library of passes, filled by its operators (binding/operator_pass.cpp). A pass is an operator
// over a tensor in memory, with the element-wise steps behind it: the generator writes which ones a library has
// (generated_pass.h); the file of that name in this folder has each by itself.
#pragma once

#include "call.h"

namespace tconv {

enum class PassKind {
  kLayerNorm,    // over rows, each of a channel's own
  kSoftmax,      // over channels
  kAveragePool,  // of volumes, over windows side by side, of which each is whole
  kMaxPool,      // likewise
};

// result = steps(operator(value)); value [batch, channels, plane] and result are contiguous.
struct PassCall {
  ConvCall conv;   // dtype, workspace, stream, channel_vectors: operands of the steps
  int64_t number;  // which of the library's passes
  const void* value;
  void* result;
  int64_t batch, channels, plane;
  // LayerNorm: plane is whole rows.
  int64_t row;
  double eps;
  const void* weight;  // [row] or null
  const void* bias;    // likewise
  // Pools: of depth, height and width. Values behind the last whole window are left out.
  int64_t in[3], window[3], out[3];
};

}  // namespace tconv
