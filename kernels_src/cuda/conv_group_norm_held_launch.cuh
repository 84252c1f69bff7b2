// Host side of the kernel that holds a sample's outputs: is it to be used, what does it need, launch. Where it cannot
// be used, the caller goes another way.
#pragma once

#include "conv_group_norm_held.cuh"
#include "conv_group_norm_held_plan.h"
#include "conv_transpose_dispatch.cuh"
#include "group_norm_plan.cuh"
#include "hopper_part.cuh"

namespace tconv {
namespace cuda {
namespace held {

struct CallPlan {
  int64_t status;      // kOk, or why the call cannot be done
  const char* reason;  // the same in words
  Plan plan;
  KernelPlan fallback;  // nothing but its workspace and what launch_fallback reads
};

// Workspace: weight tiles, inverse scales, guard.
struct Workspace {
  static constexpr int64_t kScalesBytes = kChannels * 4;
  int64_t tiles_bytes, total_bytes;

  explicit Workspace(const Plan& plan)
      : tiles_bytes(int64_t{plan.weight_rows()} * plan.weight_stage_bytes),
        total_bytes(tiles_bytes + kScalesBytes + 256) {}
  uint4* tiles(void* base) const { return static_cast<uint4*>(base); }
  float* scales(void* base) const { return reinterpret_cast<float*>(static_cast<char*>(base) + tiles_bytes); }
  GuardState* guard(void* base) const {
    return reinterpret_cast<GuardState*>(static_cast<char*>(base) + tiles_bytes + kScalesBytes);
  }
};

inline CallPlan plan_anew(const ConvCall& call) {
  CallPlan result{};
  const auto refuse = [&](int64_t status, const char* reason) {
    result.status = status, result.reason = reason;
    return result;
  };
  const ConvTransposeLayer& p = call.layer;
  const bool wanted = call.kernel_choice == kHeld;
  if (!wanted && call.kernel_choice != kAuto) return refuse(kUnsupportedKernel, reason::kForced);
  if (has_no_outputs(p)) return refuse(kUnsupportedKernel, nullptr);
  DeviceLimits device;
  const int64_t status = query_device_limits(&device);
  if (status != kOk) return refuse(status, nullptr);
  const char* why = hopper::cannot_run(call, device);
  if (why == nullptr && !wanted) why = hopper_is_slower(p);
  if (why == nullptr) why = wants_one_launch(call);
  if (why == nullptr && call.dtype == kFloat32 && !fits_32_bit_indices(p)) why = reason::kLongIndices;
  if (why != nullptr) return refuse(kUnsupportedKernel, why);
  result.plan = make_plan(p, call.dtype == kFloat32 ? 4 : 2, static_cast<int>(device.smem_per_block), device.sm_count);
  if (!result.plan.usable) return refuse(kUnsupportedKernel, result.plan.reason);
  if (!wanted && !pays(result.plan, device.sm_count)) return refuse(kUnsupportedKernel, reason::kIdleProcessors);
  result.fallback.workspace_bytes = Workspace(result.plan).total_bytes;
  result.fallback.num_partials = 1;
  if (!add_fallback(result.fallback, call, device)) return refuse(kUnsupportedKernel, reason::kNoPortableTile);
  return result;
}

// status kOk: a sample's outputs can be held.
inline const CallPlan& plan_call(const ConvCall& call) { return remembered_plan<CallPlan, plan_anew>(call); }

// Of what blocks tell each other.
inline int64_t messages_bytes(const CallPlan& plan, const ConvGroupNormCall& call) {
  const int64_t groups = call.conv.layer.batch * call.group_norm.num_groups;
  return groups * static_cast<int64_t>(sizeof(Statistics) + plan.plan.blocks_per_sample() * sizeof(Entry));
}

inline int64_t workspace_bytes(const CallPlan& plan, const ConvGroupNormCall& call) {
  return round_up(plan.fallback.workspace_bytes, 256) + messages_bytes(plan, call);
}

template <typename Storage>
int64_t launch_weights(const Plan& plan, const ConvCall& call, void* workspace) {
  const Workspace layout(plan);
  hopper::WeightsArgs<Storage> weights{};
  weights.plan = hopper::plan_geometry(call.layer);
  weights.plan.num_sweeps = weights.plan.blocks_per_sweep = 1;
  weights.plan.sweep_tiles = plan.taps_h * plan.taps_w;
  weights.kernel_h = static_cast<int>(call.layer.kernel_h), weights.kernel_w = static_cast<int>(call.layer.kernel_w);
#ifdef TCONV_WALKS_DEPTH
  hopper::describe_depth(weights, call);
#endif
  weights.narrow_rows = true;
  weights.weight = static_cast<const Storage*>(call.weight);
  weights.tiles = layout.tiles(workspace);
  weights.inv_scale = layout.scales(workspace);
  weights.guard = layout.guard(workspace);
  return launch_kernel(hopper::transform_weights_hopper_kernel<Storage>, dim3(kChannels),
                       dim3(hopper::WeightsConfig::kThreads), 0, call.stream, weights);
}

template <typename Storage>
int64_t launch_held(const Args<Storage>& args, void* stream) {
  const Plan& plan = args.plan;
  const auto kernel = conv_group_norm_held_kernel<Storage>;
  TCONV_RETURN_IF_ERROR(allow_dynamic_smem(kernel, plan.smem_bytes));
  const dim3 grid(static_cast<unsigned>(args.samples_at_once * plan.blocks_per_sample()));
  return launch_together(kernel, grid, dim3(kThreads), plan.smem_bytes, stream, args);
}

// Where Hopper kernels are in two parts (hopper_part.cuh), this one is in the second, which has the time for it.
#if TCONV_HOPPER_PARTS == 2
constexpr int64_t kHeldOutputs = -1;  // none of Outputs
#endif

// launch_held, wherever it is compiled.
template <typename Storage>
int64_t launch_in_part(const Args<Storage>& args, void* stream) {
#if TCONV_HOPPER_PARTS == 2 && !defined(TCONV_HOPPER_PART)
  return TCONV_IN_PART(tconv_cuda_hopper, _1)(kHeldOutputs, &args, 0, stream);
#else
  return launch_held(args, stream);
#endif
}

#ifdef TCONV_HOPPER_PART
inline int64_t launch_of_part(int64_t outputs, const void* args, int num_sms, void* stream) {
#if TCONV_HOPPER_PARTS == 2 && TCONV_HOPPER_PART == 1
  if (outputs == kHeldOutputs) return launch_held(*static_cast<const Args<TCONV_HOPPER_STORAGE>*>(args), stream);
#endif
  return hopper::launch_of_part<Outputs::kWithMoments>(outputs, args, num_sms, stream);
}
#endif

// Enqueues everything that makes the normalised call.conv.out, except where *guard is raised: then that is not
// normalised, and `partials` holds its moments. *guard: on the device, or null where nothing raises it.
// cudaErrorCooperativeLaunchTooLarge: the blocks cannot all run at once, and no output has been written.
template <typename Storage>
int64_t launch(const CallPlan& call_plan, const ConvGroupNormCall& call, Moments* partials, void* workspace,
               const int** guard) {
  const ConvCall& conv = call.conv;
  const ConvTransposeLayer& p = conv.layer;
  const Plan& plan = call_plan.plan;
  const Workspace layout(plan);
  const auto stream = static_cast<cudaStream_t>(conv.stream);
  DeviceLimits device;
  TCONV_RETURN_IF_ERROR(query_device_limits(&device));
  GuardState* const state = layout.guard(workspace);
  if (sizeof(Storage) == 4)  // nothing raises the guard over 16-bit inputs
    TCONV_RETURN_IF_ERROR(cudaMemsetAsync(state, 0, sizeof(GuardState), stream));
  TCONV_RETURN_IF_ERROR(launch_weights<Storage>(plan, conv, workspace));

  Args<Storage> args{};
  args.plan = plan;
  args.by_pitch = FastDivisor::make(static_cast<uint32_t>(plan.pitch));
  args.x = static_cast<const Storage*>(conv.x);
  args.x_stride_n = p.x_stride_n, args.x_stride_c = p.x_stride_c;
  args.x_stride_h = p.x_stride_h, args.x_stride_w = p.x_stride_w;
  args.batch = static_cast<int>(p.batch), args.in_h = static_cast<int>(p.in_h), args.in_w = static_cast<int>(p.in_w);
#ifdef TCONV_WALKS_DEPTH
  args.whole_quads = hopper::loads_vectors(p) && p.in_channels % hopper::kHalfChannels == 0 &&
                     (p.in_h - 1) * p.x_stride_h + p.in_w < INT32_MAX &&
#else
  args.whole_quads = hopper::loads_vectors(p) && (p.in_h - 1) * p.x_stride_h + p.in_w < INT32_MAX &&
#endif
                     reinterpret_cast<uintptr_t>(conv.x) % (kVectorPixels * sizeof(Storage)) == 0;
  const bool one_piece =
      p.x_stride_h == p.in_w && p.x_stride_c == p.in_h * p.in_w && p.x_stride_n >= p.in_channels * p.x_stride_c;
  const bool aligned = reinterpret_cast<uintptr_t>(conv.x) % 16 == 0 && p.x_stride_n * sizeof(Storage) % 16 == 0;
  if (args.whole_quads && one_piece && aligned)
    args.prefetch_bytes = static_cast<int>(
        round_up(ceil_div(p.in_channels * p.x_stride_c * sizeof(Storage), 32 * plan.blocks_per_sample()), 16));
  args.pair_stores = p.out_w % 2 == 0 && p.out_channels % (2 * kPartner) == 0 &&
                     reinterpret_cast<uintptr_t>(conv.out) % (2 * sizeof(Storage)) == 0;
  args.out_h = static_cast<int>(p.out_h), args.out_w = static_cast<int>(p.out_w);
  args.plane_bytes = static_cast<uint32_t>(p.out_h * p.out_w * static_cast<int64_t>(sizeof(Storage)));
  args.weight_tiles = layout.tiles(workspace);
  args.inv_scale = layout.scales(workspace);
  args.guard = state;
  args.epilogue = make_epilogue_args<Result<Storage>>(conv);
  args.out = static_cast<Storage*>(conv.out);
  args.num_groups = static_cast<int>(call.group_norm.num_groups);
  args.channels_per_group = plan.out_channels / args.num_groups;
  args.inverse_values =
      static_cast<float>(1.0 / (static_cast<double>(args.channels_per_group) * static_cast<double>(p.out_h * p.out_w)));
  args.eps = static_cast<float>(call.group_norm.eps);
  args.norm_weight = static_cast<const Storage*>(call.group_norm.weight);
  args.norm_bias = static_cast<const Storage*>(call.group_norm.bias);
  args.statistics = norm::at_offset<Statistics>(workspace, round_up(call_plan.fallback.workspace_bytes, 256));
  args.entries = reinterpret_cast<Entry*>(args.statistics + p.batch * args.num_groups);
  TCONV_RETURN_IF_ERROR(cudaMemsetAsync(args.statistics, 0xFF, messages_bytes(call_plan, call), stream));

  args.samples_at_once = static_cast<int>(std::min<int64_t>(samples_at_once(plan, device.sm_count), p.batch));
  TCONV_RETURN_IF_ERROR(launch_in_part(args, conv.stream));
  *guard = call_plan.fallback.has_fallback ? &state->out_of_range : nullptr;
  return launch_fallback(call_plan.fallback, conv, ConvOutputs{conv.out, partials}, workspace, state);
}

}  // namespace held
}  // namespace cuda
}  // namespace tconv
