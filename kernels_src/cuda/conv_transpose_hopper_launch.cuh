// Host side of the Hopper convolution: is it to be used, what does it need, launch.
#pragma once

#include <algorithm>

#include "conv_transpose.cuh"
#include "conv_transpose_hopper.cuh"
#include "conv_transpose_hopper_plan.h"
#include "device_limits.h"
#ifdef TCONV_IN_PARTS
#include "hopper_part.cuh"
#endif
#ifdef TCONV_SAMPLES_INPUTS
#include "gradient_scales.cuh"
#endif
#include "overlapped_launch.cuh"
#ifdef TCONV_GATHERS_PIXELS
#include "conv_transpose_gathered_launch.cuh"
#endif
#ifdef TCONV_SPLITS_CHANNELS
#include "channel_parts.h"
#endif
#ifdef TCONV_WALKS_DEPTH
#include "depth_plan.h"
#endif
#ifdef TCONV_JOINS_COLUMNS
#include "joined_columns_rule.h"
#endif
#ifdef TCONV_MULTIPLIES_ZEROS
#include "conv_transpose_portable_launch.cuh"
#endif
#ifdef TCONV_PAIRS_ROWS
#include "row_pairs_weights.cuh"
#endif

namespace tconv {
namespace cuda {
#ifdef TCONV_SAMPLES_INPUTS
#include "input_scale.cuh"
#endif
namespace hopper {

// Why no kernel for Hopper can run a call on a device, or null.
inline const char* cannot_run(const ConvCall& call, const DeviceLimits& device) {
  if (device.compute_major != 9 || device.compute_minor != 0) return reason::kNotHopper;
  const bool sixteen_bit = call.dtype == kFloat16 || call.dtype == kBFloat16;
  if (sixteen_bit || (call.dtype == kFloat32 && call.math == kMathTF32)) return nullptr;
  return call.dtype == kFloat64 ? reason::kFP64 : reason::kStrictFP32;
}

#ifdef TCONV_MULTIPLIES_ZEROS
// May weights be zeros for taps that there are not? Then a kernel stands behind (finite_fallback.cuh), which in 16 bits
// must be able to do the layer.
inline bool may_multiply_zeros(const ConvCall& call) {
#ifdef TCONV_WALKS_DEPTH
  if (call.depth.walks()) return true;
#endif
  return call.dtype == kFloat32 || fits_32_bit_indices(call.layer);
}

#endif
// The plan of a call on a device, or an unusable one with the reason.
inline Plan plan_call(const ConvCall& call, Outputs outputs, const DeviceLimits& device) {
  Plan refused{};
  refused.usable = false;
  refused.reason = cannot_run(call, device);
  if (refused.reason != nullptr) return refused;
#ifdef TCONV_PAIRS_ROWS
  if (outputs == Outputs::kAlone && pairs_rows(call.layer) && may_multiply_zeros(call)) {
    const RowPairsLayer made(call.layer);
    const bool sixteen_bit = call.dtype != kFloat32;
    const int smem = static_cast<int>(device.smem_per_block);
    const Plan alone = make_plan(call.layer, outputs, sixteen_bit, smem, device.sm_count);
    Plan paired = make_plan(made.layer, outputs, sixteen_bit, smem, device.sm_count);
    paired.pairs = made.pairs;
    return paired.usable && made.weights() < INT32_MAX && (!alone.usable || paired.cost < alone.cost) ? paired : alone;
  }
#endif
#ifdef TCONV_JOINS_COLUMNS
  if (outputs == Outputs::kAlone && joins_columns(call.layer)) {
    const JoinedColumns joined = joined_columns(call.layer, call.dtype != kFloat32);
    const Plan plan = make_plan(layer_of(call.layer, joined), outputs, call.dtype != kFloat32,
                                static_cast<int>(device.smem_per_block), device.sm_count, joined);
    if (plan.usable && (!joins_zeros(call.layer, joined) || may_multiply_zeros(call))) return plan;
  }
#endif
#ifdef TCONV_WALKS_DEPTH
  if (outputs == Outputs::kAlone && call.depth.walks()) {
    const bool sixteen_bit = call.dtype != kFloat32;
    const int smem = static_cast<int>(device.smem_per_block);
    const Plan plan = plan_residues(call.layer, call.depth.residues(), sixteen_bit, smem, device.sm_count);
#ifdef TCONV_GATHERS_PIXELS
    return cheaper_gathered(plan, call, sixteen_bit, smem, device.sm_count);
#else
    return plan;
#endif
  }
#endif
#ifdef TCONV_SPLITS_CHANNELS
  if (outputs == Outputs::kAlone) {
    const bool sixteen_bit = call.dtype != kFloat32;
    const int smem = static_cast<int>(device.smem_per_block);
    const Plan plan = plan_parts(call.layer, 1, sixteen_bit, smem, device.sm_count);
#ifdef TCONV_GATHERS_PIXELS
    return cheaper_gathered(plan, call, sixteen_bit, smem, device.sm_count);
#else
    return plan;
#endif
  }
#endif
  return make_plan(call.layer, outputs, call.dtype != kFloat32, static_cast<int>(device.smem_per_block),
                   device.sm_count);
}

#ifdef TCONV_MULTIPLIES_ZEROS
// Must the data warps of a 16-bit call look for what is not finite (finite_inputs.cuh)?
inline bool watches_inputs(const Plan& plan, const ConvCall& call) {
  if (call.dtype == kFloat32) return false;
#ifdef TCONV_PAIRS_ROWS
  if (plan.pairs.out > 0) return true;
#endif
#ifdef TCONV_JOINS_COLUMNS
  return joins_zeros(call.layer, plan.joined);
#else
  return false;
#endif
}

#endif
#include "conv_transpose_hopper_workspace.cuh"

#ifdef TCONV_WALKS_DEPTH
// Fills in what depends on the call's depth.
template <typename Storage>
void describe_depth(HopperArgs<Storage>& args, const ConvCall& call) {
  const ConvTransposeLayer& p = call.layer;
  const bool walks = call.depth.walks();
  const int64_t taps = walks ? call.depth.taps : 1, plane = p.out_h * p.out_w;
  args.by_slices = FastDivisor::make(static_cast<uint32_t>(walks ? call.depth.slices : 1));
  args.by_tap_channels = FastDivisor::make(static_cast<uint32_t>(p.in_channels / p.groups / taps));
  args.in_depth = walks ? static_cast<int>(call.depth.in_depth) : 1;
  args.tap_slices = static_cast<int>(call.depth.step);
  for (int i = 0; i < call.depth.residues(); ++i) args.first_slices[i] = static_cast<int>(call.depth.first_of(i));
  args.x_stride_n = walks ? call.depth.x_stride_n : p.x_stride_n;
  args.x_stride_d = call.depth.x_stride_d;
  args.out_stride_n = walks ? call.depth.out_stride_n : p.out_channels * plane;
  args.out_stride_c = walks ? call.depth.out_stride_c : plane;
  args.out_stride_d = call.depth.out_stride_d;
  args.out_stride_residue = plane;
}

#endif
#ifdef TCONV_SAMPLES_INPUTS
// Clears the state of a call, which then says what its inputs are multiplied by. Of few pixels the sample would take as
// long as it can save.
inline int64_t launch_layer_scale(const ConvCall& call, GuardState* state) {
  constexpr int64_t kLeastPixels = 1 << 16;
  const ConvTransposeLayer& p = call.layer;
  bool samples = call.dtype == kFloat32 && p.batch * p.in_h * p.in_w >= kLeastPixels;
#ifdef TCONV_WALKS_DEPTH
  samples = samples && !call.depth.walks();  // images of volumes lie otherwise
#endif
  if (samples)
    return launch_input_scale(sampled_tensor(call.x, p.batch, p.in_channels, p.in_h, p.in_w, p.x_stride_n, p.x_stride_c,
                                             p.x_stride_h, p.x_stride_w),
                              state, call.stream);
  return static_cast<int64_t>(cudaMemsetAsync(state, 0, sizeof(GuardState), static_cast<cudaStream_t>(call.stream)));
}

#endif
template <int kShapeIndex, bool kPooled, typename Storage>
int64_t launch_shape(const Plan& plan, const HopperArgs<Storage>& args, int num_sms, void* stream) {
#ifdef TCONV_TAKES_TURNS
  if constexpr (takes_turns(kShapes[kShapeIndex], sizeof(Storage) == 2))
    if (plan.in_turns) return launch_in_turns<kShapeIndex>(plan, args, num_sms, stream);
#endif
  const auto kernel = conv_transpose_hopper_kernel<kShapeIndex, kPooled, Storage>;
  TCONV_RETURN_IF_ERROR(allow_dynamic_smem(kernel, plan.smem_bytes));
  const int blocks = std::min(plan.num_ranges(), num_sms);
#ifdef TCONV_GRADIENT_CHAINS
  if (args.packed.step == PackedInput::kOutputs)  // no kernel before it has waited for the pixels
    return launch_kernel(kernel, dim3(static_cast<unsigned>(blocks)),
                         dim3(HopperConfig<kShapeIndex, Storage>::kThreads), plan.smem_bytes, stream, args);
#endif
  return launch_overlapped(kernel, dim3(static_cast<unsigned>(blocks)),
                           dim3(HopperConfig<kShapeIndex, Storage>::kThreads), plan.smem_bytes, stream, args);
}

// The compiled kernel of the plan's shape: one per entry of kShapes that serves these outputs.
template <Outputs kOutputs, typename Storage, int kIndex = 0>
int64_t launch_planned(const Plan& plan, const HopperArgs<Storage>& args, int num_sms, void* stream) {
  if constexpr (kIndex < static_cast<int>(sizeof(kShapes) / sizeof(kShapes[0]))) {
    constexpr Shape kShape = kShapes[kIndex];
#ifdef TCONV_IN_PARTS
    if constexpr (is_of_part(kShape) && serves(kShape, kOutputs, sizeof(Storage) == 2))
#else
    if constexpr (serves(kShape, kOutputs, sizeof(Storage) == 2))
#endif
      if (plan.num_consumers == kShape.consumers && plan.n == kShape.n &&
          plan.producer_warps == kShape.producer_warps && plan.twin == kShape.twin)
        return launch_shape<kIndex, kOutputs == Outputs::kPooled>(plan, args, num_sms, stream);
    return launch_planned<kOutputs, Storage, kIndex + 1>(plan, args, num_sms, stream);
  }
  return kUnsupportedKernel;
}

// Enqueues the weight transform and the convolution. For fp32 the guard in `workspace` is raised, on the device, where
// the caller must run another kernel over the same outputs. Pooled: outputs.out receives pooled windows, and
// pool_weight says of which channels the smallest values (conv_transpose_hopper_pool.cuh).
#ifdef TCONV_READS_PACKED
// `packed`, or null: what is read in place of call.x, with the guard of those who packed it.
#endif
template <Outputs kOutputs, typename Storage>
#ifdef TCONV_READS_PACKED
int64_t launch_typed(const Plan& plan, const ConvCall& call, const ConvOutputs& outputs, const void* pool_weight,
                     void* workspace, int num_sms, const PackedInput* packed = nullptr,
                     GuardState* packed_guard = nullptr) {
  const HopperWorkspace layout(plan);
  GuardState* const guard = packed != nullptr ? packed_guard : layout.guard(workspace);
  const bool clears = packed == nullptr;
#else
int64_t launch_typed(const Plan& plan, const ConvCall& call, const ConvOutputs& outputs, const void* pool_weight,
                     void* workspace, int num_sms) {
  const HopperWorkspace layout(plan);
  GuardState* const guard = layout.guard(workspace);
  constexpr bool clears = true;
#endif
#ifdef TCONV_JOINS_COLUMNS
  const ConvTransposeLayer of_columns = layer_of(call.layer, plan.joined);
#endif
#ifdef TCONV_PAIRS_ROWS
  const bool paired = plan.pairs.out > 0;
  const RowPairsLayer made(call.layer);
#ifdef TCONV_JOINS_COLUMNS
  const ConvTransposeLayer& p = paired ? made.layer : of_columns;
#else
  const ConvTransposeLayer& p = paired ? made.layer : call.layer;
#endif
#else
#ifdef TCONV_JOINS_COLUMNS
  const ConvTransposeLayer& p = of_columns;
#else
  const ConvTransposeLayer& p = call.layer;
#endif
#endif
#ifdef TCONV_MULTIPLIES_ZEROS
  const bool watches = watches_inputs(plan, call);
  if ((sizeof(Storage) == 4 && clears) || watches) {
#else
  if (sizeof(Storage) == 4 && clears) {  // nothing raises the guard over 16-bit inputs
#endif
#ifdef TCONV_SAMPLES_INPUTS
    TCONV_RETURN_IF_ERROR(launch_layer_scale(call, guard));
#else
    const cudaError_t cleared =
        cudaMemsetAsync(&guard->out_of_range, 0, sizeof(int), static_cast<cudaStream_t>(call.stream));
    if (cleared != cudaSuccess) return static_cast<int64_t>(cleared);
#endif
  }

  WeightsArgs<Storage> weights{};
  weights.plan = plan;
  weights.kernel_h = static_cast<int>(p.kernel_h), weights.kernel_w = static_cast<int>(p.kernel_w);
#ifdef TCONV_JOINS_COLUMNS
  if (plan.joined.slots > 0) weights.kernel_w = static_cast<int>(call.layer.kernel_w);
#endif
#ifdef TCONV_WALKS_DEPTH
  describe_depth(weights, call);
#endif
  weights.weight = static_cast<const Storage*>(call.weight);
#ifdef TCONV_PAIRS_ROWS
  if (paired) {
    Storage* const of_rows = layout.template pair_weights<Storage>(workspace);
    TCONV_RETURN_IF_ERROR(launch_row_pairs_weights(call, made, of_rows));
    weights.weight = of_rows;
#ifdef TCONV_WALKS_DEPTH
    ConvCall of_pairs = call;  // whose taps in depth are channels already
    of_pairs.depth = {};
    describe_depth(weights, of_pairs);
#endif
  }
#endif
  weights.tiles = layout.tiles(workspace);
  weights.inv_scale = layout.scales(workspace);
  weights.guard = guard;
#ifdef TCONV_GATHERS_PIXELS
  if (plan.gathered_n > 0)
    TCONV_RETURN_IF_ERROR(launch_gathered_pixels<Storage>(plan, call, layout.pixels(workspace), guard));
#endif
  const int channels = plan.num_groups * plan.num_sweeps * plan.blocks_per_sweep * kBlockOC;
#ifdef TCONV_GRADIENT_CHAINS
  if (packed == nullptr || packed->step != PackedInput::kOutputs)
#endif
    TCONV_RETURN_IF_ERROR(launch_kernel(transform_weights_hopper_kernel<Storage>, dim3(channels),
                                        dim3(WeightsConfig::kThreads), 0, call.stream, weights));
#ifdef TCONV_GRADIENT_CHAINS
  if (packed != nullptr && packed->step == PackedInput::kWeights) return kOk;
#endif

#ifdef TCONV_GATHERS_PIXELS
  if (plan.gathered_n > 0) {
    GatheredArgs<Storage> gathered{};
    gathered.plan = plan;
    gathered.pixels = layout.pixels(workspace), gathered.weight_tiles = layout.tiles(workspace);
    gathered.inv_scale = layout.scales(workspace), gathered.epilogue = make_epilogue_args<Storage>(call);
    gathered.out = static_cast<Storage*>(outputs.out);
    return launch_gathered(gathered, call);
  }
#endif
  HopperArgs<Storage> args{};
  args.plan = plan;
#ifdef TCONV_READS_PACKED
  if (packed != nullptr) args.packed = *packed;
#endif
  args.x = static_cast<const Storage*>(call.x);
  args.x_stride_n = p.x_stride_n, args.x_stride_c = p.x_stride_c;
  args.x_stride_h = p.x_stride_h, args.x_stride_w = p.x_stride_w;
#ifdef TCONV_WALKS_DEPTH
  describe_depth(args, call);
#endif
  args.in_h = static_cast<int>(p.in_h), args.in_w = static_cast<int>(p.in_w);
  args.by_pitch = FastDivisor::make(static_cast<uint32_t>(plan.pitch));
  args.by_ring_ic_blocks = FastDivisor::make(static_cast<uint32_t>(plan.ring_ic_blocks));
  args.by_image_rows = FastDivisor::make(static_cast<uint32_t>(plan.image_rows));
  args.batch = static_cast<int>(p.batch);
  args.by_pooled_w = FastDivisor::make(static_cast<uint32_t>(std::max<int64_t>(p.out_w / 2, 1)));
  args.pool_weight = static_cast<const Storage*>(pool_weight);
  args.channel_halves = plan.in_channels_per_group > kHalfChannels ? 2 : 1;
  args.whole_batches = loads_vectors(p) && (p.in_h - 1) * p.x_stride_h + p.in_w < INT32_MAX &&
                       reinterpret_cast<uintptr_t>(call.x) % (kVectorPixels * sizeof(Storage)) == 0;
  args.pair_stores = (p.stride_w == 1 || plan.twin) && p.out_w % 2 == 0 &&
                     reinterpret_cast<uintptr_t>(outputs.out) % (2 * sizeof(Storage)) == 0;
  args.out_h = static_cast<int>(p.out_h), args.out_w = static_cast<int>(p.out_w);
  args.stride_h = static_cast<int>(p.stride_h), args.stride_w = static_cast<int>(p.stride_w);
#ifdef TCONV_PAIRS_ROWS
  args.out_h = static_cast<int>(call.layer.out_h);
  if (paired) args.stride_h = 2;
#endif
#ifdef TCONV_JOINS_COLUMNS
  args.out_w = static_cast<int>(call.layer.out_w);
#endif
  args.weight_tiles = layout.tiles(workspace);
  args.inv_scale = layout.scales(workspace);
  args.guard = guard;
#ifdef TCONV_MULTIPLIES_ZEROS
  if (sizeof(Storage) == 2 && !watches) args.guard = nullptr;
#endif
  args.epilogue = make_epilogue_args<Storage>(call);
  args.out = static_cast<Storage*>(outputs.out);
  args.partials = outputs.partials;
#ifdef TCONV_JOINS_QUADS
  args.joins = call.joined.at_once;
  if (args.joins) {
    const auto place = [](const void* at) {
      return reinterpret_cast<intptr_t>(at) / static_cast<intptr_t>(sizeof(Storage));
    };
    const int64_t first = place(call.joined.from != nullptr ? call.joined.from : call.joined.out);
    args.operand_distance = place(operand_of(call)) - first;
    args.result_distance = place(call.joined.out) - first;
    args.operands_begin = operands_begin(plan.smem_bytes);
    args.plan.smem_bytes = args.operands_begin + operand_bytes(plan.n, sizeof(Storage));
  }
#endif
#ifdef TCONV_REDUCES_CHANNELS
  args.extremum = outputs.extremum;
#endif
#ifdef TCONV_KEEPS_MASK
  args.mask = call.mask.to;
#endif
#ifdef TCONV_IN_PARTS
  return launch_in_part<kOutputs>(args, num_sms, call.stream);
#else
#ifdef TCONV_JOINS_QUADS
  return launch_planned<kOutputs>(args.plan, args, num_sms, call.stream);
#else
  return launch_planned<kOutputs>(plan, args, num_sms, call.stream);
#endif
#endif
}

template <Outputs kOutputs>
int64_t launch(const Plan& plan, const ConvCall& call, const ConvOutputs& outputs, void* workspace, int num_sms,
               const void* pool_weight = nullptr) {
  switch (call.dtype) {
#ifndef TCONV_WITHOUT_FP32
    case kFloat32: return launch_typed<kOutputs, float>(plan, call, outputs, pool_weight, workspace, num_sms);
#endif
#ifndef TCONV_WITHOUT_FP16
    case kFloat16: return launch_typed<kOutputs, __half>(plan, call, outputs, pool_weight, workspace, num_sms);
#endif
#ifndef TCONV_WITHOUT_BF16
    case kBFloat16: return launch_typed<kOutputs, __nv_bfloat16>(plan, call, outputs, pool_weight, workspace, num_sms);
#endif
    default: return kUnsupportedDType;
  }
}

}  // namespace hopper
}  // namespace cuda
}  // namespace tconv
