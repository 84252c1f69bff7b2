// The one door to GroupNorm's gradients on CUDA.
#pragma once

#ifdef TCONV_CHAINS_READ_TENSORS
#include "chain_tensors.cuh"
#endif
#include "channel_sums.cuh"
#include "group_norm_gradient_apply.cuh"
#include "group_norm_gradient_finalise.cuh"
#include "group_norm_gradient_sums.cuh"
#include "workspace_places.h"

namespace tconv {
namespace cuda {

inline bool norm_vectors_aligned(const void* pointer, int64_t bytes) {
  return reinterpret_cast<uintptr_t>(pointer) % static_cast<uintptr_t>(bytes) == 0;
}

inline dim3 norm_blocks(int64_t units, int units_per_block) {
  const int64_t blocks = (units + units_per_block - 1) / units_per_block;
  return dim3(static_cast<unsigned>(
      blocks < GroupNormGradientConfig::kMaxBlocks ? blocks : GroupNormGradientConfig::kMaxBlocks));
}

template <int kLanes, typename Args>
int64_t launch_group_norm_gradient_kernels(const Args& args, void* stream) {
  constexpr int kThreads = GroupNormGradientConfig::kThreads;
  const dim3 blocks = norm_blocks(args.num_units, kThreads / kLanes);
  if (args.num_groups > 0) {
    TCONV_RETURN_IF_ERROR(
        launch_kernel(group_norm_gradient_sums_kernel<kLanes, Args>, blocks, dim3(kThreads), 0, stream, args));
    TCONV_RETURN_IF_ERROR(launch_kernel(group_norm_gradient_finalise_kernel<Args>,
                                        norm_blocks(args.num_sample_groups, kThreads / 32), dim3(kThreads), 0, stream,
                                        args));
  }
  return launch_kernel(group_norm_gradient_apply_kernel<kLanes, Args>, blocks, dim3(kThreads), 0, stream, args);
}

// The kernels of one call, made once for its size and once, with a workspace, for its run. with_sums: grad_value's sums
// (and products) are wanted, whoever adds them up.
template <typename Inner, typename Storage>
class GroupNormGradient {
 public:
  using Args = GroupNormGradientArgs<Inner, Storage>;
  using Acc = typename Args::Acc;
  using Config = GroupNormGradientConfig;

  GroupNormGradient(const GroupNormGradientCall& call, const Inner& inner, bool with_sums, WorkspacePlaces& places)
      : call_(call) {
#ifdef TCONV_READS_MASK
    args.grad = static_cast<const Storage*>(call.grad), args.value = static_cast<decltype(args.value)>(call.value);
#else
    args.grad = static_cast<const Storage*>(call.grad), args.value = static_cast<const Storage*>(call.value);
#endif
    args.weight = static_cast<const Storage*>(call.weight), args.grad_value = static_cast<Storage*>(call.grad_value);
    args.inner = inner;
    args.channels = call.channels, args.plane = call.height * call.width, args.num_groups = call.num_groups;
    args.num_planes = call.batch * call.channels, args.num_sample_groups = call.batch * call.num_groups;
    args.parts_per_plane = static_cast<int>((args.plane + Config::kPart - 1) / Config::kPart);
    args.num_units = args.num_planes * args.parts_per_plane;
    args.eps = call.eps;
    constexpr int64_t kBytes = Config::kVector * sizeof(Storage);
    args.vectors = norm_vectors_aligned(call.grad, kBytes) && norm_vectors_aligned(call.value, kBytes) &&
                   norm_vectors_aligned(call.grad_value, kBytes);
#ifdef TCONV_CHAINS_READ_TENSORS
    for (int i = 0; i < kMaxChannelVectors; ++i)
      if (Inner::reads(i))
        args.vectors = args.vectors && norm_vectors_aligned(call.conv.channel_vectors[i], kBytes) &&
                       norm_vectors_aligned(call.grad_tensors[i], kBytes);
#endif
    args.rows = RowPadding::make(call.height, call.width, call.row_columns);
    args.by_parts = FastDivisor64::make(static_cast<uint64_t>(args.parts_per_plane));
    args.by_channels = FastDivisor64::make(static_cast<uint64_t>(call.channels));
    if (call.num_groups > 0) {
      args.by_group_channels = FastDivisor64::make(static_cast<uint64_t>(call.channels / call.num_groups));
      args.by_groups = FastDivisor64::make(static_cast<uint64_t>(call.num_groups));
      args.parts = places.reserve<GradientMoments<Acc>>(args.num_units);
      args.coefficients = places.reserve<GroupCoefficients<Acc>>(args.num_sample_groups);
    }
    if (call.grad_weight != nullptr) args.weight_parts = places.reserve<Acc>(args.num_planes);
    if (call.grad_bias != nullptr) args.bias_parts = places.reserve<Acc>(args.num_planes);
    if (with_sums) args.sum_parts[0] = places.reserve<Acc>(args.num_units);
    for (int i = 1; i <= Inner::kSums; ++i) args.sum_parts[i] = places.reserve<Acc>(args.num_units);
  }

