// The few functions of CUDA's runtime that the host side calls, for emulated devices: compute capability, processors.
#pragma once

#include <tuple>
#include <utility>

#include "memory.h"

namespace emu {

struct Device {
  int major, minor, processors, shared_bytes, l2_bytes;
};
// Device 1 is like an sm_80. Few processors so that persistent blocks walk far, and a small L2 for few samples.
constexpr Device kDevices[] = {{9, 0, 3, 232448, 400 << 10}, {8, 0, 2, 166912, 400 << 10}, {9, 0, 132, 232448, 50 << 20}};
inline int device = 0;
inline uint32_t seed = 0;
inline bool together = false;  // are cooperative launches accepted?
inline int64_t num_launches = 0;

template <typename... Params>
struct Launch final : Body {
  void (*kernel)(Params...);
  std::tuple<std::decay_t<Params>...> arguments;
  template <typename... Args>
  Launch(void (*k)(Params...), Args&&... args) : kernel(k), arguments(std::forward<Args>(args)...) {}
  void run() override { std::apply(kernel, arguments); }
  void enter(int thread) override { threadIdx = dim3(thread); }
};

template <typename... Params, typename... Args>
cudaError_t launch_kernel(const cudaLaunchConfig_t* config, void (*kernel)(Params...), Args&&... args) {
  Launch<Params...> launch(kernel, std::forward<Args>(args)...);
  gridDim = config->gridDim;
  blockDim = config->blockDim;
  const int threads = blockDim.x;
  if (threads > kMaxThreads || blockDim.y * blockDim.z != 1 || config->dynamicSmemBytes > static_cast<size_t>(kDevices[device].shared_bytes))
    return cudaErrorInvalidConfiguration;
  for (unsigned i = 0; i < config->numAttrs; ++i)
    if (config->attrs[i].id == cudaLaunchAttributeCooperative && !together) return cudaErrorCooperativeLaunchTooLarge;
  body = &launch;
  ++num_launches;
  for (unsigned z = 0; z < gridDim.z; ++z)
    for (unsigned y = 0; y < gridDim.y; ++y)
      for (unsigned x = 0; x < gridDim.x; ++x) {
        blockIdx = dim3(x, y, z);
        num_threads = threads;
        begin_shared(config->dynamicSmemBytes);
        begin_block();
        if (!run_block(threads, seed)) return cudaErrorLaunchTimeout;
      }
  return cudaSuccess;
}

}  // namespace emu

#define cudaLaunchKernelEx emu::launch_kernel

template <typename... Params>
cudaError_t cudaFuncSetAttribute(void (*)(Params...), cudaFuncAttribute, int bytes) {
  return bytes <= emu::kDevices[emu::device].shared_bytes ? cudaSuccess : cudaErrorInvalidValue;
}

extern "C" {
cudaError_t cudaGetDevice(int* device) {
  *device = emu::device;
  return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) {
  const emu::Device& of = emu::kDevices[device];
  switch (attribute) {
    case cudaDevAttrComputeCapabilityMajor: *value = of.major; return cudaSuccess;
    case cudaDevAttrComputeCapabilityMinor: *value = of.minor; return cudaSuccess;
    case cudaDevAttrMultiProcessorCount: *value = of.processors; return cudaSuccess;
    case cudaDevAttrMaxSharedMemoryPerMultiprocessor: *value = of.shared_bytes + 1024; return cudaSuccess;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin: *value = of.shared_bytes; return cudaSuccess;
    case cudaDevAttrReservedSharedMemoryPerBlock: *value = 1024; return cudaSuccess;
    case cudaDevAttrL2CacheSize: *value = of.l2_bytes; return cudaSuccess;
    default: return cudaErrorInvalidValue;
  }
}
cudaError_t cudaMemsetAsync(void* at, int value, size_t bytes, cudaStream_t) {
  std::memset(at, value, bytes);
  return cudaSuccess;
}
cudaError_t cudaGetLastError() { return cudaSuccess; }
const char* cudaGetErrorString(cudaError_t error) {
  if (error == cudaErrorCooperativeLaunchTooLarge) return "the blocks cannot all run at once";
  return error == cudaErrorLaunchTimeout ? "the block's threads wait for each other for ever" : "an error";
}
}
