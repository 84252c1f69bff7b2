// The one door to the gradients through BatchNorm, activation, max-pool and GroupNorm on CUDA. The big tensor is read
// three times, for BatchNorm's moments, the windows' maxima and the gradient, and written once; all else is of the
// pooled size, which small groups read and write once.
#pragma once

#include "../group_norm_gradient_call.h"
#include "group_norm_gradient.cuh"
#include "pool_gradient.cuh"
#include "pool_group_norm_gradient.cuh"
#include "pool_maxima.cuh"

namespace tconv {
namespace cuda {

template <typename S>
class BatchNormPoolGradient {
 public:
  using Acc = typename StorageTraits<S>::Acc;

  BatchNormPoolGradient(const BatchNormPoolGradientCall& call, WorkspacePlaces& places)
      : call_(call), pooled_(call.batch_norm_pool.pooled_h * call.batch_norm_pool.pooled_w) {
    const BatchNormPoolArgs& norm = call.batch_norm_pool;
    const int64_t planes = call.batch * call.channels;
    maxima_ = places.reserve<S>(planes * pooled_);
    grad_maxima_ = places.reserve<S>(planes * pooled_);
    norm_.norm = norm;
    norm_.channels = call.channels, norm_.count = call.batch * call.height * call.width;
    norm_.maps = places.reserve<norm::ChannelAffine<Acc>>(call.channels);
    norm_.rest = places.reserve<BatchNormRest>(call.channels);
    norm_.coefficients = places.reserve<BatchNormCoefficients<Acc>>(call.channels);
    norm_.rows = call.batch * norm::PlaneMomentsConfig::num_partials(call.height * call.width);
    if (norm.use_batch_stats && norm.running_mean == nullptr)
      partials_ = places.reserve<norm::PartialOf<S>>(norm_.rows * call.channels);
    norm_.partials = partials_;
    norm_.grad_weight = static_cast<S*>(call.grad_weight), norm_.grad_bias = static_cast<S*>(call.grad_bias);
    norm_.grad_sums = static_cast<S*>(call.grad_sums);
    pool_.value = static_cast<const S*>(call.value), pool_.grad_value = static_cast<S*>(call.grad_value);
    pool_.maxima = maxima_, pool_.grad = grad_maxima_, pool_.maps = norm_.maps;
    pool_.winners = places.reserve<uint8_t>(planes * pooled_);
    pool_.coefficients = norm_.coefficients;
    pool_.planes = planes, pool_.height = call.height, pool_.width = call.width;
    pool_.row_columns = call.row_columns;
    pool_.kernel_h = static_cast<int>(norm.pool_kernel_h), pool_.kernel_w = static_cast<int>(norm.pool_kernel_w);
    pool_.stride_h = static_cast<int>(norm.pool_stride_h), pool_.stride_w = static_cast<int>(norm.pool_stride_w);
    pool_.windows = PoolGrid::make(norm.pooled_h, norm.pooled_w, call.channels);
    pool_.cells = PoolGrid::make((call.height + pool_.stride_h - 1) / pool_.stride_h,
                                 (call.width + pool_.stride_w - 1) / pool_.stride_w, call.channels);
    pool_.batch_stats = norm.use_batch_stats != 0;
  }

  // GroupNorm's part, which reads the maxima and writes the gradients of their BatchNorm.
  GroupNormGradientCall of_group_norm() const {
    GroupNormGradientCall made{};
    made.conv = call_.conv;
    made.grad = call_.grad, made.value = maxima_, made.weight = call_.group_norm.weight;
    made.batch = call_.batch, made.channels = call_.channels;
    made.height = call_.batch_norm_pool.pooled_h, made.width = made.row_columns = call_.batch_norm_pool.pooled_w;
    made.num_groups = call_.group_norm.num_groups, made.eps = call_.group_norm.eps;
    made.grad_value = grad_maxima_;
    made.grad_weight = call_.grad_group_weight, made.grad_bias = call_.grad_group_bias;
    return made;
  }

  template <int kChain>
  BatchNormInner<kChain, S> inner() const {
    return {norm_.maps};
  }

  template <int kChain>
  int64_t run(const GroupNormGradient<BatchNormInner<kChain, S>, S>& group_norm) {
    void* const stream = call_.conv.stream;
    if (partials_ != nullptr)
      TCONV_RETURN_IF_ERROR(norm::launch_group_norm_plane_moments<S>(pool_.value, partials_, call_.batch,
                                                                     call_.channels, call_.height * call_.width,
                                                                     static_cast<cudaStream_t>(stream)));
    TCONV_RETURN_IF_ERROR(per_channel(batch_norm_gradient_maps_kernel<S>));
    if (pairs())
      TCONV_RETURN_IF_ERROR((to_maxima<true>(group_norm)));
    else
      TCONV_RETURN_IF_ERROR((to_maxima<false>(group_norm)));
    norm_.sums = group_norm.args.sum_parts[0], norm_.products = group_norm.args.sum_parts[1];
    norm_.sum_rows = group_norm.sum_rows();
    TCONV_RETURN_IF_ERROR(per_channel(batch_norm_gradient_finalise_kernel<S>));
    if (pairs()) return per_window(pool_gradient_kernel<true, S>, pool_.cells);
    return per_window(pool_gradient_kernel<false, S>, pool_.cells);
  }

