// Error handling and launching for the host side: every call is checked, nothing prints, nothing throws.
#pragma once

#include <cuda_runtime.h>

#include <map>
#include <mutex>
#include <unordered_map>
#include <utility>

#include "../common.h"

// Hands the first non-zero Status or cudaError_t to the caller.
#define TCONV_RETURN_IF_ERROR(expression)                          \
  do {                                                             \
    const int64_t tconv_status = static_cast<int64_t>(expression); \
    if (tconv_status != ::tconv::kOk) return tconv_status;         \
  } while (0)

namespace tconv {
namespace cuda {

constexpr int kMostDevices = 64;  // whose attributes are remembered

inline cudaLaunchConfig_t launch_config(dim3 grid, dim3 block, int64_t dynamic_smem_bytes, void* stream) {
  cudaLaunchConfig_t config = {};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = static_cast<size_t>(dynamic_smem_bytes);
  config.stream = static_cast<cudaStream_t>(stream);
  return config;
}

// Enqueues `kernel` and returns the error of this very launch. A failed launch also sets the runtime's
// "last error"; it is taken back here so that the host framework does not report it a second time.
template <typename... Params, typename... Args>
int64_t launch_configured(const cudaLaunchConfig_t& config, void (*kernel)(Params...), Args&&... args) {
  const cudaError_t error = cudaLaunchKernelEx(&config, kernel, std::forward<Args>(args)...);
  if (error != cudaSuccess) (void)cudaGetLastError();
  return static_cast<int64_t>(error);
}

template <typename... Params, typename... Args>
int64_t launch_kernel(void (*kernel)(Params...), dim3 grid, dim3 block, int64_t dynamic_smem_bytes, void* stream,
                      Args&&... args) {
  return launch_configured(launch_config(grid, block, dynamic_smem_bytes, stream), kernel, std::forward<Args>(args)...);
}

// Lets `kernel` ask for that much dynamic shared memory (needed above 48 KB; harmless below). What a host thread has
// seen allowed it remembers, as asking takes a microsecond. What is allowed is the process's, and only ever rises:
// another thread may count on more.
template <typename... Params>
int64_t allow_dynamic_smem(void (*kernel)(Params...), int64_t bytes) {
  thread_local std::unordered_map<const void*, int64_t> seen[kMostDevices];
  static std::mutex guard;
  static std::map<std::pair<int, const void*>, int64_t> of_process;
  int device = 0;
  TCONV_RETURN_IF_ERROR(cudaGetDevice(&device));
  const void* const key = reinterpret_cast<const void*>(kernel);
  int64_t unknown = 0;
  int64_t& known = device < kMostDevices ? seen[device][key] : unknown;
  if (bytes <= known) return kOk;
  const std::lock_guard<std::mutex> lock(guard);
  int64_t& allowed = of_process[{device, key}];
  if (bytes > allowed) {
    const cudaError_t error =
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes));
    if (error != cudaSuccess) {
      (void)cudaGetLastError();
      return static_cast<int64_t>(error);
    }
    allowed = bytes;
  }
  known = allowed;
  return kOk;
}

// What a non-zero return code means.
inline const char* error_string(int64_t code) {
  switch (code) {
    case kUnsupportedDType: return "unsupported dtype";
    case kUnsupportedKernel: return "the forced kernel cannot do this layer";
    case kWorkspaceTooSmall: return "workspace too small";
    default: return code < 0 ? "unknown status" : cudaGetErrorString(static_cast<cudaError_t>(code));
  }
}

}  // namespace cuda
}  // namespace tconv
