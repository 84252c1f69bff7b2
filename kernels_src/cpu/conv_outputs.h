// Where a CPU convolution writes, and which samples it does.
#pragma once

#include "../moments.h"

namespace tconv {
namespace cpu {

// `out` and `partials` belong to sample `first_sample`. `partials`, where not null, receives the moments of the
// outputs after the epilogue, laid out [sample][num_partials][out_channels]; every entry is written.
template <typename T>
struct ConvOutputs {
  int64_t first_sample, num_samples;
  T* out;  // contiguous [num_samples, out_channels, out_h, out_w]
  MomentsF64* partials;
};

}  // namespace cpu
}  // namespace tconv
