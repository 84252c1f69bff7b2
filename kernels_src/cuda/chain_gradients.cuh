// Gradients of a convolution and of what follows it: a chain of element-wise operations, or GroupNorm behind one. Where
// both of the convolution's gradients read packed pixels (packed_gradients.cuh), these are formed at once from the
// convolution's output and the gradient behind the chain, go by go: the gradient of the output, as large as that, is
// neither written nor read, but where tensor cores cannot do what the numbers ask for.
#pragma once

#include <algorithm>
#include <vector>

#include "chain_pack_rows.cuh"
#include "chain_sample.cuh"
#include "gradients.cuh"
#include "group_norm_gradient.cuh"
#ifdef TCONV_COMPUTES_VALUE
#include "packed_value.cuh"
#endif

namespace tconv {
namespace cuda {

// Does every row (or column) of the output lie in exactly one place of the planes?
inline bool covered_once(const SlidingAxis& axis, int64_t out, int64_t stride, int64_t dilation, int64_t padding) {
  std::vector<int> times(static_cast<size_t>(out), 0);
  const int64_t class_step = axis.classes > 1 ? dilation : 0;
  for (int64_t c = 0; c < axis.classes; ++c)
    for (int64_t i = 0; i < axis.plane_size; ++i) {
      const int64_t at = i * stride + c * class_step - padding;
      if (at >= 0 && at < out) ++times[static_cast<size_t>(at)];
    }
  return std::all_of(times.begin(), times.end(), [](int n) { return n == 1; });
}

// Of a segment, that the next strip's has, too.
inline int pixels_beyond(const WeightGradientLayout& layout) { return (layout.taps_w - 1) * layout.step_w; }

// Of the convolution's gradients, whose g is to be formed as it is packed.
inline bool packs_chain(const GradientCall& call, const GradientsPlan& plan) {
  if (plan.status != kOk || !plan.packed || plan.weight->kernel != kHopper || plan.weight->one_tap.usable) return false;
  const ConvTransposeLayer& p = call.conv.layer;
  const SlidingLayer& sliding = plan.weight->sliding;
  const WeightGradientLayout& layout = plan.weight->goes().layout;
  const int64_t go = std::min<int64_t>(plan.weight->goes().images, p.batch);
  return layout.abreast == 1 && go * p.out_channels * p.out_h * p.out_w <= INT32_MAX &&
         p.out_channels / p.groups % 8 == 0 &&
         pixels_beyond(layout) <= std::min(layout.segment, int{ChainPackConfig::kMostBeyond}) &&
         covered_once(sliding.h, p.out_h, p.stride_h, p.dilation_h, p.padding_h) &&
         covered_once(sliding.w, p.out_w, p.stride_w, p.dilation_w, p.padding_w);
}

inline GroupNormGradientCall chain_call_of(const GradientCall& call) {
  GroupNormGradientCall chain = call.of_chain;
  chain.conv.dtype = call.conv.dtype, chain.conv.stream = call.conv.stream;
  chain.conv.workspace = call.conv.workspace, chain.conv.workspace_bytes = call.conv.workspace_bytes;
  return chain;
}

// Is grad alone wanted?
inline bool chain_alone(const GradientCall& call) { return call.of_chain.grad_value != nullptr; }

template <int kChain, typename Storage>
class ChainPacker final : public PlanesPacker {
 public:
  using Inner = ChainInner<kChain, Storage>;
  using Kernels = GroupNormGradient<Inner, Storage>;
  using Args = ChainPackArgs<Inner, Storage>;

  ChainPacker(const GradientCall& call, const GroupNormGradientCall& chain, const WeightGradientPlan& weight,
              WorkspacePlaces& places)
      : call_(call), chain_(chain), weight_(weight), kernels_(chain, inner_of(chain), false, places) {
    const WeightGradientLayout& layout = weight.goes().layout;
    runs_ = static_cast<int>(ceil_div(layout.planes.rows, ChainPackConfig::kRows));
    rows_ = chain.batch * runs_ * weight.sliding.h.classes * weight.sliding.w.classes;
    for (int i = 0; i < Args::kSums; ++i) {
      kernels_.args.sum_parts[i] = nullptr;  // summed here, not where g is materialised
      sums_[i] = wanted(i) == nullptr ? nullptr : places.reserve<float>(rows_ * chain.channels);
    }
    not_finite_ = places.reserve<int>(1);
#ifdef TCONV_COMPUTES_VALUE
    if (call.computes_value) value_.emplace(call, weight, places);
#endif
  }

#ifdef TCONV_COMPUTES_VALUE
  bool usable() const { return !value_ || value_->usable(); }

