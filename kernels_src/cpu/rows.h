// What happens to a row of convolution sums of one channel: epilogue, then moments, while the row is in L1.
#pragma once

#include "../epilogue.h"
#include "../moments.h"
#include "vector_code.h"

namespace tconv {
namespace cpu {

// The epilogue's per-channel operands as local values, so that no store to a row can alias them.
template <typename T>
struct ChannelEpilogue {
  T bias;
  T vectors[kMaxChannelVectors];

  ChannelEpilogue(const EpilogueArgs<T>& args, int64_t channel) {
    bias = args.bias != nullptr ? args.bias[channel] : T(0);
    for (int i = 0; i < kMaxChannelVectors; ++i)
      vectors[i] = args.channel_vectors[i] != nullptr ? args.channel_vectors[i][channel] : T(0);
  }

  TCONV_INLINE T apply(T sum) const {
    EpilogueArgs<T> args;
    args.bias = &bias;
    for (int i = 0; i < kMaxChannelVectors; ++i) args.channel_vectors[i] = vectors + i;
    return apply_epilogue<T, T>(sum, args, 0);
  }
};

// out[i] = epilogue(sums[i]); out may be sums.
template <typename T>
inline void epilogue_row(Isa isa, const T* sums, T* out, int64_t count, const ChannelEpilogue<T>& shared_epilogue) {
  vectorised(isa, [=]() __attribute__((always_inline)) {
    const ChannelEpilogue<T> epilogue = shared_epilogue;
#pragma omp simd
    for (int64_t i = 0; i < count; ++i) out[i] = epilogue.apply(sums[i]);
  });
}

// Adds `count` values to `moments`. Deviations are taken from a shift near the mean, and short runs are summed
// before they enter fp64, so a mean far larger than the spread costs no accuracy.
template <typename T>
inline void add_moments(Isa isa, const T* __restrict values, int64_t count, MomentsF64& moments) {
  constexpr int64_t kRun = 512;
  for (int64_t begin = 0; begin < count; begin += kRun) {
    const int64_t run = count - begin < kRun ? count - begin : kRun;
    const T* __restrict v = values + begin;
    T sum = 0, squares = 0, shift = v[0];
    vectorised(isa, [&]() __attribute__((always_inline)) {
      for (int pass = 0; pass < 2; ++pass) {  // the second pass shifts by the run's mean
        T s = 0, s2 = 0;
        const T origin = shift;
#pragma omp simd reduction(+ : s, s2)
        for (int64_t i = 0; i < run; ++i) {
          const T d = v[i] - origin;
          s += d;
          s2 += d * d;
        }
        if (pass == 0) shift = origin + s / T(run);
        sum = s;
        squares = s2;
      }
    });
    const double mean_deviation = double(sum) / double(run);
    const double m2 = double(squares) - double(sum) * mean_deviation;
    moments.combine(double(run), double(shift) + mean_deviation, m2 < 0 ? 0 : m2);
  }
}

}  // namespace cpu
}  // namespace tconv
