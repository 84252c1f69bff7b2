// Behind the tensor-core kernels of the weight gradient: values that are not finite are computed again, each from
// exactly its own products. The tensor cores also multiply zeros, beyond an image's last column and for taps that a
// class lacks (sliding_layer.h), and Infinity times zero is NaN.
#pragma once

#include "weight_gradient_plain.cuh"

namespace tconv {
namespace cuda {

struct WeightGradientRepairConfig {
  static constexpr int kThreads = WeightGradientPlainConfig::kThreads;
  static constexpr int kMaxBlocks = 1024;
};

// args.parts is not used, sums go to grad_weight itself.
template <typename Storage>
__global__ void __launch_bounds__(WeightGradientRepairConfig::kThreads)
    weight_gradient_repair_kernel(const __grid_constant__ WeightGradientPlainArgs<Storage> args, Storage* grad_weight) {
  using Config = WeightGradientRepairConfig;
  using Acc = typename StorageTraits<Storage>::Acc;
  __shared__ Acc scratch[Config::kThreads / 32];
  __shared__ unsigned wrong[Config::kThreads / 32];
#ifdef TCONV_GRADIENT_CHAINS
  await_previous_kernels();
#endif
  const int64_t taps = args.layer.kernel_h * args.layer.kernel_w;
  for (int64_t first = static_cast<int64_t>(blockIdx.x) * Config::kThreads; first < args.count;
       first += static_cast<int64_t>(gridDim.x) * Config::kThreads) {
    const int64_t mine = first + threadIdx.x;
#ifdef TCONV_WALKS_DEPTH
    const unsigned of_warp =
        __ballot_sync(0xFFFFFFFFu, mine < args.count && !is_finite(grad_weight[args.place_of(mine)]));
#else
    const unsigned of_warp = __ballot_sync(0xFFFFFFFFu, mine < args.count && !is_finite(grad_weight[mine]));
#endif
    __syncthreads();  // the masks before these have been read
    if (threadIdx.x % 32 == 0) wrong[threadIdx.x / 32] = of_warp;
    __syncthreads();
    unsigned any = 0;
#pragma unroll
    for (int warp = 0; warp < Config::kThreads / 32; ++warp) any |= wrong[warp];
    if (any == 0) continue;  // as a rule
    for (int i = 0; i < Config::kThreads; ++i) {
      if ((wrong[i / 32] >> i % 32 & 1) == 0) continue;
      const int64_t value = first + i, pair = value / taps, ic = pair / args.oc_per_group;
      const int64_t oc = ic / args.ic_per_group * args.oc_per_group + (pair - ic * args.oc_per_group);
      Acc sums[WeightGradientPlainConfig::kTaps];
      bool round = false;
#ifdef TCONV_WALKS_DEPTH
      if constexpr (std::is_same_v<Storage, float>) {
        round = args.round_operands;
        if (round)
          weight_gradient_part<Storage, true, true>(args, ic, oc, value - pair * taps, 0, args.num_pixels, sums);
      }
      if (!round)
        weight_gradient_part<Storage, false, true>(args, ic, oc, value - pair * taps, 0, args.num_pixels, sums);
#else
      if constexpr (std::is_same_v<Storage, float>) {
        round = args.round_operands;
        if (round) weight_gradient_part<Storage, true>(args, ic, oc, value - pair * taps, 0, args.num_pixels, sums);
      }
      if (!round) weight_gradient_part<Storage, false>(args, ic, oc, value - pair * taps, 0, args.num_pixels, sums);
#endif
      const Acc sum = block_sum<Acc>(sums[0], scratch);
#ifdef TCONV_WALKS_DEPTH
      if (threadIdx.x == 0) grad_weight[args.place_of(value)] = to_storage<Storage>(sum);
#else
      if (threadIdx.x == 0) grad_weight[value] = to_storage<Storage>(sum);
#endif
    }
  }
}

template <typename Storage>
int64_t launch_weight_gradient_repair(const GradientCall& call, const WeightGradientPlainPlan& plan) {
  using Config = WeightGradientRepairConfig;
  const int64_t blocks = (plan.count + Config::kThreads - 1) / Config::kThreads;
#ifdef TCONV_GRADIENT_CHAINS
  return launch_overlapped(
#else
  return launch_kernel(
#endif
      weight_gradient_repair_kernel<Storage>,
      dim3(static_cast<unsigned>(blocks < Config::kMaxBlocks ? blocks : Config::kMaxBlocks)), dim3(Config::kThreads), 0,
      call.conv.stream, weight_gradient_plain_args<Storage>(call, plan), static_cast<Storage*>(call.grad_weight));
}

}  // namespace cuda
}  // namespace tconv
