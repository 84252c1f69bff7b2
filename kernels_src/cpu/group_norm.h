// GroupNorm over planes whose moments are known.
#pragma once

#include "../call.h"
#include "affine.h"
#include "vector_code.h"

namespace tconv {
namespace cpu {

template <typename T>
inline void affine_in_place(Isa isa, T* __restrict values, int64_t count, const Affine<T>& shared_affine) {
  vectorised<T>(isa, [=]() __attribute__((always_inline)) {
    const Affine<T> affine = shared_affine;
#pragma omp simd
    for (int64_t i = 0; i < count; ++i) values[i] = affine.apply(values[i]);
  });
}

// Normalises the `channels` planes of one group, the first being channel `first_channel` of its sample.
template <typename T>
inline void group_norm_planes(Isa isa, const GroupNormArgs& args, const MomentsF64& moments, int64_t first_channel,
                              int64_t channels, int64_t plane, T* planes) {
  for (int64_t c = 0; c < channels; ++c) {
    const Affine<T> affine =
        make_affine(moments.mean, moments.m2 / moments.count, args.eps, static_cast<const T*>(args.weight),
                    static_cast<const T*>(args.bias), first_channel + c);
    affine_in_place(isa, planes + c * plane, plane, affine);
  }
}

}  // namespace cpu
}  // namespace tconv
