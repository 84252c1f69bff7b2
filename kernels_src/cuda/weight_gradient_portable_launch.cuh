// Host side of the portable weight gradient: what it can do, how much scratch it wants, its launches.
#pragma once

#include <algorithm>

#ifdef TCONV_WALKS_DEPTH
#include "depth_scales.cuh"
#endif
#include "device_limits.h"
#ifdef TCONV_GRADIENT_CHAINS
#include "planes_packer.h"
#endif
#ifdef TCONV_PAIRS_CLASSES
#include "weight_gradient_pack_pairs.cuh"
#endif
#include "weight_gradient_pack_rows.cuh"
#include "weight_gradient_portable.cuh"
#include "weight_gradient_sums.cuh"

namespace tconv {
namespace cuda {

// What is packed at a time, and where it lies in the workspace: state, x, planes, then the parts of sums.
struct PackedGoes {
  WeightGradientLayout layout;
  int images;   // of the batch, at a time
  int samples;  // of the layout, that they are
  int64_t x_bytes, planes_bytes, total_bytes;

  PackedGoes() = default;
  // in_place: nothing is packed in the workspace.
#ifdef TCONV_WALKS_DEPTH
  PackedGoes(const ConvTransposeLayer& p, const SlidingLayer& sliding, int pieces, bool in_place = false,
             bool may_narrow = false)
      : layout(weight_gradient_layout(p, sliding, pieces, may_narrow)),
#else
  PackedGoes(const ConvTransposeLayer& p, const SlidingLayer& sliding, int pieces, bool in_place = false)
      : layout(weight_gradient_layout(p, sliding, pieces)),
#endif
        images(static_cast<int>(p.batch)),
        samples(static_cast<int>(layout.samples(p.batch))),
        x_bytes(0),
        planes_bytes(0),
        total_bytes(256) {
    if (in_place) return;
    const int64_t of_x = layout.x.sample_segments(layout.groups, layout.strips) * layout.x.segment_bytes;
    const int64_t of_planes = layout.planes.sample_segments(layout.groups, layout.strips) * layout.planes.segment_bytes;
    // As many goes as it takes, of nearly the same size.
    using Config = WeightGradientConfig;
    const int64_t values = p.in_channels * p.in_h * p.in_w + p.out_channels * p.out_h * p.out_w;
    const int64_t allowed = std::clamp(p.batch * values * 2 * pieces * 5 / 4, Config::kPackedBytes,
                                       Config::kMostPackedBytes);  // 16-bit values, and room for what is read twice
    const int64_t most = std::max<int64_t>(1, allowed / (of_x + of_planes));
    const int64_t all = layout.samples(p.batch), goes = std::max<int64_t>(1, ceil_div(all, most));
    samples = static_cast<int>(std::max<int64_t>(1, ceil_div(all, goes)));
#ifdef TCONV_WALKS_DEPTH
    // Whole volumes, of planes in depth.
    const int64_t slices = sliding.d.plane_size;
    samples = static_cast<int>(std::max<int64_t>(1, samples / slices) * slices);
#endif
    images = samples * layout.abreast;
    x_bytes = round_up(samples * of_x, 256), planes_bytes = round_up(samples * of_planes, 256);
    total_bytes = 256 + x_bytes + planes_bytes;
  }
  GradientState* state(void* base) const { return static_cast<GradientState*>(base); }
  unsigned char* x(void* base) const { return static_cast<unsigned char*>(base) + 256; }
  unsigned char* planes(void* base) const { return x(base) + x_bytes; }
  float* parts(void* base) const { return reinterpret_cast<float*>(planes(base) + planes_bytes); }
};

struct PortableGradientPlan {
  bool usable;
  PackedGoes goes;
  int most_taps, num_groups, num_splits, num_stages, stage_bytes;
  int64_t total_bytes;
};

inline int64_t stage_bytes_for(const WeightGradientLayout& layout, int taps) {
  const int rows = std::min((taps - 1 + layout.taps_w - 1) / layout.taps_w + 1, layout.taps_h);
  return layout.x.segment_bytes + rows * layout.planes.segment_bytes;
}

inline PortableGradientPlan portable_gradient_plan(const ConvTransposeLayer& p, const SlidingLayer& sliding, int pieces,
                                                   const DeviceLimits& device, bool in_place = false) {
  using Config = WeightGradientPortableConfig;
  PortableGradientPlan plan{};
  plan.goes = PackedGoes(p, sliding, pieces, in_place);
  const WeightGradientLayout& layout = plan.goes.layout;
  plan.most_taps = Config::kNumWarps / column_parts(pieces);
  while (plan.most_taps > 1 &&
         (plan.most_taps > layout.taps() || 2 * stage_bytes_for(layout, plan.most_taps) > device.smem_per_block))
    plan.most_taps /= 2;
  const int64_t stage = stage_bytes_for(layout, plan.most_taps);
  const int64_t packing = std::max(layout.x.segment_bytes, layout.planes.segment_bytes);
  if (2 * stage > device.smem_per_block || packing > device.smem_per_block) return plan;
  plan.stage_bytes = static_cast<int>(stage);
  plan.num_stages = static_cast<int>(std::min<int64_t>(Config::kMaxStages, device.smem_per_block / stage));
  plan.num_groups = num_tap_groups(layout.taps(), plan.most_taps);
  // Twice as many blocks as run at once: those with few taps are done early.
  const int64_t others = int64_t{layout.pairs()} * plan.num_groups;
  const int64_t runs = int64_t{layout.strips} * layout.runs * plan.goes.samples;
  plan.num_splits = static_cast<int>(std::min<int64_t>(runs, std::max<int64_t>(1, 2 * device.sm_count / others)));
  plan.total_bytes = plan.goes.total_bytes + others * plan.num_splits * Config::kNumWarps *
                                                 WeightGradientConfig::kTileValues *
                                                 static_cast<int64_t>(sizeof(float));
  plan.usable = true;
  return plan;
}

// Where the portable kernel leaves the parts of a tap.
struct PortablePlaces {
  int taps, most_taps, num_pairs, num_splits, products, column_parts;

