// BatchNorm by a batch's statistics, of a tensor in memory: moments of pieces of planes -> one affine map per channel
// -> the maps applied, and softmax over rows where it is asked for. The tensor is read twice and written once. And its
// gradients.
#pragma once

#include "../batch_norm_call.h"
#include "batch_norm_backward.cuh"
#include "batch_norm_plan.cuh"
#include "batch_norm_softmax.cuh"

namespace tconv {
namespace cuda {

inline norm::BatchNormPlan<float> batch_norm_plan(const BatchNormCall& call, norm::WorkspaceLayout& layout) {
  return {call.norm, call.batch, call.channels, call.plane, 0, layout};
}

inline int64_t batch_norm_workspace_bytes(const BatchNormCall& call) {
  if (call.grad != nullptr) {
    WorkspacePlaces places(nullptr);
    const BatchNormBackward<> made(call, places);
    return places.bytes();
  }
  norm::WorkspaceLayout layout;
  batch_norm_plan(call, layout);
  return layout.bytes();
}

inline int64_t launch_batch_norm(const BatchNormCall& call) {
  if (call.grad != nullptr) {
    WorkspacePlaces places(call.conv.workspace);
    return BatchNormBackward<>(call, places).run();
  }
  norm::WorkspaceLayout layout;
  const norm::BatchNormPlan<float> plan = batch_norm_plan(call, layout);
  const auto stream = static_cast<cudaStream_t>(call.conv.stream);
  const auto* value = static_cast<const float*>(call.value);
  TCONV_RETURN_IF_ERROR(plan.run(value, call.conv.workspace, stream));
  const auto* table = plan.maps(call.conv.workspace).table;
  auto* result = static_cast<float*>(call.result);
  if (call.softmax_width > 0)
    return norm::launch_batch_norm_softmax(value, table, result, call.batch, call.channels, call.plane,
                                           call.softmax_width, stream);
  return norm::launch_batch_norm_apply(value, table, result, call.batch, call.channels, call.plane, stream);
}

}  // namespace cuda
}  // namespace tconv
