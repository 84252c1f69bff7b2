// How many samples are convolved before their outputs are read again.
#pragma once

#include "../layer.h"

namespace tconv {
namespace cpu {

// As many as keep the outputs in the last-level cache, and enough of them to keep every thread busy.
inline int64_t samples_per_chunk(const ConvTransposeLayer& p, int64_t num_threads, int64_t element_size) {
  constexpr int64_t kCacheBytes = 8 << 20;
  const int64_t sample_bytes = p.out_channels * p.out_h * p.out_w * element_size;
  int64_t samples = kCacheBytes / (sample_bytes > 0 ? sample_bytes : 1);
  if (samples < num_threads && sample_bytes < (1 << 20)) samples = num_threads;
  if (samples > p.batch) samples = p.batch;
  return samples > 1 ? samples : 1;
}

}  // namespace cpu
}  // namespace tconv
