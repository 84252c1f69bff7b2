// What happens to a row of convolution sums of one channel: epilogue, then moments, while the row is in L1.
#pragma once

#include "vector_code.h"  // first
#include "vector_math.h"  // before elementwise.h

#include "../epilogue.h"
#include "../moments.h"

namespace tconv {
namespace cpu {

// The epilogue's per-channel operands as local values, so that no store to a row can alias them.
template <typename T>
struct ChannelEpilogue {
  T bias;
  T vectors[kMaxChannelVectors];
#ifdef TCONV_READS_TENSORS
  const T* tensors[kMaxChannelVectors];  // those of them that have the output's shape
#endif

  ChannelEpilogue(const EpilogueArgs<T>& args, int64_t channel) {
    bias = args.bias != nullptr ? args.bias[channel] : T(0);
    for (int i = 0; i < kMaxChannelVectors; ++i)
      vectors[i] = args.channel_vectors[i] != nullptr ? args.channel_vectors[i][channel] : T(0);
#ifdef TCONV_READS_TENSORS
    for (int i = 0; i < kMaxChannelVectors; ++i) tensors[i] = args.channel_vectors[i];
#endif
  }

  TCONV_INLINE T apply(T sum) const {
    EpilogueArgs<T> args;
    args.bias = &bias;
    for (int i = 0; i < kMaxChannelVectors; ++i) args.channel_vectors[i] = vectors + i;
    return apply_epilogue<T, T>(sum, args, 0);
  }
#ifdef TCONV_READS_TENSORS

  // The rest of the chain, from its first read of a tensor on: of a value that goes to place `at` of the output.
  TCONV_INLINE T join(T v, int64_t at) const {
    EpilogueArgs<T> args;
    for (int i = 0; i < kMaxChannelVectors; ++i) args.channel_vectors[i] = vectors + i;
    return Epilogue::join<T, T>(v, args, 0, tensors, at);
  }
#endif
};

// out[i] = epilogue(sums[i]); out may be sums.
template <typename T>
inline void epilogue_row(Isa isa, const T* sums, T* out, int64_t count, const ChannelEpilogue<T>& shared_epilogue) {
  vectorised<T>(isa, [=]() __attribute__((always_inline)) {
    const ChannelEpilogue<T> epilogue = shared_epilogue;
#pragma omp simd
    for (int64_t i = 0; i < count; ++i) out[i] = epilogue.apply(sums[i]);
  });
}
#ifdef TCONV_READS_TENSORS

// The rest of the chain for outputs that lie in their places, `step` apart, the first at place `at` of the output.
template <typename T>
inline void join_row(Isa isa, T* out, int64_t at, int64_t step, int64_t count,
                     const ChannelEpilogue<T>& shared_epilogue) {
  if (!Epilogue::reads_any()) return;
  vectorised<T>(isa, [=]() __attribute__((always_inline)) {
    const ChannelEpilogue<T> epilogue = shared_epilogue;
#pragma omp simd
    for (int64_t i = 0; i < count; ++i) out[i * step] = epilogue.join(out[i * step], at + i * step);
  });
}
#endif

template <typename T>
struct DeviationSums {
  T sum, squares;
};

// Sums of (v - origin) and (v - origin)^2, in four independent streams to hide the latency of additions.
template <typename T>
inline DeviationSums<T> deviation_sums(Isa isa, const T* v, int64_t count, T origin) {
  DeviationSums<T> total;
  vectorised<T>(isa, [=, &total]() __attribute__((always_inline)) {
    const int64_t quarter = count / 4;
    const T *va = v, *vb = v + quarter, *vc = vb + quarter, *vd = vc + quarter;
    T sa = 0, sb = 0, sc = 0, sd = 0, qa = 0, qb = 0, qc = 0, qd = 0;
#pragma omp simd reduction(+ : sa, sb, sc, sd, qa, qb, qc, qd)
    for (int64_t i = 0; i < quarter; ++i) {
      const T a = va[i] - origin, b = vb[i] - origin, c = vc[i] - origin, d = vd[i] - origin;
      sa += a, sb += b, sc += c, sd += d;
      qa += a * a, qb += b * b, qc += c * c, qd += d * d;
    }
    for (int64_t i = 4 * quarter; i < count; ++i) {
      const T a = v[i] - origin;
      sa += a;
      qa += a * a;
    }
    total.sum = (sa + sb) + (sc + sd);
    total.squares = (qa + qb) + (qc + qd);
  });
  return total;
}

// Adds `count` values to `moments`. Deviations are taken from the mean so far, and short runs are summed before they
// enter fp64, so a mean far larger than the spread costs no accuracy.
template <typename T>
inline void add_moments(Isa isa, const T* values, int64_t count, MomentsF64& moments) {
  constexpr int64_t kRun = 1024;
  for (int64_t begin = 0; begin < count; begin += kRun) {
    const int64_t run = count - begin < kRun ? count - begin : kRun;
    const T* v = values + begin;
    T origin = moments.count > 0 ? T(moments.mean) : v[0];
    DeviationSums<T> sums = deviation_sums(isa, v, run, origin);
    // Where the origin was far from this run's mean the difference below would cancel: once more from a better one.
    if (!(sums.sum * sums.sum <= T(0.75) * T(run) * sums.squares)) {
      origin += sums.sum / T(run);
      sums = deviation_sums(isa, v, run, origin);
    }
    const double deviation = double(sums.sum) / double(run);
    const double m2 = double(sums.squares) - double(sums.sum) * deviation;
    moments.combine(double(run), double(origin) + deviation, m2 < 0 ? 0 : m2);
  }
}

}  // namespace cpu
}  // namespace tconv
