// What the kernels of GroupNorm's gradients share. With n = (value - mean) * rstd over a group,
//
//   grad_value = rstd * (w*g - mean(w*g) - n * mean(w*g*n)),   grad_weight = sum(g*n),   grad_bias = sum(g)
//
// (aten/src/ATen/native/group_norm.cpp in PyTorch). Both means follow from a channel's sums of g and of g times the
// value's deviation, so that value and g are read twice: for the sums, and for the gradient. What is normalised may be
// a function of what is stored (Inner), which is computed wherever it is read; the gradient then is the stored value's.
#pragma once

#include "../group_norm_gradient_call.h"
#include "check.h"
#include "fast_divisor.h"
#include "gradient_chain.cuh"
#ifdef TCONV_GRADIENT_CHAINS
#include "overlapped_launch.cuh"
#endif
#include "row_writer.cuh"
#include "storage.cuh"

namespace tconv {
namespace cuda {

struct GroupNormGradientConfig {
  static constexpr int kThreads = 256;
  static constexpr int kMinBlocks = 2;  // of an SM; without it the compiler spills some chains for four
  static constexpr int kVector = static_cast<int>(kRowVector);  // values that lie side by side, loaded at once
  // Values of a thread that are taken together: fp64 has registers for half as many.
  TCONV_HD static constexpr int chunk(int64_t storage_bytes) { return storage_bytes == 8 ? 4 : 8; }
  static constexpr int kPart = 16384;       // of a plane, at a time
  static constexpr int kMaxOfWarp = 2048;   // planes up to this size are a warp's, others a block's
  static constexpr int kMaxBlocks = 65536;  // which then take several parts
};

// Values of one channel and their gradients: count, mean and squared deviations of the values (less the first value of
// their plane, so that a large mean costs nothing), sums of the gradients and of their products with the values'
// deviations from that mean. Two of them join without cancellation (Chan, Golub, LeVeque, as in moments.h).
template <typename Acc>
struct GradientMoments {
  Acc count, mean, m2, grad, product;

  __device__ __forceinline__ void join(const GradientMoments& other) {
    const Acc total = count + other.count;
    if (total == Acc(0)) return;
    const Acc share = other.count / total, delta = other.mean - mean, step = delta * share;
    m2 += other.m2 + delta * step * count;
    // Deviations from the common mean: of these values less `step`, of the others' more by the rest.
    product += other.product - step * grad + (delta - step) * other.grad;
    grad += other.grad;
    mean += step;
    count = total;
  }
};

// What turns g and value into the gradient, for a sample's group: grad_value = w*rstd * g + slope * (value - mean) +
// shift.
template <typename Acc>
struct GroupCoefficients {
  Acc mean, rstd, slope, shift;
};

// Inner of a chain of element-wise operations. An Inner says of a channel: value<Storage>(v) and gradient<Storage>(v,
// outer, sums) as in generated_gradient.h, with kSums sums.
template <int kChain, typename StorageType>
struct ChainInner {
  static constexpr int kSums = Chain<kChain>::kVectors;
#ifdef TCONV_GRADIENT_CHAINS
  static constexpr int kSteps = Chain<kChain>::kSteps;
#endif
  using Acc = typename StorageTraits<StorageType>::Acc;
#ifdef TCONV_READS_MASK
  // What the gradient reads: values, or of a mask the answers.
  static constexpr bool kReadsMask = Chain<kChain>::kReadsMask;
  using Value = std::conditional_t<kReadsMask, uint8_t, StorageType>;
#endif
  const StorageType* channel_vectors[kMaxChannelVectors];  // [channels] each
#ifdef TCONV_CHAINS_READ_TENSORS
  StorageType* grad_tensors[kMaxChannelVectors];  // or null

  static constexpr bool kReadsTensors = Chain<kChain>::kTensors != 0;
  // Has the operand the value's shape?
  TCONV_HD static constexpr bool reads(int operand) { return (Chain<kChain>::kTensors >> operand & 1) != 0; }
#endif

  struct Channel {
    Acc channel_vectors[kSums > 0 ? kSums : 1][1];