  __device__ __forceinline__ static int in_tile(int row, int column) {
    return row * WeightGradientConfig::kBlockChannels + column;
  }

  __device__ __forceinline__ TapParts operator()(int pair, int tap) const {
    int index = tap / most_taps;
    TapGroup group(index, taps, most_taps);
    while (tap >= group.first + group.count) group = TapGroup(++index, taps, most_taps);
    constexpr int kWarps = WeightGradientPortableConfig::kNumWarps;
    TapParts at;
    at.first = (static_cast<int64_t>(index) * num_pairs + pair) * num_splits * kWarps + tap - group.first;
    at.outer = num_splits, at.outer_step = kWarps;
    at.inner = min(kWarps / (group.count * column_parts), products), at.inner_step = group.count;
    return at;
  }
};

// ---- Packing ---------------------------------------------------------------------------------------------------

// Of images [first, first + count) of x or of g; but where they go.
template <typename Storage>
PackArgs<Storage> pack_args(const GradientCall& call, const SlidingLayer& sliding, const WeightGradientLayout& layout,
                            bool planes, int64_t first, int count) {
  const ConvTransposeLayer& p = call.conv.layer;
  PackArgs<Storage> args;
  args.groups = layout.groups, args.strips = layout.strips, args.segment = layout.segment;
  args.abreast = layout.abreast, args.by_pitch = FastDivisor::make(static_cast<uint32_t>(layout.pitch));
  args.count = count;
  args.packed = planes ? layout.planes : layout.x;
  args.to = nullptr, args.state = nullptr;
  args.planes = planes;
  if (planes) {
    args.from_n = call.grad_stride_n, args.from_c = call.grad_stride_c, args.from_h = call.grad_stride_h,
    args.from_w = call.grad_stride_w;
    args.from = static_cast<const Storage*>(call.grad) + first * args.from_n;
    args.size_h = static_cast<int>(p.out_h), args.size_w = static_cast<int>(p.out_w);
    args.stride_h = static_cast<int>(p.stride_h), args.stride_w = static_cast<int>(p.stride_w);
    args.class_step_h = sliding.h.classes > 1 ? static_cast<int>(p.dilation_h) : 0;
    args.class_step_w = sliding.w.classes > 1 ? static_cast<int>(p.dilation_w) : 0;
    args.first_h = static_cast<int>(p.padding_h), args.first_w = static_cast<int>(p.padding_w);
    args.classes = static_cast<int>(sliding.h.classes * sliding.w.classes),
    args.classes_w = static_cast<int>(sliding.w.classes);
    args.channels_per_class = static_cast<int>(p.out_channels / p.groups);
  } else {
    args.from_n = p.x_stride_n, args.from_c = p.x_stride_c, args.from_h = p.x_stride_h, args.from_w = p.x_stride_w;
    args.from = static_cast<const Storage*>(call.conv.x) + first * args.from_n;
    args.size_h = static_cast<int>(p.in_h), args.size_w = static_cast<int>(p.in_w);
    args.stride_h = args.stride_w = 1;
    args.class_step_h = args.class_step_w = args.first_h = args.first_w = 0;
    args.classes = args.classes_w = 1;
    args.channels_per_class = static_cast<int>(p.in_channels / p.groups);
  }
#ifdef TCONV_WALKS_DEPTH
  args.images = planes ? VolumeImages::of_grad(call) : VolumeImages::of_x(call.conv);
  args.first_image = static_cast<int>(first);
  args.from = static_cast<const Storage*>(planes ? call.grad : call.conv.x);
  args.channels_per_class = static_cast<int>(args.images.by_tap_channels.divisor);
  args.class_channels = args.classes * args.channels_per_class;
  args.narrow = planes && layout.narrow;
  if (planes) args.from_n |= call.depth.grad_stride;  // packs_pairs asks whether both are even
#endif
  args.num_segments =
      static_cast<unsigned>(layout.samples(count) * args.packed.sample_segments(args.groups, args.strips));
  return args;
}

// Do neighbouring pixels of every row lie side by side, in aligned pairs that are both there or both not?
template <typename Storage>
bool packs_pairs(const PackArgs<Storage>& args) {
  const int64_t even[] = {args.from_n,  args.from_c,       args.from_h,          args.size_w,
                          args.first_w, args.class_step_w, args.by_pitch.divisor};
  for (const int64_t value : even)
    if (value % 2 != 0) return false;
  return args.stride_w == 1 && args.from_w == 1 && reinterpret_cast<uintptr_t>(args.from) % (2 * sizeof(Storage)) == 0;
}

// Of images [first, first + count), x and planes.
#ifdef TCONV_PAIRS_CLASSES
// kHopper: for kernels of that device.
template <int kPieces, typename Storage, bool kHopper = false>
#else
template <int kPieces, typename Storage>
#endif
int64_t launch_pack(const GradientCall& call, const SlidingLayer& sliding, const PackedGoes& goes, int64_t first,
                    int count, void* workspace, GradientState* state) {
  PackRowsArgs<Storage> rows;
  bool one_class = true;  // to a chunk
  int64_t bytes = 0;
  for (const int planes : {0, 1}) {
    PackArgs<Storage>& args = rows.tensors[planes];
    args = pack_args<Storage>(call, sliding, goes.layout, planes != 0, first, count);
    args.to = planes != 0 ? goes.planes(workspace) : goes.x(workspace);
    args.state = state;
    one_class &= args.classes == 1 || args.channels_per_class % 8 == 0;
    rows.pairs[planes] =
        packs_pairs(args) && args.packed.segment_pixels <= PackRowsConfig::kMostPairs * PackRowsConfig::kStepPixels;
    rows.runs[planes] = static_cast<int>(ceil_div(args.packed.rows, PackRowsConfig::kRows));
    const int64_t strips = args.packed.sample_segments(args.groups, args.strips) / args.packed.rows;
    rows.sample_runs[planes] = static_cast<unsigned>(strips * rows.runs[planes]);
    bytes = std::max(bytes, args.packed.segment_bytes);
  }
  if (one_class) {
    const auto kernel =
        goes.layout.abreast > 1 ? pack_rows_kernel<true, kPieces, Storage> : pack_rows_kernel<false, kPieces, Storage>;
    TCONV_RETURN_IF_ERROR(allow_dynamic_smem(kernel, PackRowsConfig::kImages * bytes));
#ifdef TCONV_GRADIENT_CHAINS
    if (call.packer != nullptr) {
      rows.sample_runs[1] = 0;
      const int64_t of_x = goes.layout.samples(count) * rows.sample_runs[0];
      TCONV_RETURN_IF_ERROR(launch_overlapped(kernel, dim3(static_cast<unsigned>(of_x)), dim3(PackRowsConfig::kThreads),
                                              PackRowsConfig::kImages * bytes, call.conv.stream, rows));
      return call.packer->pack(goes, first, count, workspace, state);
    }
#endif
#ifdef TCONV_PAIRS_CLASSES
    if constexpr (kHopper && kPieces == 1) {
      const PackArgs<Storage>& planes = rows.tensors[1];
      if (packs_column_pairs(planes)) {
        const int64_t samples = goes.layout.samples(count);
        rows.sample_runs[1] = 0;
        TCONV_RETURN_IF_ERROR(launch_kernel(kernel, dim3(static_cast<unsigned>(samples * rows.sample_runs[0])),
                                            dim3(PackRowsConfig::kThreads), PackRowsConfig::kImages * bytes,
                                            call.conv.stream, rows));
        return launch_pack_column_pairs(planes, samples, call.conv.stream);
      }
    }
#endif
    const int64_t blocks = goes.layout.samples(count) * (rows.sample_runs[0] + rows.sample_runs[1]);
    return launch_kernel(kernel, dim3(static_cast<unsigned>(blocks)), dim3(PackRowsConfig::kThreads),
                         PackRowsConfig::kImages * bytes, call.conv.stream, rows);
  }
  const auto kernel = pack_pixels_kernel<kPieces, Storage>;
  for (const PackArgs<Storage>& args : rows.tensors) {
    TCONV_RETURN_IF_ERROR(allow_dynamic_smem(kernel, args.packed.segment_bytes));
    TCONV_RETURN_IF_ERROR(launch_kernel(kernel, dim3(args.num_segments), dim3(PackConfig::kThreads),
                                        args.packed.segment_bytes, call.conv.stream, args));
  }
  return kOk;
}

// Clears the state, and finds the scales of fp32 operands.
inline int64_t launch_scales(const GradientCall& call, GradientState* state) {
  const cudaError_t cleared =
      cudaMemsetAsync(state, 0, sizeof(GradientState), static_cast<cudaStream_t>(call.conv.stream));
  if (cleared != cudaSuccess) return static_cast<int64_t>(cleared);
  const ConvTransposeLayer& p = call.conv.layer;
  MagnitudeSampleArgs args;
#ifdef TCONV_WALKS_DEPTH
  args.tensors[0] = sampled_input(call.conv), args.tensors[1] = sampled_grad(call);
#else
  args.tensors[0] = sampled_tensor(call.conv.x, p.batch, p.in_channels, p.in_h, p.in_w, p.x_stride_n, p.x_stride_c,
                                   p.x_stride_h, p.x_stride_w);
  args.tensors[1] = sampled_tensor(call.grad, p.batch, p.out_channels, p.out_h, p.out_w, call.grad_stride_n,
                                   call.grad_stride_c, call.grad_stride_h, call.grad_stride_w);
#endif
  args.largest[0] = &state->largest_of_x, args.largest[1] = &state->guard.largest;
#ifdef TCONV_GRADIENT_CHAINS
  if (call.packer != nullptr) {
    TCONV_RETURN_IF_ERROR(launch_sample_magnitudes(args, 1, call.conv.stream));
    return call.packer->sample(&state->guard.largest);
  }
#endif
  return launch_sample_magnitudes(args, 2, call.conv.stream);
}

// ---- Sums ------------------------------------------------------------------------------------------------------

template <typename Storage, typename Places>
int64_t launch_weight_gradient_sums(const GradientCall& call, const SlidingLayer& sliding,
                                    const WeightGradientLayout& layout, const Places& places, const float* parts,
                                    const GradientState* state, const int* only_if) {
  const ConvTransposeLayer& p = call.conv.layer;
  WeightGradientSumsArgs<Storage, Places> args;
  args.layout = layout;
  args.places = places;
  args.parts = parts;
  args.grad_weight = static_cast<Storage*>(call.grad_weight);
  args.kernel_h = static_cast<int>(p.kernel_h), args.kernel_w = static_cast<int>(p.kernel_w);
  args.kernel_step_h = static_cast<int>(sliding.h.kernel_step),
  args.kernel_step_w = static_cast<int>(sliding.w.kernel_step);
  args.classes_w = static_cast<int>(sliding.w.classes);
  args.ic_per_group = static_cast<int>(p.in_channels / p.groups),
  args.oc_per_group = static_cast<int>(p.out_channels / p.groups);
#ifdef TCONV_WALKS_DEPTH
  args.weight = WeightPlaces(call.conv);
  args.classes_h = static_cast<int>(sliding.h.classes);
#endif
  args.state = state;
  args.only_if = only_if;
  const int blocks = layout.pairs() * layout.taps() * WeightGradientSumsConfig::kBlocksPerTile;
#ifdef TCONV_GRADIENT_CHAINS
  return launch_overlapped(
#else
  return launch_kernel(
#endif
      sum_weight_gradient_kernel<Storage, Places>, dim3(static_cast<unsigned>(blocks)),
      dim3(WeightGradientSumsConfig::kThreads), 0, call.conv.stream, args);
}

// ---- All of it -------------------------------------------------------------------------------------------------

// Pieces of 1: operands in 16 bits, with `state` scaled containers. Pieces of 3: fp32 operands, an fp32 answer.
// in_place: only where only_if says so; launched behind another kernel.
template <int kPieces, bool kBFloat16, bool kInPlace, typename Storage>
int64_t launch_weight_gradient_portable(const GradientCall& call, const SlidingLayer& sliding,
                                        const PortableGradientPlan& plan, void* workspace, GradientState* state,
                                        const int* only_if) {
  using Config = WeightGradientPortableConfig;
  const PackedGoes& goes = plan.goes;
  const int64_t batch = call.conv.layer.batch;
  for (int64_t first = 0; first < batch; first += goes.images) {
    const int count = static_cast<int>(std::min<int64_t>(goes.images, batch - first));
    if constexpr (!kInPlace)
      TCONV_RETURN_IF_ERROR((launch_pack<kPieces, Storage>(call, sliding, goes, first, count, workspace, state)));
    WeightGradientPortableArgs args{};
    args.layout = goes.layout;
    args.x = goes.x(workspace), args.planes = goes.planes(workspace), args.parts = goes.parts(workspace);
    args.most_taps = plan.most_taps, args.num_groups = plan.num_groups, args.num_splits = plan.num_splits;
    args.num_samples = static_cast<int>(goes.layout.samples(count));
    args.num_stages = plan.num_stages, args.stage_bytes = plan.stage_bytes;
    args.accumulate = first > 0;
    args.only_if = only_if;
    if constexpr (kInPlace) {
      args.pack_x = pack_args<float>(call, sliding, goes.layout, false, first, count);
      args.pack_planes = pack_args<float>(call, sliding, goes.layout, true, first, count);
    }
    const auto kernel = weight_gradient_portable_kernel<kPieces, kBFloat16, kInPlace>;
    const int64_t smem = int64_t{plan.num_stages} * plan.stage_bytes;
    TCONV_RETURN_IF_ERROR(allow_dynamic_smem(kernel, smem));
    TCONV_RETURN_IF_ERROR(
#ifdef TCONV_GRADIENT_CHAINS
        launch_overlapped(
#else
        launch_kernel(
#endif
            kernel, dim3(static_cast<unsigned>(goes.layout.pairs() * plan.num_groups * plan.num_splits)),
            dim3(Config::kNumThreads), smem, call.conv.stream, args));
  }
  const PortablePlaces places{goes.layout.taps(),
                              plan.most_taps,
                              goes.layout.pairs(),
                              plan.num_splits,
                              goes.layout.segment / WeightGradientConfig::kStepPixels,
                              column_parts(kPieces)};
  return launch_weight_gradient_sums<Storage>(call, sliding, goes.layout, places, goes.parts(workspace),
                                              kPieces == 1 ? state : nullptr, only_if);
}

}  // namespace cuda
}  // namespace tconv
