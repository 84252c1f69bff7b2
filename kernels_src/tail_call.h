// Argument block of the library of tails, filled by its operators (binding/operator_tail.cpp). A tail is an operator
// over a tensor in memory, with the element-wise steps behind it: the generator writes which ones a library has
// (generated_tail.h); the file of that name in this folder has each by itself.
#pragma once

#include "call.h"

namespace tconv {

enum class TailKind {
  kLayerNorm,     // over rows, each of a channel's own
  kSoftmax,       // over channels
  kPlaneSoftmax,  // over the positions of a channel
  kAveragePool,   // of volumes, over windows side by side, of which each is whole
  kMaxPool,       // likewise
  kGroupNorm,
  kBatchNorm,  // by a batch's statistics
#ifdef TCONV_CENTRED_TAILS
  kCentredBatchNorm,  // whose result has the mean of each channel of a sample taken away
#endif
};

// What is called, with the number of a tail of this kind, or else nothing is computed.
enum class TailOperator {
  kLayerNorm,
  kSoftmax,
  kPlaneSoftmax,
  kPool,
  kGroupNorm,
  kBatchNorm,
#ifdef TCONV_CENTRED_TAILS
  kCentredBatchNorm,
#endif
};

// Registers hold so many channels of a position.
constexpr int64_t kMostSoftmaxChannels = 256;

// Do registers hold a row of so many values, of `bytes` each? aligned: value and result, by 16 bytes.
inline bool row_norm_in_vectors(int64_t row, int64_t bytes, bool aligned) { return aligned && row * bytes % 16 == 0; }
inline bool row_norm_fits(int64_t row, int64_t bytes, bool aligned) {
  return row >= 1 && row <= (row_norm_in_vectors(row, bytes, aligned) ? 1024 : 256);
}

// result = steps(operator(value)); value [batch, channels, plane] and result are contiguous.
struct TailCall {
  ConvCall conv;   // dtype, workspace, stream, channel_vectors: operands of the steps
  int64_t number;  // which of the library's tails
  TailOperator asked;
  const void* value;
  void* result;
  int64_t batch, channels, plane;
  // LayerNorm: plane is whole rows.
  int64_t row;
  double eps;
  const void* weight;  // [row], of the other norms [channels], or null
  const void* bias;    // likewise
  // Pools: of depth, height and width. Values behind the last whole window are left out.
  int64_t in[3], window[3], out[3];
  int64_t num_groups;         // of GroupNorm
  RunningStatistics updated;  // of BatchNorm
  // Of GroupNorm and BatchNorm, whose gradients read what forward leaves: the map of each channel of a sample, or of
  // each channel, four fp32 values.
  void* maps;
};

// Of a call that computes nothing, and why.
inline int64_t unsupported_tail(const TailCall& call, const char* why) {
  if (call.conv.explanation != nullptr) call.conv.explanation->fail(why);
  return kUnsupportedKernel;
}

}  // namespace tconv
