// Where the rest of a chain behind its first operand of the output's shape is applied: in a pass over the outputs
// (join_tensors.cuh), or by the convolution's kernel as it stores them (conv_transpose_hopper_join_quads.cuh).
#pragma once

#include "conv_transpose_dispatch.cuh"
#include "join_tensors.cuh"

namespace tconv {
namespace cuda {

// Does the kernel of this call read the operand itself? It has room for one, where its tile leaves shared memory.
template <Outputs kOutputs>
bool joins_quads(const ConvCall& call) {
  constexpr unsigned kTensors = Epilogue::kTensors;
  if (kTensors == 0 || (kTensors & (kTensors - 1)) != 0) return false;
  DeviceLimits device;
  if (query_device_limits(&device) != kOk) return false;
  const KernelPlan plan = choose_kernel<kOutputs>(call);
  if (plan.status != kOk || plan.kernel != kHopper || has_no_outputs(call.layer)) return false;
  const hopper::Plan& tiles = plan.hopper;
#ifdef TCONV_GATHERS_PIXELS
  if (tiles.gathered_n > 0) return false;
#endif
  const int value_bytes = call.dtype == kFloat32 ? 4 : 2;
  const uintptr_t addresses = reinterpret_cast<uintptr_t>(call.out) | reinterpret_cast<uintptr_t>(call.joined.out) |
                              reinterpret_cast<uintptr_t>(operand_of(call));
  return tiles.twin && hopper::leaves_from_registers(tiles.n) && tiles.out_channels_per_group % 16 == 0 &&
         call.layer.out_w % 2 == 0 && addresses % (2 * value_bytes) == 0 &&
         hopper::operands_begin(tiles.smem_bytes) + hopper::operand_bytes(tiles.n, value_bytes) <=
             device.smem_per_block;
}

// Enqueues the convolution and what follows. A call of two dimensions decides by itself; those of a volume have been
// asked all together, and the kernel behind them joins, too.
template <Outputs kOutputs>
int64_t launch_joined(const ConvCall& call) {
  ConvCall joining = call;
  bool walks = false;
#ifdef TCONV_WALKS_DEPTH
  walks = call.depth.walks();
#endif
  if (!walks) joining.joined.at_once = joins_quads<kOutputs>(call);
  TCONV_RETURN_IF_ERROR(launch_conv_transpose<kOutputs>(joining, {call.out, nullptr}, call.workspace));
  if (!joining.joined.at_once) return launch_join(call, nullptr);
  if (walks || call.dtype != kFloat32) return kOk;  // nothing raises a guard over 16-bit inputs
  // What the strict kernel wrote has not been joined.
  const hopper::HopperWorkspace layout(choose_kernel<kOutputs>(call).hopper);
  return launch_join(call, &layout.guard(call.workspace)->out_of_range);
}

}  // namespace cuda
}  // namespace tconv
