// Softmax over all positions of a channel of [batch, channels, plane], with a tail's steps behind it: the largest value
// and the sum of every chunk of a plane, then the planes' from those, and the values once more, the last chunks first,
// which the caches still have. Bound by memory: two reads and one write.
#pragma once

#include "plane_softmax_chunks.cuh"

namespace tconv {
namespace cuda {

template <typename Step, typename S>
__global__ void __launch_bounds__(PlaneSoftmaxConfig<S>::kThreads) plane_softmax_kernel(PlaneSoftmaxArgs<S> a) {
  using Config = PlaneSoftmaxConfig<S>;
  __shared__ float shared[Config::kThreads / 32];
  const BlockChunk<S> chunk(a, true);
  float held[Config::kHeld][Config::kVector];
  load_chunk<S>(held, a.value + chunk.begin, chunk.present, a.in_vectors);
  const PlaneScale of_plane = plane_scale(a, chunk.plane, shared);
  const int64_t channel = chunk.plane - a.by_channels.quotient(chunk.plane) * a.channels;
#pragma unroll
  for (int i = 0; i < Config::kHeld; ++i)
#pragma unroll
    for (int j = 0; j < Config::kVector; ++j)
      held[i][j] =
          Step::template apply<float, S>(expf(held[i][j] - of_plane.largest) * of_plane.scale, a.steps, channel);
  store_chunk<S>(a.result + chunk.begin, held, chunk.present, a.in_vectors);
}

template <typename S>
int64_t plane_softmax_workspace_bytes(const TailCall& call) {
  return call.batch * call.channels * plane_softmax_chunks<S>(call) * static_cast<int64_t>(sizeof(SoftmaxPartial));
}

// kUnsupportedKernel for 2^31 chunks or more.
template <typename Step, typename S>
int64_t launch_plane_softmax(const TailCall& call) {
  using Config = PlaneSoftmaxConfig<S>;
  const int64_t blocks = call.batch * call.channels * plane_softmax_chunks<S>(call);
  if (blocks > INT32_MAX) return unsupported_tail(call, "2^31 chunks of planes or more");
  PlaneSoftmaxArgs<S> args = plane_softmax_args<S>(call, {call.result});
  args.partials = static_cast<SoftmaxPartial*>(call.conv.workspace);
  const auto stream = static_cast<cudaStream_t>(call.conv.stream);
  TCONV_RETURN_IF_ERROR(norm::launch(plane_softmax_partials_kernel<S>, blocks, Config::kThreads, stream, args));
  return norm::launch(plane_softmax_kernel<Step, S>, blocks, Config::kThreads, stream, args);
}

}  // namespace cuda
}  // namespace tconv