 private:
  // The gradients of the maxima's BatchNorm.
  template <bool kPairs, typename Norm>
  int64_t to_maxima(const Norm& group_norm) {
    const int64_t group_channels = call_.channels / call_.group_norm.num_groups;
    if constexpr (kPairs && PoolGroupNormConfig::serves(sizeof(S))) {
      if (PoolGroupNormConfig::fits(group_channels, pooled_) && group_norm.args.num_sample_groups <= INT32_MAX) {
        using Args = PoolGroupNormArgs<typename Norm::Args, S>;
        const Args args{group_norm.args, pool_, static_cast<int>(group_channels), static_cast<int>(pooled_),
                        FastDivisor::make(static_cast<uint32_t>(call_.batch_norm_pool.pooled_w))};
        const int64_t threads = 32 * PoolGroupNormConfig::kWarps * group_channels;
        TCONV_RETURN_IF_ERROR(launch_kernel(pool_group_norm_gradient_kernel<kPairs, typename Norm::Args, S>,
                                            dim3(static_cast<unsigned>(group_norm.args.num_sample_groups)),
                                            dim3(static_cast<unsigned>(threads)), 0, call_.conv.stream, args));
        return group_norm.add_up_weights();
      }
    }
    TCONV_RETURN_IF_ERROR(per_window(pool_maxima_kernel<kPairs, S>, pool_.windows));
    return group_norm.run();
  }

  int64_t per_channel(void (*kernel)(BatchNormGradientArgs<S>)) const {
    return launch_kernel(kernel, dim3(static_cast<unsigned>(call_.channels)), dim3(ChannelSumsConfig::kThreads), 0,
                         call_.conv.stream, norm_);
  }

  int64_t per_window(void (*kernel)(PoolGradientArgs<S>), const PoolGrid& grid) const {
    return launch_kernel(kernel, PoolGradientConfig::blocks(pool_.planes * grid.rows * grid.cols),
                         dim3(PoolGradientConfig::kThreads), 0, call_.conv.stream, pool_);
  }

  // Windows of 2 x 2 whose rows are aligned pairs; the image's last column belongs to one.
  bool pairs() const {
    const bool two = pool_.kernel_h == 2 && pool_.kernel_w == 2 && pool_.stride_h == 2 && pool_.stride_w == 2;
    return two && call_.width % 2 == 0 && call_.height / 2 == call_.batch_norm_pool.pooled_h &&
           norm_vectors_aligned(call_.value, 2 * sizeof(S)) && norm_vectors_aligned(call_.grad_value, 2 * sizeof(S));
  }

  BatchNormPoolGradientCall call_;
  int64_t pooled_;
  S *maxima_ = nullptr, *grad_maxima_ = nullptr;
  norm::PartialOf<S>* partials_ = nullptr;
  BatchNormGradientArgs<S> norm_{};
  PoolGradientArgs<S> pool_{};
};

template <typename S>
int64_t batch_norm_pool_gradient_bytes(const BatchNormPoolGradientCall& call) {
  WorkspacePlaces places(nullptr);
  const BatchNormPoolGradient<S> made(call, places);
  const GroupNormGradient<BatchNormInner<0, S>, S> group_norm(made.of_group_norm(), made.template inner<0>(), true,
                                                              places);
  return places.bytes();
}

inline int64_t batch_norm_pool_gradient_workspace_bytes(const BatchNormPoolGradientCall& call) {
  if (call.conv.dtype < kFloat32 || call.conv.dtype > kBFloat16) return kUnsupportedDType;
  return call.conv.dtype == kFloat64 ? batch_norm_pool_gradient_bytes<double>(call)
                                     : batch_norm_pool_gradient_bytes<float>(call);
}

template <typename S>
int64_t launch_batch_norm_pool_gradient(const BatchNormPoolGradientCall& call) {
  return with_chain(call.chain, [&](auto index) {
    constexpr int kChain = decltype(index)::value;
    WorkspacePlaces places(call.conv.workspace);
    BatchNormPoolGradient<S> made(call, places);
    const GroupNormGradient<BatchNormInner<kChain, S>, S> group_norm(made.of_group_norm(),
                                                                     made.template inner<kChain>(), true, places);
    return made.run(group_norm);
  });
}

}  // namespace cuda
}  // namespace tconv