    template <typename Storage>
    __device__ __forceinline__ Acc value(Acc v) const {
      return Chain<kChain>::template value<Storage>(v, *this, 0);
    }
    template <typename Storage, typename Outer>
    __device__ __forceinline__ Acc gradient(Acc v, const Outer& outer, Acc* sums) const {
      return Chain<kChain>::template gradient<Storage>(v, *this, 0, outer, sums);
    }
#ifdef TCONV_CHAINS_READ_TENSORS
    // tensors[i][at]: operands of the value's shape; their gradients take their place.
    template <typename Storage, typename Outer, typename Tensors>
    __device__ __forceinline__ Acc gradient(Acc v, const Outer& outer, Acc* sums, Tensors& tensors, int at) const {
      Acc taken[kMaxChannelVectors] = {};
      const Acc made = Chain<kChain>::template gradient<Storage>(v, *this, 0, outer, sums, tensors, at, taken);
#pragma unroll
      for (int i = 0; i < kMaxChannelVectors; ++i)
        if (reads(i)) tensors[i][at] = to_storage<Storage>(taken[i]);
      return made;
    }
#endif
  };
  __device__ __forceinline__ Channel of_channel(int64_t channel) const {
    Channel made{};
#pragma unroll
#ifdef TCONV_CHAINS_READ_TENSORS
    for (int i = 0; i < kSums; ++i)
      if (!reads(i)) made.channel_vectors[i][0] = static_cast<Acc>(channel_vectors[i][channel]);
#else
    for (int i = 0; i < kSums; ++i) made.channel_vectors[i][0] = static_cast<Acc>(channel_vectors[i][channel]);
#endif
    return made;
  }
};

template <typename InnerType, typename StorageType>
struct GroupNormGradientArgs {
  using Inner = InnerType;
  using Storage = StorageType;
  using Acc = typename StorageTraits<Storage>::Acc;
  const Storage* grad;
#ifdef TCONV_READS_MASK
  using Value = typename Inner::Value;
  const Value* value;
#else
  const Storage* value;
#endif
  const Storage* weight;  // or null
  Storage* grad_value;
  Inner inner;
  GradientMoments<Acc>* parts;           // [batch][channels][parts_per_plane]
  GroupCoefficients<Acc>* coefficients;  // [batch][num_groups]
  Acc* weight_parts;                     // [batch][channels]: a sample's share of grad_weight
  Acc* bias_parts;
  // [batch][parts_per_plane][channels] each: sums of grad_value, or null, and Inner's
  Acc* sum_parts[1 + Inner::kSums];
  int64_t channels, plane, num_groups, num_planes, num_sample_groups, num_units;
  int parts_per_plane;
  double eps;
  bool vectors;     // the tensors begin at whole vectors
  RowPadding rows;  // of grad_value
  FastDivisor64 by_parts, by_channels, by_group_channels, by_groups;
#ifdef TCONV_GRADIENT_CHAINS
  const int* only_if[2];  // null but for the gradient alone, which then is formed where one of them is set

  __device__ __forceinline__ bool wanted() const {
    return only_if[0] == nullptr || *only_if[0] != 0 || (only_if[1] != nullptr && *only_if[1] != 0);
  }
#endif
};

// A part of a plane: of the units that all lanes that share one take by turns.
struct PlanePart {
  int64_t plane, part, sample, channel, begin;
  int count;

  template <typename Args>
  __device__ __forceinline__ PlanePart(const Args& args, int64_t unit) {
    plane = args.by_parts.quotient(unit);
    part = unit - plane * args.parts_per_plane;
    sample = args.by_channels.quotient(plane);
    channel = plane - sample * args.channels;
    begin = plane * args.plane + part * GroupNormGradientConfig::kPart;
    count = static_cast<int>(
        min(args.plane - part * GroupNormGradientConfig::kPart, int64_t{GroupNormGradientConfig::kPart}));
  }
};

// What a plane's values are taken less.
template <typename Args>
__device__ __forceinline__ typename Args::Acc plane_origin(const Args& args, int64_t plane, int64_t channel) {
  const auto inner = args.inner.of_channel(channel);
  return inner.template value<typename Args::Storage>(static_cast<typename Args::Acc>(args.value[plane * args.plane]));
}

// Values of a part as lanes take them, from -shift on, so that vectors lie aligned: those that are not there are
// others'.
struct VectorSpan {
  int shift, count;

  __device__ __forceinline__ VectorSpan(const PlanePart& part, bool vectors)
      : shift(vectors ? static_cast<int>(part.begin % GroupNormGradientConfig::kVector) : 0), count(part.count) {}

  __device__ __forceinline__ bool has(int at) const { return at >= 0 && at < count; }
  __device__ __forceinline__ bool has(int first, int size) const { return first >= 0 && first + size <= count; }
};

}  // namespace cuda
}  // namespace tconv
