// Forms the gradient of a chain, or of GroupNorm behind one, as it is packed: what the weight gradient's launches ask
// for where g is not in memory (planes_packer.h), of the whole batch or of a slice of it.
#pragma once

#include "chain_pack_rows.cuh"
#ifdef TCONV_PAIRS_CLASSES
#include "chain_pack_pairs.cuh"
#endif
#include "chain_sample.cuh"
#include "gradients.cuh"
#include "group_norm_gradient.cuh"

namespace tconv {
namespace cuda {

// Of a segment, that the next strip's has, too.
inline int pixels_beyond(const WeightGradientLayout& layout) { return (layout.taps_w - 1) * layout.step_w; }

template <int kChain, typename Storage>
class ChainPacker final : public PlanesPacker {
 public:
  using Inner = ChainInner<kChain, Storage>;
  using Kernels = GroupNormGradient<Inner, Storage>;
  using KernelArgs = typename Kernels::Args;
  using Args = ChainPackArgs<Inner, Storage>;
#ifdef TCONV_READS_MASK
  using Value = typename Args::Value;
#endif

  ChainPacker(const GradientCall& call, const GroupNormGradientCall& chain, const WeightGradientPlan& weight,
              WorkspacePlaces& places)
      : call_(call), chain_(chain), weight_(weight), kernels_(chain, inner_of(chain), false, places) {
    runs_ = static_cast<int>(ceil_div(weight.goes().layout.planes.rows, ChainPackConfig::kRows));
    rows_ = chain.batch * runs_ * weight.sliding.h.classes * weight.sliding.w.classes;
#ifdef TCONV_WALKS_DEPTH
    rows_ *= weight.sliding.d.plane_size * weight.sliding.d.classes;
#endif
    for (int i = 0; i < Args::kSums; ++i) {
      kernels_.args.sum_parts[i] = nullptr;  // summed here, not where g is materialised
      sums_[i] = wanted(i) == nullptr ? nullptr : places.reserve<float>(rows_ * chain.channels);
    }
    not_finite_ = places.reserve<int>(1);
  }

  // Of the whole batch.
  const KernelArgs& args() const { return kernels_.args; }

#ifndef TCONV_WALKS_DEPTH
  // Of images [first, first + count), whose output is `value`, where g may be written, too.
  KernelArgs of_images(int64_t first, int64_t count, Storage* value) const {
    KernelArgs args = kernels_.args;
    const int64_t planes = first * args.channels, values = planes * args.plane;
    constexpr int64_t kVector = GroupNormGradientConfig::kVector;
    args.vectors = args.vectors && values % kVector == 0 && norm_vectors_aligned(value, kVector * sizeof(Storage));
    args.value = value, args.grad_value = value, args.grad += values;
    args.num_planes = count * args.channels, args.num_sample_groups = count * args.num_groups;
    args.num_units = args.num_planes * args.parts_per_plane;
    if (args.num_groups > 0) {
      args.parts += planes * args.parts_per_plane, args.coefficients += first * args.num_groups;
      if (args.weight_parts != nullptr) args.weight_parts += planes;
      if (args.bias_parts != nullptr) args.bias_parts += planes;
    }
    return args;
  }

  // What forms g, but for g itself: where nothing is normalised, nothing.
  int64_t sum_up(const KernelArgs& args) const {
    void* const stream = call_.conv.stream;
    if (chain_.num_groups == 0) return kOk;
    constexpr int kThreads = GroupNormGradientConfig::kThreads;
    if (args.plane <= GroupNormGradientConfig::kMaxOfWarp)
      TCONV_RETURN_IF_ERROR(launch_overlapped(group_norm_gradient_sums_kernel<32, KernelArgs>,
                                              norm_blocks(args.num_units, kThreads / 32), dim3(kThreads), 0, stream,
                                              args));
    else
      TCONV_RETURN_IF_ERROR(launch_overlapped(group_norm_gradient_sums_kernel<kThreads, KernelArgs>,
                                              norm_blocks(args.num_units, 1), dim3(kThreads), 0, stream, args));
    return launch_overlapped(group_norm_gradient_finalise_kernel<KernelArgs>,
                             norm_blocks(args.num_sample_groups, kThreads / 32), dim3(kThreads), 0, stream, args);
  }

#endif
  int64_t sample(unsigned* largest) const override { return sample_of(kernels_.args, largest); }