  // Ahead of all goes.
  int64_t prepare() const { return value_ ? value_->prepare() : sum_up(kernels_.args); }

  // What forms g, but for g itself, of the images of args.
  int64_t sum_up(const typename Kernels::Args& args) const {
#else
  // What forms g, but for g itself.
  int64_t prepare() const {
#endif
    void* const stream = call_.conv.stream;
    if (chain_.num_groups == 0) return kOk;
#ifndef TCONV_COMPUTES_VALUE
    const auto& args = kernels_.args;
#endif
    constexpr int kThreads = GroupNormGradientConfig::kThreads;
    using KernelArgs = typename Kernels::Args;
    if (args.plane <= GroupNormGradientConfig::kMaxOfWarp)
      TCONV_RETURN_IF_ERROR(launch_kernel(group_norm_gradient_sums_kernel<32, KernelArgs>,
                                          norm_blocks(args.num_units, kThreads / 32), dim3(kThreads), 0, stream, args));
    else
      TCONV_RETURN_IF_ERROR(launch_kernel(group_norm_gradient_sums_kernel<kThreads, KernelArgs>,
                                          norm_blocks(args.num_units, 1), dim3(kThreads), 0, stream, args));
    TCONV_RETURN_IF_ERROR(launch_kernel(group_norm_gradient_finalise_kernel<KernelArgs>,
                                        norm_blocks(args.num_sample_groups, kThreads / 32), dim3(kThreads), 0, stream,
                                        args));
#ifdef TCONV_COMPUTES_VALUE
    return kOk;
#else
    return kernels_.add_up_weights();
#endif
  }

#ifdef TCONV_COMPUTES_VALUE
  // Where the value is computed go by go, the first one's gradient is the sample.
  int64_t sample(unsigned* largest) const override { return value_ ? kOk : sample_of(kernels_.args, largest); }

  int64_t sample_of(const typename Kernels::Args& args, unsigned* largest) const {
#else
  int64_t sample(unsigned* largest) const override {
#endif
    if constexpr (sizeof(Storage) == 4) {
      using Config = MagnitudeSampleConfig;
      constexpr int64_t kMost = int64_t{Config::kBlocks} * Config::kThreads;
#ifdef TCONV_COMPUTES_VALUE
      const int64_t count = args.num_planes * args.plane;
#else
      const int64_t count = kernels_.args.num_planes * kernels_.args.plane;
#endif
      const int64_t step = std::max<int64_t>(1, ceil_div(count, kMost));
      const int64_t blocks = ceil_div(ceil_div(count, step), int64_t{Config::kThreads});
      return launch_kernel(sample_chain_gradient_kernel<typename Kernels::Args>, dim3(static_cast<unsigned>(blocks)),
#ifdef TCONV_COMPUTES_VALUE
                           dim3(Config::kThreads), 0, call_.conv.stream, args, step, largest);
#else
                           dim3(Config::kThreads), 0, call_.conv.stream, kernels_.args, step, largest);
#endif
    }
    return kOk;
  }

  int64_t pack(const PackedGoes& goes, int64_t first, int count, void* workspace, GradientState* state) const override {
#ifdef TCONV_COMPUTES_VALUE
    if (value_) {
      TCONV_RETURN_IF_ERROR(value_->compute(first, count, workspace, state));
      const auto of_go = of_images(first, count);
      TCONV_RETURN_IF_ERROR(sum_up(of_go));
      if (first == 0) TCONV_RETURN_IF_ERROR(sample_of(of_go, &state->guard.largest));
    }
#endif
    Args args{};
    args.planes = pack_args<Storage>(call_, weight_.sliding, goes.layout, true, first, count);
    args.value = static_cast<const Storage*>(chain_.value) + first * args.planes.from_n;
    args.planes.from = static_cast<const Storage*>(chain_.grad) + first * args.planes.from_n;
    args.planes.to = goes.planes(workspace), args.planes.state = state;
    args.chain = kernels_.args;
    std::copy(sums_, sums_ + Args::kSums, args.sums);
    args.runs = runs_, args.first_image = static_cast<int>(first);
    args.beyond = pixels_beyond(goes.layout);
    const auto kernel = pack_chain_rows_kernel<Args>;
    const PackedOperand& packed = args.planes.packed;
    const int64_t bytes = ChainPackConfig::kImages * packed.segment_bytes +
                          int64_t{ChainPackConfig::kRows} * args.beyond * WeightGradientConfig::kPixelBytes;
    TCONV_RETURN_IF_ERROR(allow_dynamic_smem(kernel, bytes));
    const int64_t blocks = int64_t{count} * args.planes.groups * packed.blocks * runs_;
    return launch_kernel(kernel, dim3(static_cast<unsigned>(blocks)), dim3(ChainPackConfig::kThreads), bytes,
                         call_.conv.stream, args);
  }

  int64_t materialise(const int* guard) const override {
    void* const stream = call_.conv.stream;
    const cudaError_t cleared = cudaMemsetAsync(not_finite_, 0, sizeof(int), static_cast<cudaStream_t>(stream));
    if (cleared != cudaSuccess) return static_cast<int64_t>(cleared);
    const ConvTransposeLayer& p = call_.conv.layer;
    const int64_t count = p.in_channels * (p.out_channels / p.groups) * p.kernel_h * p.kernel_w;
    const int64_t needed = ceil_div(count, int64_t{NotFiniteConfig::kThreads});
    TCONV_RETURN_IF_ERROR(
        launch_kernel(note_not_finite_kernel<Storage>,
                      dim3(static_cast<unsigned>(std::min<int64_t>(needed, NotFiniteConfig::kMaxBlocks))),
                      dim3(NotFiniteConfig::kThreads), 0, stream,
                      static_cast<const Storage*>(static_cast<const void*>(call_.grad_weight)), count, not_finite_));
    auto args = kernels_.args;
    args.only_if[0] = not_finite_, args.only_if[1] = guard;
    constexpr int kMostBlocks = 1024;  // as a rule they find nothing to do
    constexpr int kThreads = GroupNormGradientConfig::kThreads;
    const dim3 blocks(static_cast<unsigned>(std::min<int64_t>(args.num_units, kMostBlocks)));
    return launch_kernel(group_norm_gradient_apply_kernel<kThreads, typename Kernels::Args>, blocks, dim3(kThreads), 0,
                         stream, args);
  }

  int64_t add_up() const {
#ifdef TCONV_COMPUTES_VALUE
    if (chain_.num_groups > 0) TCONV_RETURN_IF_ERROR(kernels_.add_up_weights());
#endif
    for (int i = 0; i < Args::kSums; ++i)
      if (sums_[i] != nullptr)
        TCONV_RETURN_IF_ERROR(
            launch_channel_sums(sums_[i], static_cast<Storage*>(wanted(i)), rows_, chain_.channels, call_.conv.stream));
    return kOk;
  }

 private:
#ifdef TCONV_COMPUTES_VALUE
  typename Kernels::Args of_images(int64_t first, int64_t count) const {
    auto args = kernels_.args;
    const int64_t planes = first * args.channels, values = planes * args.plane;
    args.vectors = args.vectors && values % GroupNormGradientConfig::kVector == 0;
    args.value += values, args.grad += values;
    args.num_planes = count * args.channels, args.num_sample_groups = count * args.num_groups;
    args.num_units = args.num_planes * args.parts_per_plane;
    if (args.num_groups > 0) args.parts += planes * args.parts_per_plane, args.coefficients += first * args.num_groups;
    if (args.weight_parts != nullptr) args.weight_parts += planes;
    if (args.bias_parts != nullptr) args.bias_parts += planes;
    return args;
  }

#endif
  static Inner inner_of(const GroupNormGradientCall& chain) {
    Inner made{};
    for (int i = 0; i < kMaxChannelVectors; ++i)
      made.channel_vectors[i] = static_cast<const Storage*>(chain.conv.channel_vectors[i]);
    return made;
  }

  void* wanted(int index) const { return index == 0 ? chain_.grad_sums : chain_.grad_vectors[index - 1]; }

  const GradientCall& call_;
  GroupNormGradientCall chain_;
  const WeightGradientPlan& weight_;
  Kernels kernels_;
  float* sums_[Args::kSums];
  int* not_finite_;
#ifdef TCONV_COMPUTES_VALUE
  std::optional<PackedValue> value_;
#endif
  int runs_;
  int64_t rows_;
};

// Behind the workspace of the convolution's gradients. call.grad: where g may be materialised.
template <typename Storage, typename Take>
int64_t with_chain_packer(const GradientCall& call, const GradientsPlan& plan, const Take& take) {
  if constexpr (sizeof(Storage) == 8) {
    return kUnsupportedKernel;
  } else {
    if (!packs_chain(call, plan)) return kUnsupportedKernel;
    return with_chain(call.of_chain.chain, [&](auto index) {
      const int64_t behind = round_up(plan.total_bytes, 256);
      WorkspacePlaces places(call.conv.workspace);
      places.reserve<char>(behind);
      GroupNormGradientCall chain = chain_call_of(call);
      chain.grad_value = const_cast<void*>(call.grad), chain.row_columns = chain.width;
      const ChainPacker<decltype(index)::value, Storage> packer(call, chain, *plan.weight, places);
#ifdef TCONV_COMPUTES_VALUE
      return packer.usable() ? take(packer, places.bytes()) : int64_t{kUnsupportedKernel};
#else
      return take(packer, places.bytes());
#endif
    });
  }
}

template <typename Storage>
int64_t chain_packed_bytes(const GradientCall& call) {
  DeviceLimits device;
  if (query_device_limits(&device) != kOk) return 0;  // the launch will say why
  const GradientsPlan plan(call, device);
  return with_chain_packer<Storage>(call, plan, [](const auto&, int64_t bytes) { return bytes; });
}

// kUnsupportedKernel where g has to be formed first.
inline int64_t chain_gradients_workspace_bytes(const GradientCall& call) {
  if (chain_alone(call)) return group_norm_gradient_workspace_bytes(chain_call_of(call));
  switch (call.conv.dtype) {
    case kFloat32: return chain_packed_bytes<float>(call);
    case kFloat16: return chain_packed_bytes<__half>(call);
    case kBFloat16: return chain_packed_bytes<__nv_bfloat16>(call);
    default: return kUnsupportedKernel;
  }
}

template <typename Storage>
int64_t launch_chain_gradients(const GradientCall& call) {
  if (chain_alone(call)) return launch_group_norm_gradient<Storage>(chain_call_of(call));
  DeviceLimits device;
  TCONV_RETURN_IF_ERROR(query_device_limits(&device));
  const GradientsPlan plan(call, device);
  return with_chain_packer<Storage>(call, plan, [&](const auto& packer, int64_t bytes) -> int64_t {
    if (call.conv.workspace_bytes < bytes) return kWorkspaceTooSmall;
    TCONV_RETURN_IF_ERROR(packer.prepare());
    GradientCall packing = call;
    packing.packer = &packer;
    if constexpr (sizeof(Storage) < 8)
      TCONV_RETURN_IF_ERROR(launch_packed_gradients<Storage>(packing, *plan.input, *plan.weight, *plan.packed, device));
    return packer.add_up();
  });
}

inline int64_t run_chain_gradients(const GradientCall& call) {
  switch (call.conv.dtype) {
    case kFloat32: return launch_chain_gradients<float>(call);
    case kFloat64: return launch_chain_gradients<double>(call);
    case kFloat16: return launch_chain_gradients<__half>(call);
    case kBFloat16: return launch_chain_gradients<__nv_bfloat16>(call);
    default: return kUnsupportedDType;
  }
}

}  // namespace cuda
}  // namespace tconv