  // Rows of args.sum_parts.
  int64_t sum_rows() const { return call_.batch * args.parts_per_plane; }

  int64_t run() const {
    void* const stream = call_.conv.stream;
#ifdef TCONV_CHAINS_READ_TENSORS
    if constexpr (Inner::kReadsTensors)
      return launch_chain_tensors(args, stream);
    else
#endif
        if (args.plane <= Config::kMaxOfWarp)
      TCONV_RETURN_IF_ERROR((launch_group_norm_gradient_kernels<32, Args>(args, stream)));
    else
      TCONV_RETURN_IF_ERROR((launch_group_norm_gradient_kernels<Config::kThreads, Args>(args, stream)));
    return add_up_weights();
  }

  // The gradients of weight and bias from the samples' shares.
  int64_t add_up_weights() const {
    void* const stream = call_.conv.stream;
    TCONV_RETURN_IF_ERROR(launch_channel_sums(args.weight_parts, static_cast<Storage*>(call_.grad_weight), call_.batch,
                                              call_.channels, stream));
    return launch_channel_sums(args.bias_parts, static_cast<Storage*>(call_.grad_bias), call_.batch, call_.channels,
                               stream);
  }

  Args args{};

 private:
  GroupNormGradientCall call_;
};

// The kernels of a call whose chain has this number.
template <int kChain, typename Storage>
class ChainGradient {
 public:
  using Inner = ChainInner<kChain, Storage>;

  ChainGradient(const GroupNormGradientCall& call, WorkspacePlaces& places)
      : call_(call), kernels_(call, inner_of(call), call.grad_sums != nullptr, places) {}

  int64_t run() const {
    TCONV_RETURN_IF_ERROR(kernels_.run());
    TCONV_RETURN_IF_ERROR(add_up(0, call_.grad_sums));
    for (int i = 0; i < Inner::kSums; ++i) TCONV_RETURN_IF_ERROR(add_up(i + 1, call_.grad_vectors[i]));
    return kOk;
  }

 private:
  static Inner inner_of(const GroupNormGradientCall& call) {
    Inner made{};
    for (int i = 0; i < kMaxChannelVectors; ++i)
      made.channel_vectors[i] = static_cast<const Storage*>(call.conv.channel_vectors[i]);
#ifdef TCONV_CHAINS_READ_TENSORS
    for (int i = 0; i < kMaxChannelVectors; ++i) made.grad_tensors[i] = static_cast<Storage*>(call.grad_tensors[i]);
#endif
    return made;
  }

  int64_t add_up(int index, void* to) const {
    return launch_channel_sums(kernels_.args.sum_parts[index], static_cast<Storage*>(to), kernels_.sum_rows(),
                               call_.channels, call_.conv.stream);
  }

  GroupNormGradientCall call_;
  GroupNormGradient<Inner, Storage> kernels_;
};

template <typename Storage>
int64_t group_norm_gradient_bytes(const GroupNormGradientCall& call) {
  return with_chain(call.chain, [&](auto index) {
    WorkspacePlaces places(nullptr);
    const ChainGradient<decltype(index)::value, Storage> made(call, places);
    return places.bytes();
  });
}

inline int64_t group_norm_gradient_workspace_bytes(const GroupNormGradientCall& call) {
  if (call.conv.dtype < kFloat32 || call.conv.dtype > kBFloat16) return kUnsupportedDType;
  return call.conv.dtype == kFloat64 ? group_norm_gradient_bytes<double>(call) : group_norm_gradient_bytes<float>(call);
}

template <typename Storage>
int64_t launch_group_norm_gradient(const GroupNormGradientCall& call) {
  return with_chain(call.chain, [&](auto index) {
    WorkspacePlaces places(call.conv.workspace);
    return ChainGradient<decltype(index)::value, Storage>(call, places).run();
  });
}

}  // namespace cuda
}  // namespace tconv
