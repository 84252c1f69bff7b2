// GroupNorm and BatchNorm of a tail: their kernels, which apply the steps to what they store and leave the maps for the
// gradients.
#pragma once

#include "../epilogue.h"
#include "../generated_tail.h"
#include "../tail_call.h"
#include "batch_norm_plan.cuh"
#include "group_norm_forward.cuh"

namespace tconv {
namespace cuda {

// What stands behind a map (batch_norm_apply.cuh): steps that have no operands. And Transform of
// group_norm_single_block.cuh, of values that are normalised as they are.
template <typename Step, typename S>
struct StepsBehind {
  static constexpr bool kIdentity = true;
  norm::ChannelAffine<float>* maps;

  __device__ __forceinline__ float after(float y) const {
    return Step::template apply<float, S>(y, EpilogueArgs<S>{}, 0);
  }
  __device__ __forceinline__ void keep(int64_t plane, const norm::ChannelAffine<float>& map) const {
    maps[plane] = map;
  }
};

template <typename Step, typename S>
StepsBehind<Step, S> steps_behind(const TailCall& call) {
  return {static_cast<norm::ChannelAffine<float>*>(call.maps)};
}

inline GroupNormCall group_norm_call_of(const TailCall& call) {
  GroupNormCall made{};
  made.conv = call.conv;
  made.norm = {call.num_groups, call.eps, call.weight, call.bias};
  made.value = call.value, made.result = call.result;
  made.batch = call.batch, made.channels = call.channels, made.plane = call.plane;
  return made;
}

template <typename S>
int64_t group_norm_tail_workspace_bytes(const TailCall& call) {
  return GroupNormForward<S>(group_norm_call_of(call)).workspace_bytes();
}

template <typename Step, typename S>
int64_t launch_group_norm_tail(const TailCall& call) {
  const GroupNormCall made = group_norm_call_of(call);
  return GroupNormForward<S, StepsBehind<Step, S>>(made, steps_behind<Step, S>(call)).run();
}

inline norm::BatchNormPlan<float> batch_norm_tail_plan(const TailCall& call, norm::WorkspaceLayout& layout) {
  BatchNormPoolArgs args{};
  args.use_batch_stats = 1, args.eps = call.eps, args.weight = call.weight, args.bias = call.bias;
  args.updated = call.updated;
  return {args, call.batch, call.channels, call.plane, 0, layout};
}

inline int64_t batch_norm_tail_workspace_bytes(const TailCall& call) {
  norm::WorkspaceLayout layout;
  batch_norm_tail_plan(call, layout);
  return layout.bytes();
}

template <typename Step>
int64_t launch_batch_norm_tail(const TailCall& call) {
  norm::WorkspaceLayout layout;
  const norm::BatchNormPlan<float> plan = batch_norm_tail_plan(call, layout);
  const auto stream = static_cast<cudaStream_t>(call.conv.stream);
  const auto* value = static_cast<const float*>(call.value);
  TCONV_RETURN_IF_ERROR(plan.run(value, call.conv.workspace, stream));
  return norm::launch_batch_norm_apply(value, plan.maps(call.conv.workspace).table, static_cast<float*>(call.result),
                                       call.batch, call.channels, call.plane, stream, steps_behind<Step, float>(call));
}

}  // namespace cuda
}  // namespace tconv
