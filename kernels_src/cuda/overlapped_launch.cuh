// A launch that may start while the kernel before it in the stream ends (programmatic dependent launch, compute
// capability 9.0 and later): what a launch costs by itself, a few microseconds, is then hidden.
#pragma once

#include "check.h"
#include "device_limits.h"

namespace tconv {
namespace cuda {

// Returns once the kernels before this one in the stream are done and what they wrote can be read. A kernel that
// launch_overlapped starts calls it, in every block, before it touches that; elsewhere it returns at once.
__device__ __forceinline__ void await_previous_kernels() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// Lets such a kernel start as soon as every block of this one has called it, and there is room.
__device__ __forceinline__ void let_next_kernel_start() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// As launch_kernel.
template <typename... Params, typename... Args>
int64_t launch_overlapped(void (*kernel)(Params...), dim3 grid, dim3 block, int64_t dynamic_smem_bytes, void* stream,
                          Args&&... args) {
  DeviceLimits device;
  TCONV_RETURN_IF_ERROR(query_device_limits(&device));
  cudaLaunchAttribute attribute = {};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config = launch_config(grid, block, dynamic_smem_bytes, stream);
  config.attrs = &attribute;
  config.numAttrs = device.compute_major >= 9 ? 1 : 0;
  return launch_configured(config, kernel, std::forward<Args>(args)...);
}

// As launch_kernel, of blocks that wait for each other: all of them run at once, or the launch fails and none does.
template <typename... Params, typename... Args>
int64_t launch_together(void (*kernel)(Params...), dim3 grid, dim3 block, int64_t dynamic_smem_bytes, void* stream,
                        Args&&... args) {
  cudaLaunchAttribute attribute = {};
  attribute.id = cudaLaunchAttributeCooperative;
  attribute.val.cooperative = 1;
  cudaLaunchConfig_t config = launch_config(grid, block, dynamic_smem_bytes, stream);
  config.attrs = &attribute;
  config.numAttrs = 1;
  return launch_configured(config, kernel, std::forward<Args>(args)...);
}

}  // namespace cuda
}  // namespace tconv