  int64_t sample_of(const KernelArgs& args, unsigned* largest) const {
    if constexpr (sizeof(Storage) == 4) {
      using Config = MagnitudeSampleConfig;
      constexpr int64_t kMost = int64_t{Config::kBlocks} * Config::kThreads;
      const int64_t count = args.num_planes * args.plane;
      const int64_t step = std::max<int64_t>(1, ceil_div(count, kMost));
      const int64_t blocks = ceil_div(ceil_div(count, step), int64_t{Config::kThreads});
      return launch_overlapped(sample_chain_gradient_kernel<KernelArgs>, dim3(static_cast<unsigned>(blocks)),
                               dim3(Config::kThreads), 0, call_.conv.stream, args, step, largest);
    }
    return kOk;
  }

  int64_t pack(const PackedGoes& goes, int64_t first, int count, void* workspace, GradientState* state) const override {
#ifdef TCONV_READS_MASK
    const Value* const value = static_cast<const Value*>(chain_.value);
#else
    const Storage* const value = static_cast<const Storage*>(chain_.value);
#endif
#ifdef TCONV_WALKS_DEPTH
    const int64_t volume = first / weight_.sliding.d.plane_size;  // a go begins with one
    return pack_images(goes, first, count, value + volume * call_.grad_stride_n, workspace, state);
#else
    return pack_images(goes, first, count, value + first * call_.grad_stride_n, workspace, state);
#endif
  }

