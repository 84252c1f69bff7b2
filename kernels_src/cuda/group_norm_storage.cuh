// How normalisation kernels see a tensor's dtype: accumulation type, partial moments, 16-byte vectors.
#pragma once

#include <cstring>

#include "../moments.h"
#include "check.h"
#include "storage.cuh"

namespace tconv {
namespace cuda {
namespace norm {

template <typename S>
using AccOf = typename StorageTraits<S>::Acc;

// fp64 statistics need fp64 partials; every other dtype has fp32 ones, combined in fp64.
template <typename S>
struct PartialTraits {
  using type = Moments;
};
template <>
struct PartialTraits<double> {
  using type = MomentsF64;
};
template <typename S>
using PartialOf = typename PartialTraits<S>::type;

// Named intrinsics, because PyTorch's build flags remove the implicit half conversions.
__device__ __forceinline__ float to_acc(float v) { return v; }
__device__ __forceinline__ double to_acc(double v) { return v; }
__device__ __forceinline__ float to_acc(__half v) { return __half2float(v); }
__device__ __forceinline__ float to_acc(__nv_bfloat16 v) { return __bfloat162float(v); }

// An affine parameter that may be absent.
template <typename S>
__device__ __forceinline__ double parameter_or(const S* values, int64_t index, double absent) {
  return values != nullptr ? static_cast<double>(to_acc(values[index])) : absent;
}

template <typename S, int kBytes>
struct alignas(kBytes) Vector {
  static constexpr int kElements = kBytes / static_cast<int>(sizeof(S));
  S values[kElements];
};

template <int kBytes>
struct RawVector;
template <>
struct RawVector<16> {
  using type = uint4;
};
template <>
struct RawVector<8> {
  using type = uint2;
};
template <>
struct RawVector<4> {
  using type = unsigned;
};

// Data that is touched once: evict it from the caches first.
template <typename S, int kBytes>
__device__ __forceinline__ Vector<S, kBytes> load_streaming(const S* address) {
  using Raw = typename RawVector<kBytes>::type;
  const Raw raw = __ldcs(reinterpret_cast<const Raw*>(address));
  Vector<S, kBytes> v;
  memcpy(&v, &raw, kBytes);
  return v;
}

template <typename S, int kBytes>
__device__ __forceinline__ void store_streaming(S* address, const Vector<S, kBytes>& v) {
  using Raw = typename RawVector<kBytes>::type;
  Raw raw;
  memcpy(&raw, &v, kBytes);
  __stcs(reinterpret_cast<Raw*>(address), raw);
}

// Elements between the 16-byte boundary at or below `address` and `address`.
template <typename S>
TCONV_HD int elements_past_boundary(const S* address) {
  return static_cast<int>(reinterpret_cast<uintptr_t>(address) % 16 / sizeof(S));
}

inline int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Calls f(S{}) with the storage type of `dtype`.
template <typename F>
int64_t dispatch_dtype(int64_t dtype, F f) {
  switch (dtype) {
#ifndef TCONV_WITHOUT_FP32
    case kFloat32: return f(float{});
    case kFloat64: return f(double{});
#endif
#ifndef TCONV_WITHOUT_FP16
    case kFloat16: return f(__half{});
#endif
#ifndef TCONV_WITHOUT_BF16
    case kBFloat16: return f(__nv_bfloat16{});
#endif
    default: return kUnsupportedDType;
  }
}

// Launches a one-dimensional grid; nothing where there are no blocks.
template <typename... Params, typename... Args>
int64_t launch(void (*kernel)(Params...), int64_t blocks, int threads, cudaStream_t stream, const Args&... args) {
  constexpr int64_t kMaxGridX = 0x7fffffff;
  if (blocks == 0) return kOk;
  if (blocks > kMaxGridX) return cudaErrorInvalidConfiguration;
  return launch_kernel(kernel, dim3(static_cast<unsigned>(blocks)), dim3(threads), 0, stream,
                       static_cast<Params>(args)...);
}

}  // namespace norm
}  // namespace cuda
}  // namespace tconv
