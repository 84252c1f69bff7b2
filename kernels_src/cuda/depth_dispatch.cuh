// Picks the kernel for slices of volumes (depth_walk.h), or says why others are to take the call in another form.
#pragma once

#include "conv_transpose_dispatch.cuh"

namespace tconv {
namespace cuda {

template <Outputs kOutputs>
KernelPlan depth_plan(const ConvCall& call) {
  const bool forced = call.kernel_choice == kHopper;
  if (call.kernel_choice != kAuto && !forced) return failed_plan(kUnsupportedKernel, reason::kForced);
  if (call.layer.in_channels == 0) return plain_plan(call);  // no tap
#ifdef TCONV_FEW_CHANNELS
  if (!forced && few_channels_serves(call)) {
    KernelPlan plan{};
    plan.kernel = kDirect;
    plan.direct.few_channels = true;
    plan.why_not = {reason::kFewDepthChannels, reason::kFewDepthChannels, nullptr};
    return plan;
  }
#endif
  const int64_t channels = call.layer.in_channels / call.layer.groups / call.depth.tap_count();
  const char* const no_eights = channels % kDepthChannels != 0 ? "" : nullptr;  // nobody is told
  if (forced) return no_eights != nullptr ? failed_plan(kUnsupportedKernel, no_eights) : hopper_plan<kOutputs>(call);
  const char* why = wants_one_launch(call);
#ifdef TCONV_INTERLEAVES
  const char* const few = why == nullptr ? leaves_tiles_half_empty(call) : why;
  if (few == reason::kFewGroupChannels || few == reason::kHalfTiles) {
    KernelPlan plan = direct_plan(call);
    plan.why_not = {few, few, nullptr};
    if (plan.direct.interleaved.serves(call)) return plan;  // the direct kernel by itself reads no slices
    if (why == nullptr && call.depth.residues() > 1)
      return failed_plan(kUnsupportedKernel, few);  // each by itself then
  }
#endif
  if (why == nullptr) why = call.dtype == kFloat64 ? reason::kFP64 : few_products(call);
  if (why == nullptr) why = hopper_is_slower(call.layer);
  if (why == nullptr) why = no_eights;
  return why != nullptr ? failed_plan(kUnsupportedKernel, why) : hopper_plan<kOutputs>(call);
}

#ifdef TCONV_KEEPS_MASK
// Does the kernel of a call leave a mask beside its outputs?
template <Outputs kOutputs>
bool keeps_mask(const ConvCall& call) {
  if (!call.depth.walks()) return false;
  const KernelPlan plan = choose_kernel<kOutputs>(call);
  if (plan.status != kOk) return false;
#ifdef TCONV_GATHERS_PIXELS
  if (plan.hopper.gathered_n > 0) return false;
#endif
  return plan.kernel == kPlain || (plan.kernel == kHopper && plan.hopper.twin != 0);
}

#endif
// What computes the outputs again where the Hopper kernel raised its guard.
inline int64_t launch_behind_slices(const KernelPlan& plan, const ConvCall& call, const ConvOutputs& outputs,
                                    void* workspace) {
#ifdef TCONV_MULTIPLIES_ZEROS
  const bool guarded = call.dtype == kFloat32 || hopper::watches_inputs(plan.hopper, call);
#else
  const bool guarded = call.dtype == kFloat32;  // nothing raises it over 16-bit inputs
#endif
  const GuardState* const guard = hopper::HopperWorkspace(plan.hopper).guard(workspace);
  return guarded ? launch_depth_plain(call, outputs.out, &guard->out_of_range) : kOk;
}

}  // namespace cuda
}  // namespace tconv