  // `value`: the first of these images'.
#ifdef TCONV_READS_MASK
  int64_t pack_images(const PackedGoes& goes, int64_t first, int count, const Value* value, void* workspace,
                      GradientState* state) const {
#else
  int64_t pack_images(const PackedGoes& goes, int64_t first, int count, const Storage* value, void* workspace,
                      GradientState* state) const {
#endif
    Args args{};
#ifdef TCONV_WALKS_DEPTH
    // Images are counted within the go, so that places are 32-bit numbers.
    args.planes = pack_args<Storage>(over_planes(call_), weight_.sliding, goes.layout, true, 0, count);
#ifdef TCONV_READS_MASK
    args.value = reinterpret_cast<const Storage*>(value);
    args.planes.from = static_cast<const Storage*>(chain_.grad) + (value - static_cast<const Value*>(chain_.value));
#else
    args.value = value;
    args.planes.from = static_cast<const Storage*>(chain_.grad) + (value - static_cast<const Storage*>(chain_.value));
#endif
    args.run_rows = static_cast<int>(ceil_div(goes.layout.planes.rows, int64_t{runs_}));
#else
    args.planes = pack_args<Storage>(call_, weight_.sliding, goes.layout, true, first, count);
    args.value = value;
    args.planes.from = static_cast<const Storage*>(chain_.grad) + first * args.planes.from_n;
#endif
    args.planes.to = goes.planes(workspace), args.planes.state = state;
    args.chain = kernels_.args;
    std::copy(sums_, sums_ + Args::kSums, args.sums);
    args.runs = runs_, args.first_image = static_cast<int>(first);
    args.beyond = pixels_beyond(goes.layout);
#ifdef TCONV_PAIRS_CLASSES
    if (packs_class_pairs(args.planes)) return pack_class_pairs(args, count);
#endif
    const auto kernel = pack_chain_rows_kernel<Args>;
    const PackedOperand& packed = args.planes.packed;
    const int64_t bytes = ChainPackConfig::kImages * packed.segment_bytes +
                          int64_t{ChainPackConfig::kRows} * args.beyond * WeightGradientConfig::kPixelBytes;
    TCONV_RETURN_IF_ERROR(allow_dynamic_smem(kernel, bytes));
    const int64_t blocks = int64_t{count} * args.planes.groups * packed.blocks * runs_;
    return launch_overlapped(kernel, dim3(static_cast<unsigned>(blocks)), dim3(ChainPackConfig::kThreads), bytes,
                             call_.conv.stream, args);
  }

#ifdef TCONV_PAIRS_CLASSES
  int64_t pack_class_pairs(const Args& args, int count) const {
    const auto kernel = pack_chain_pairs_kernel<Args>;
    const PackedOperand& packed = args.planes.packed;
    const int64_t bytes = ChainPairsConfig::smem_bytes(packed.segment_bytes, args.beyond);
    TCONV_RETURN_IF_ERROR(allow_dynamic_smem(kernel, bytes));
    const int64_t blocks = int64_t{count} * args.planes.groups * packed.blocks / ChainPairsConfig::kPlanes * runs_;
    return launch_overlapped(kernel, dim3(static_cast<unsigned>(blocks)), dim3(ChainPackConfig::kThreads), bytes,
                             call_.conv.stream, args);
  }

#endif
  int64_t materialise(const int* guard) const override {
    void* const stream = call_.conv.stream;
    const cudaError_t cleared = cudaMemsetAsync(not_finite_, 0, sizeof(int), static_cast<cudaStream_t>(stream));
    if (cleared != cudaSuccess) return static_cast<int64_t>(cleared);
    const ConvTransposeLayer& p = call_.conv.layer;
#ifdef TCONV_WALKS_DEPTH
    const int64_t taps = call_.depth.kernel * p.kernel_h * p.kernel_w;
    const int64_t count = p.in_channels * (p.out_channels / p.groups) * taps;
#else
    const int64_t count = p.in_channels * (p.out_channels / p.groups) * p.kernel_h * p.kernel_w;
#endif
    const int64_t needed = ceil_div(count, int64_t{NotFiniteConfig::kThreads});
    TCONV_RETURN_IF_ERROR(
        launch_kernel(note_not_finite_kernel<Storage>,
                      dim3(static_cast<unsigned>(std::min<int64_t>(needed, NotFiniteConfig::kMaxBlocks))),
                      dim3(NotFiniteConfig::kThreads), 0, stream,
                      static_cast<const Storage*>(static_cast<const void*>(call_.grad_weight)), count, not_finite_));
    return materialise_if(kernels_.args, not_finite_, guard);
  }

  // g where one of these is set; `second` may be null.
  int64_t materialise_if(KernelArgs args, const int* first, const int* second) const {
    args.only_if[0] = first, args.only_if[1] = second;
    constexpr int kMostBlocks = 1024;  // as a rule they find nothing to do
    constexpr int kThreads = GroupNormGradientConfig::kThreads;
    const dim3 blocks(static_cast<unsigned>(std::min<int64_t>(args.num_units, kMostBlocks)));
    return launch_overlapped(group_norm_gradient_apply_kernel<kThreads, KernelArgs>, blocks, dim3(kThreads), 0,
                             call_.conv.stream, args);
  }

  // The gradients that are sums over the batch.
  int64_t add_up() const {
#ifndef TCONV_WALKS_DEPTH
    if (chain_.num_groups > 0) TCONV_RETURN_IF_ERROR(kernels_.add_up_weights());
#endif
    for (int i = 0; i < Args::kSums; ++i)
      if (sums_[i] != nullptr)
        TCONV_RETURN_IF_ERROR(
            launch_channel_sums(sums_[i], static_cast<Storage*>(wanted(i)), rows_, chain_.channels, call_.conv.stream));
    return kOk;
  }

 private:
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
  int runs_;
  int64_t rows_;
};

}  // namespace cuda
}  // namespace tconv
