// The Hopper kernel of a convolution over the packed pixels of a slice of the batch.
#pragma once

#include "conv_transpose_dispatch.cuh"

namespace tconv {
namespace cuda {

struct SliceKernel {
  bool usable;
  hopper::Plan plan;
};

// Cut as the batch's. Measured: what is chosen for few images is a tenth slower on each of them.
inline SliceKernel slice_kernel(const ConvCall& of_batch, const ConvCall& of_slice, int num_sms) {
  const KernelPlan whole = choose_kernel<Outputs::kAlone>(of_batch);
  const bool stacked = whole.kernel == kHopper && whole.hopper.line_samples > 1;
  const KernelPlan made = stacked ? choose_kernel<Outputs::kAlone>(of_slice) : whole;
  // Even and odd columns at once are read from tensors alone.
  SliceKernel kernel = {made.status == kOk && made.kernel == kHopper && !made.hopper.twin, made.hopper};
#ifdef TCONV_GATHERS_PIXELS
  kernel.usable = kernel.usable && made.hopper.gathered_n == 0;
#endif
  if (kernel.usable && !stacked)
    hopper::choose_ranges(kernel.plan, of_slice.layer, kernel.plan.mirror_pixels == 0, num_sms);
  return kernel;
}

// Do both read weights that lie alike?
inline bool share_weights(const hopper::Plan& a, const hopper::Plan& b) {
  return a.n == b.n && a.num_consumers == b.num_consumers && a.blocks_per_sweep == b.blocks_per_sweep &&
         a.num_sweeps == b.num_sweeps && a.sweep_tiles == b.sweep_tiles && a.num_ic_blocks == b.num_ic_blocks &&
         a.ring_ic_blocks == b.ring_ic_blocks && a.num_weight_tiles == b.num_weight_tiles;
}

// Bytes for it, and for the strict kernel behind `strict` (launch_fallback), whose moments nobody asks for.
inline int64_t slice_workspace_bytes(const SliceKernel& kernel, const KernelPlan& strict) {
  if (!kernel.usable) return 0;
  return std::max(hopper::HopperWorkspace(kernel.plan).total_bytes,
                  strict.has_fallback ? strict.fallback_partials : strict.workspace_bytes);
}

}  // namespace cuda
}  // namespace tconv
