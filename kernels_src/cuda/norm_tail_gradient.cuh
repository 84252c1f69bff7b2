// Gradients of GroupNorm and BatchNorm of a tail: their kernels, which take the gradient back through the steps
// wherever they read it. What the norm made is had again from the maps that forward left.
#pragma once

#include "batch_norm_backward.cuh"
#include "group_norm_gradient.cuh"
#include "tail_gradient_sums.cuh"

namespace tconv {
namespace cuda {

// Inner (group_norm_gradient_args.cuh) of values that are normalised as they are, with a tail's steps behind the norm.
// of_samples: every sample's channel has a map of its own.
template <typename Step, typename S>
struct NormTailInner {
  static constexpr int kSums = 0;
  using Acc = typename StorageTraits<S>::Acc;
  const norm::ChannelAffine<Acc>* maps;
  bool of_samples;

  struct Channel {
    template <typename Storage>
    __device__ __forceinline__ Acc value(Acc v) const {
      return v;
    }
    template <typename Storage, typename Outer>
    __device__ __forceinline__ Acc gradient(Acc v, const Outer& outer, Acc*) const {
      return outer(v);
    }
  };
  __device__ __forceinline__ Channel of_channel(int64_t) const { return {}; }

  // The gradient of the norm's result, where `grad` is the steps'.
  struct Behind {
    norm::ChannelAffine<Acc> map;

    __device__ __forceinline__ Acc operator()(S value, S grad) const {
      Acc unread[kMostSums<Step>] = {};
      const Acc y = map.apply(static_cast<Acc>(value));
      return Step::template gradient<Acc, S>(y, static_cast<Acc>(grad), EpilogueArgs<S>{}, 0, unread);
    }
  };
  __device__ __forceinline__ Behind behind(int64_t plane, int64_t channel) const {
    return {maps[of_samples ? plane : channel]};
  }
};

template <typename Step, typename S>
NormTailInner<Step, S> norm_tail_inner(const TailGradientCall& call) {
  return {static_cast<const norm::ChannelAffine<float>*>(call.maps), call.asked == TailOperator::kGroupNorm};
}

// Row i of the call's sums, or null where that is not wanted.
template <typename S>
S* sums_of(const TailGradientCall& call, int row) {
  return call.wants(row) ? static_cast<S*>(call.sums) + row * call.channels : nullptr;
}

// But for the gradients of weight and bias.
inline GroupNormGradientCall as_group_norm(const TailGradientCall& call, int64_t num_groups) {
  GroupNormGradientCall made{};
  made.conv = call.conv;
  made.grad = call.grad, made.value = call.value, made.weight = call.weight;
  made.batch = call.batch, made.channels = call.channels, made.height = call.plane, made.width = 1;
  made.row_columns = 1, made.num_groups = num_groups, made.eps = call.eps;
  made.grad_value = call.grad_value;
  return made;
}

template <typename Step, typename S>
class GroupNormTailGradient {
 public:
  GroupNormTailGradient(const TailGradientCall& call, WorkspacePlaces& places)
      : kernels_(group_norm_call(call), norm_tail_inner<Step, S>(call), false, places) {}

  int64_t run() const { return kernels_.run(); }

 private:
  static GroupNormGradientCall group_norm_call(const TailGradientCall& call) {
    GroupNormGradientCall made = as_group_norm(call, call.num_groups);
    made.grad_weight = sums_of<S>(call, 0), made.grad_bias = sums_of<S>(call, 1);
    return made;
  }

  GroupNormGradient<NormTailInner<Step, S>, S> kernels_;
};

template <typename Step>
class BatchNormTailGradient {
 public:
  BatchNormTailGradient(const TailGradientCall& call, WorkspacePlaces& places)
      : kernels_(batch_norm_call(call), places, norm_tail_inner<Step, float>(call)) {}

  int64_t run() const { return kernels_.run(); }

 private:
  static BatchNormCall batch_norm_call(const TailGradientCall& call) {
    BatchNormCall made{};
    made.conv = call.conv;
    made.norm.eps = call.eps, made.norm.weight = call.weight;
    made.grad = call.grad, made.value = call.value, made.grad_value = call.grad_value;
    made.batch = call.batch, made.channels = call.channels, made.plane = call.plane;
    made.grad_weight = sums_of<float>(call, 0), made.grad_bias = sums_of<float>(call, 1);
    return made;
  }

  BatchNormBackward<NormTailInner<Step, float>> kernels_;
};

// It depends on sizes alone, not on steps, and is the same in every dtype that accumulates in fp32.
struct NoSteps {};

inline int64_t norm_tail_gradient_workspace_bytes(const TailGradientCall& call) {
  WorkspacePlaces places(nullptr);
  if (call.asked == TailOperator::kGroupNorm) {
    const GroupNormTailGradient<NoSteps, float> made(call, places);
  } else {
    const BatchNormTailGradient<NoSteps> made(call, places);
  }
  return places.bytes();
}

template <typename Gradient>
int64_t launch_norm_tail_gradient(const TailGradientCall& call) {
  WorkspacePlaces places(call.conv.workspace);
  return Gradient(call, places).run();
}

}  // namespace cuda
}  // namespace tconv
