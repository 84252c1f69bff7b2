// Argument blocks of the two halves' functions, filled by the operator (binding/). All pointers live on the device
// of the call (CUDA) or on the host (CPU).
// Vectors and tensors have the call's dtype unless stated.
#pragma once

#include "explanation.h"
#ifdef TCONV_WALKS_DEPTH
#include "depth_walk.h"
#endif
#include "layer.h"

namespace tconv {

constexpr int kMaxChannelVectors = 4;

struct ConvCall {
  ConvTransposeLayer layer;
  int64_t dtype;          // DType of x, weight, bias, channel vectors, out
  int64_t math;           // MathMode
  int64_t kernel_choice;  // KernelChoice
  int64_t num_threads;    // CPU only
  const void* x;
  const void* weight;
  const void* bias;                                 // [out_channels] or null
  const void* channel_vectors[kMaxChannelVectors];  // [out_channels] each: what the epilogue adds or multiplies
  void* out;                                        // contiguous NCHW
  void* workspace;                                  // workspace_bytes, 256-byte aligned
  int64_t workspace_bytes;
  void* stream;              // CUDA only
  Explanation* explanation;  // to be filled, or null
#ifdef TCONV_WALKS_DEPTH
  DepthWalk depth;
#endif
#ifdef TCONV_READS_TENSORS
  // Outputs on which the rest of the chain is to work behind this call, from its first operand of their shape on:
  // planes of samples and channels that follow each other. No planes: a later call does. `from`: where what it works on
  // lies, and stays, or null: in `out`. CUDA only.
  struct {
    void* out;
    int64_t planes, plane;
    const void* from;
    // This call, and every other one of these outputs, joins its own as it stores them, in place of that pass. Asked
    // for a workspace, the CUDA half says at `can`, where that is not null, whether it does so with this call.
    bool at_once;
    bool* can;
  } joined;
#endif
#ifdef TCONV_KEEPS_MASK
  // A byte for each output: the answer of Epilogue::condition, or null. CUDA only. Asked for a workspace, the CUDA half
  // says at `can`, where that is not null, whether it writes them.
  struct {
    uint8_t* to;
    bool* can;
  } mask;
#endif
};

// out = (y - mean) * rstd * weight + bias with mean and biased variance over (channels/num_groups, h, w)
struct GroupNormArgs {
  int64_t num_groups;
  double eps;
  const void* weight;  // [channels] or null
  const void* bias;    // [channels] or null
};

// running = running + factor * (batch's - running), of the unbiased variance. fp32 (fp64 for fp64 calls), [channels]
// each; null: none are kept.
struct RunningStatistics {
  void* mean;
  void* var;
  double momentum;             // the factor, unless
  const int64_t* num_batches;  // this counts the batches so far, for the cumulative average: 1 / *num_batches
};

// BatchNorm2d + activation + MaxPool2d. y = activation(batch_norm(conv)), pooled over windows.
struct BatchNormPoolArgs {
  int64_t use_batch_stats;  // 1: statistics of this batch; 0: running_mean / running_var
  double eps;
  const void* weight;  // [channels] or null
  const void* bias;    // [channels] or null
  // fp32 (fp64 for fp64 calls), [channels] each.
  const void* running_mean;  // read when use_batch_stats == 0
  const void* running_var;
  void* batch_mean;           // out or null, written when use_batch_stats == 1
  void* batch_var;            // out or null, biased variance
  RunningStatistics updated;  // when use_batch_stats == 1
  int64_t pool_kernel_h, pool_kernel_w, pool_stride_h, pool_stride_w;
  int64_t pool_padding_h, pool_padding_w, pool_dilation_h, pool_dilation_w;
  int64_t pooled_h, pooled_w;  // after ceil_mode's rule; windows are clipped to the image
};

#ifdef TCONV_REDUCES_CHANNELS
// Of all channels, over the epilogue's values.
enum Extremum : int64_t { kNoExtremum = 0, kLeast = 1, kMost = 2 };

#endif
// Pattern 1: transposed convolution + element-wise epilogue.
struct ConvOnlyCall {
  ConvCall conv;
#ifdef TCONV_REDUCES_CHANNELS
  int64_t extremum;  // Extremum; if there is one conv.out is [batch][out_h][out_w], and on CUDA
#endif
};

// Pattern 2: ... + GroupNorm.  conv.out is the normalised output.
struct ConvGroupNormCall {
  ConvCall conv;
  GroupNormArgs group_norm;
};

// Pattern 3: transposed convolution + BatchNorm + activation + max-pool + GroupNorm.
// conv.out is the pooled, normalised output [batch, out_channels, pooled_h, pooled_w].
struct ConvBatchNormPoolGroupNormCall {
  ConvCall conv;
  const void* conv_out;  // null, or the convolution's output, computed before: [batch, out_channels, out_h, out_w]
  BatchNormPoolArgs batch_norm_pool;
  GroupNormArgs group_norm;
};

}  // namespace tconv
