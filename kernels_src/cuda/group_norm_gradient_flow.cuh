// GroupNorm's gradients of large planes in one launch. Blocks take parts of planes by tickets, in rounds: the parts of
// one group for their sums, and those of the group `lag` rounds before for their gradients. By then its coefficients
// are known, and L2 still has its values, so that memory delivers them once. Whoever sums a group's last part makes the
// coefficients. A ticket waits for earlier ones alone, so the flow goes on however few blocks run at once.
#pragma once

#include "device_limits.h"
#include "group_norm_gradient_apply.cuh"
#include "group_norm_gradient_finalise.cuh"
#include "group_norm_gradient_sums.cuh"
#include "workspace_places.h"

namespace tconv {
namespace cuda {

struct GroupNormFlowConfig {
  static constexpr int kThreads = GroupNormGradientConfig::kThreads;
  // Few, that little lies between a group's two visits; fp64 has registers for one.
  TCONV_HD static constexpr int blocks_per_sm(int64_t storage_bytes) { return storage_bytes < 8 ? 2 : 1; }
};

template <typename Norm>
struct GroupNormFlowArgs {
  Norm norm;
  unsigned* ticket;  // the next one
  unsigned* summed;  // [groups of all samples]: parts whose sums are there
  unsigned* known;   // [groups of all samples]: 1 where the coefficients are
  unsigned num_groups, parts, lag, num_tickets;
  FastDivisor64 by_round;  // 2 * parts
};

template <typename Norm>
__global__ void __launch_bounds__(GroupNormFlowConfig::kThreads,
                                  GroupNormFlowConfig::blocks_per_sm(sizeof(typename Norm::Storage)))
    group_norm_gradient_flow_kernel(const __grid_constant__ GroupNormFlowArgs<Norm> args) {
  constexpr int kThreads = GroupNormFlowConfig::kThreads;
  using Acc = typename Norm::Acc;
  __shared__ GradientMoments<Acc> moments_of_warps[kThreads / 32];
  __shared__ Acc sums_of_warps[1 + Norm::Inner::kSums][kThreads / 32];
  __shared__ GroupCoefficients<Acc> coefficients;
  __shared__ unsigned ticket_of_block, is_last;
  const Norm& norm = args.norm;
  for (;;) {
    __syncthreads();  // the ticket before has been read
    if (threadIdx.x == 0) ticket_of_block = atomicAdd(args.ticket, 1u);
    __syncthreads();
    const unsigned ticket = ticket_of_block;
    if (ticket >= args.num_tickets) return;
    const unsigned round = static_cast<unsigned>(args.by_round.quotient(ticket)),
                   within = ticket - round * 2 * args.parts;
    const bool sums = within < args.parts;
    if (sums ? round >= args.num_groups : round < args.lag) continue;
    const unsigned group = sums ? round : round - args.lag;
    const int64_t unit = static_cast<int64_t>(group) * args.parts + (sums ? within : within - args.parts);
    const PlanePart part(norm, unit);
    if (sums) {
      const auto moments = moments_of_part<kThreads>(norm, part, static_cast<int>(threadIdx.x), moments_of_warps);
      if (threadIdx.x == 0) {
        norm.parts[unit] = moments;
        __threadfence();
        is_last = atomicAdd(&args.summed[group], 1u) + 1 == args.parts;
      }
      __syncthreads();
      if (!is_last || threadIdx.x >= 32) continue;
      __threadfence();
      const int64_t channels = static_cast<int64_t>(norm.by_group_channels.divisor);
      const int64_t first_plane = group * channels, first = first_plane - part.sample * norm.channels;
      finalise_group(
          norm, first, first_plane, channels, static_cast<int>(threadIdx.x),
          [&](int64_t c) { return moments_of_plane(norm, first_plane + c, first + c); }, &norm.coefficients[group]);
      if (threadIdx.x == 0) {  // who wrote them
        __threadfence();
        atomicAdd(&args.known[group], 1u);
      }
    } else {
      if (threadIdx.x == 0) {
        while (atomicAdd(&args.known[group], 0u) == 0) __nanosleep(100);
        __threadfence();
        const GroupCoefficients<Acc>& from = norm.coefficients[group];
        coefficients = {load_from_l2(from.mean), load_from_l2(from.rstd), load_from_l2(from.slope),
                        load_from_l2(from.shift)};
      }
      __syncthreads();
      apply_to_part<kThreads>(norm, part, coefficients, static_cast<int>(threadIdx.x), sums_of_warps);
    }
  }
}

// The flow of a call, in a workspace that is zeros before each run.
template <typename Norm>
class GroupNormFlow {
 public:
  GroupNormFlow(const Norm& norm, WorkspacePlaces& places) {
    args_.num_groups = static_cast<unsigned>(norm.num_sample_groups);
    args_.parts = static_cast<unsigned>(norm.num_units / (norm.num_sample_groups > 0 ? norm.num_sample_groups : 1));
    count_ = 1 + 2 * norm.num_sample_groups;
    args_.ticket = places.reserve<unsigned>(count_);
    args_.summed = args_.ticket + 1, args_.known = args_.summed + norm.num_sample_groups;
    if (args_.parts > 0) args_.by_round = FastDivisor64::make(2 * static_cast<uint64_t>(args_.parts));
  }

  int64_t run(const Norm& norm, void* stream) {
    DeviceLimits device;
    TCONV_RETURN_IF_ERROR(query_device_limits(&device));
    const unsigned blocks =
        static_cast<unsigned>(GroupNormFlowConfig::blocks_per_sm(sizeof(typename Norm::Storage)) * device.sm_count);
    args_.norm = norm;
    // So many rounds that what is summed when a block takes a ticket has been taken by no block that still runs.
    args_.lag = blocks / (2 * args_.parts) + 1;
    args_.num_tickets = 2 * args_.parts * (args_.num_groups + args_.lag);
    TCONV_RETURN_IF_ERROR(
        cudaMemsetAsync(args_.ticket, 0, count_ * sizeof(unsigned), static_cast<cudaStream_t>(stream)));
    return launch_kernel(group_norm_gradient_flow_kernel<Norm>,
                         dim3(blocks < args_.num_tickets ? blocks : args_.num_tickets),
                         dim3(GroupNormFlowConfig::kThreads), 0, stream, args_);
  }

 private:
  GroupNormFlowArgs<Norm> args_{};
  int64_t count_;
};

}  // namespace cuda
}  // namespace tconv
