// Gradients of softmax over all positions of a channel and of a tail's steps behind it. With p = softmax and d the
// gradient ahead of the steps,
//
//   grad_value = p * (d - sum(p * d)),   the sum over the channel's positions
//
// (aten/src/ATen/native/cuda/SoftMax.cu in PyTorch). Chunks' largest values and sums once more, as in
// plane_softmax.cuh; chunks' sums of p * d; and the gradient, the last chunks first. Bound by memory: five reads and
// one write.
#pragma once

#include "plane_softmax_chunks.cuh"
#include "tail_gradient_sums.cuh"

namespace tconv {
namespace cuda {

template <typename S>
struct PlaneSoftmaxGradientArgs {
  PlaneSoftmaxArgs<S> softmax;  // whose result is the gradient
  const S* grad;
  float* products;  // [plane][chunk]
  float* parts;     // [operand][sample][chunk][channel], of the steps' operands
  int num_sums;
  int64_t of_one_sum;
};

// p and d of one value; what belongs to the steps' operands is added to `of_operands`.
template <typename Step, typename S>
__device__ __forceinline__ void ahead_of_steps(const PlaneSoftmaxArgs<S>& a, const PlaneScale& of_plane,
                                               int64_t channel, float& value, float& grad,
                                               float (&of_operands)[kMostSums<Step>]) {
  value = expf(value - of_plane.largest) * of_plane.scale;
  grad = Step::template gradient<float, S>(value, grad, a.steps, channel, of_operands);
}

template <typename Step, typename S>
__global__ void __launch_bounds__(PlaneSoftmaxConfig<S>::kThreads)
    plane_softmax_products_kernel(PlaneSoftmaxGradientArgs<S> args) {
  using Config = PlaneSoftmaxConfig<S>;
  const PlaneSoftmaxArgs<S>& a = args.softmax;
  __shared__ float shared[Config::kThreads / 32];
  const BlockChunk<S> chunk(a, true);
  const PlaneScale of_plane = plane_scale(a, chunk.plane, shared);
  const uint32_t sample = a.by_channels.quotient(chunk.plane), channel = chunk.plane - sample * a.channels;
  float product = 0, of_operands[kMostSums<Step>] = {};
#pragma unroll 2  // more take registers that there are not
  for (int i = 0; i < Config::kHeld; ++i) {
    float value[Config::kVector], grad[Config::kVector];
    load_of_chunk<S>(value, i, a.value + chunk.begin, chunk.present, a.in_vectors, -INFINITY);
    load_of_chunk<S>(grad, i, args.grad + chunk.begin, chunk.present, a.in_vectors, 0.0f);
#pragma unroll
    for (int j = 0; j < Config::kVector; ++j) {
      if (chunk_place<S>(i, j, a.in_vectors) >= chunk.present) continue;
      ahead_of_steps<Step, S>(a, of_plane, channel, value[j], grad[j], of_operands);
      product += value[j] * grad[j];
    }
  }
  product = over_block(product, shared, added);
  if (threadIdx.x == 0) args.products[chunk.number] = product;
  const int64_t row = int64_t{sample} * a.chunks + (chunk.number - chunk.plane * a.chunks);
  for (int k = 0; k < args.num_sums; ++k) {
    float sum = 0;
#pragma unroll
    for (int i = 0; i < Step::kVectors; ++i)
      if (i == k) sum = of_operands[i];
    sum = over_block(sum, shared, added);
    if (threadIdx.x == 0) args.parts[k * args.of_one_sum + row * a.channels + channel] = sum;
  }
}

template <typename Step, typename S>
__global__ void __launch_bounds__(PlaneSoftmaxConfig<S>::kThreads)
    plane_softmax_gradient_kernel(PlaneSoftmaxGradientArgs<S> args) {
  using Config = PlaneSoftmaxConfig<S>;
  const PlaneSoftmaxArgs<S>& a = args.softmax;
  __shared__ float shared[Config::kThreads / 32];
  const BlockChunk<S> chunk(a, false);
  float value[Config::kHeld][Config::kVector], grad[Config::kHeld][Config::kVector];
  load_chunk<S>(value, a.value + chunk.begin, chunk.present, a.in_vectors);
  load_chunk<S>(grad, args.grad + chunk.begin, chunk.present, a.in_vectors, 0.0f);
  const PlaneScale of_plane = plane_scale(a, chunk.plane, shared);
  float product = 0;
  for (int i = threadIdx.x; i < a.chunks; i += Config::kThreads)
    product += args.products[int64_t{chunk.plane} * a.chunks + i];
  product = over_block(product, shared, added);
  const int64_t channel = chunk.plane - a.by_channels.quotient(chunk.plane) * a.channels;
#pragma unroll
  for (int i = 0; i < Config::kHeld; ++i)
#pragma unroll
    for (int j = 0; j < Config::kVector; ++j) {
      float unread[kMostSums<Step>] = {};
      ahead_of_steps<Step, S>(a, of_plane, channel, value[i][j], grad[i][j], unread);
      value[i][j] *= grad[i][j] - product;
    }
  store_chunk<S>(a.result + chunk.begin, value, chunk.present, a.in_vectors);
}

template <typename S>
TailSums plane_softmax_sums(const TailGradientCall& call) {
  return {call.batch * plane_softmax_chunks<S>(call), call.channels};
}

// Sums, then of each chunk a partial and a product.
template <typename S>
int64_t plane_softmax_gradient_workspace_bytes(const TailGradientCall& call) {
  const TailSums sums = plane_softmax_sums<S>(call);
  return sums.bytes(call) + sums.of_one() * static_cast<int64_t>(sizeof(SoftmaxPartial) + sizeof(float));
}

// kUnsupportedKernel for 2^31 chunks or more.
template <typename Step, typename S>
int64_t launch_plane_softmax_gradient(const TailGradientCall& call) {
  using Config = PlaneSoftmaxConfig<S>;
  const TailSums sums = plane_softmax_sums<S>(call);
  const int64_t blocks = sums.of_one();
  if (blocks > INT32_MAX) return unsupported_tail(call, "2^31 chunks of planes or more");
  PlaneSoftmaxGradientArgs<S> args{};
  args.softmax = plane_softmax_args<S>(call, {call.grad, call.grad_value});
  args.grad = static_cast<const S*>(call.grad);
  args.softmax.result = static_cast<S*>(call.grad_value);
  args.parts = TailSums::parts(call), args.num_sums = call.num_sums(), args.of_one_sum = sums.of_one();
  args.products = args.parts + args.num_sums * args.of_one_sum;
  args.softmax.partials = reinterpret_cast<SoftmaxPartial*>(args.products + blocks);
  const auto stream = static_cast<cudaStream_t>(call.conv.stream);
  TCONV_RETURN_IF_ERROR(norm::launch(plane_softmax_partials_kernel<S>, blocks, Config::kThreads, stream, args.softmax));
  TCONV_RETURN_IF_ERROR(norm::launch(plane_softmax_products_kernel<Step, S>, blocks, Config::kThreads, stream, args));
  TCONV_RETURN_IF_ERROR(norm::launch(plane_softmax_gradient_kernel<Step, S>, blocks, Config::kThreads, stream, args));
  return sums.template add_up<S>(call);
}

}  // namespace cuda
}  // namespace tconv
