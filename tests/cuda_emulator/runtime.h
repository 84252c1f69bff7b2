// The few functions of CUDA's runtime that the host side calls, for emulated devices: compute capability, processors.
#pragma once

#include <cxxabi.h>
#include <dlfcn.h>

#include <tuple>
#include <utility>
#include <vector>

#include "memory.h"

namespace emu {

struct Device {
  int major, minor, processors, shared_bytes, l2_bytes;
};
// Device 1 is like an sm_80, device 3 like an sm_75. Few processors so that persistent blocks walk far, and a small L2
// for few samples.
constexpr Device kDevices[] = {{9, 0, 3, 232448, 400 << 10},
                               {8, 0, 2, 166912, 400 << 10},
                               {9, 0, 132, 232448, 50 << 20},
                               {7, 5, 2, 65536, 400 << 10}};
inline int device = 0;
inline uint32_t seed = 0;
inline bool together = false;              // are cooperative launches accepted?
inline bool idle = false;                  // then launches and memsets do nothing, whatever the addresses
inline std::vector<const void*> launched;  // the kernels, in order
// What a kernel may ask for without cudaFuncSetAttribute, and what others may since, by device and kernel.
constexpr size_t kDefaultShared = 48 << 10;
inline std::map<std::pair<int, const void*>, size_t> allowed_shared;

inline std::string kernel_name(const void* kernel) {
  Dl_info about = {};
  if (dladdr(kernel, &about) == 0 || about.dli_sname == nullptr) return "a kernel";
  int status = 0;
  char* const readable = abi::__cxa_demangle(about.dli_sname, nullptr, nullptr, &status);
  std::string name = status == 0 ? readable : about.dli_sname;
  std::free(readable);
  const size_t end_of_template = name.find(">(");  // template arguments have parentheses too
  name.resize(std::min(name.size(), end_of_template == std::string::npos ? name.find('(') : end_of_template + 1));
  return name.compare(0, 5, "void ") == 0 ? name.substr(5) : name;
}

template <typename... Params>
struct Launch final : Body {
  void (*kernel)(Params...);
  std::tuple<std::decay_t<Params>...> arguments;
  template <typename... Args>
  Launch(void (*k)(Params...), Args&&... args) : kernel(k), arguments(std::forward<Args>(args)...) {}
  void run() override { std::apply(kernel, arguments); }
  void enter(int thread) override { threadIdx = dim3(thread); }
  void explain(char* to, size_t room, const char* fault) override {
    const std::string name = kernel_name(reinterpret_cast<const void*>(kernel));
    char thread[32] = "some thread";
    if (current >= 0) std::snprintf(thread, sizeof thread, "thread %d", current);
    std::snprintf(to, room, "%s, by %s of block (%u, %u, %u) of %.200s", fault, thread, blockIdx.x, blockIdx.y,
                  blockIdx.z, name.c_str());
  }
};

template <typename... Params, typename... Args>
cudaError_t launch_kernel(const cudaLaunchConfig_t* config, void (*kernel)(Params...), Args&&... args) {
  Launch<Params...> launch(kernel, std::forward<Args>(args)...);
  gridDim = config->gridDim;
  blockDim = config->blockDim;
  const int threads = blockDim.x;
  if (threads > kMaxThreads || blockDim.y * blockDim.z != 1) return cudaErrorInvalidConfiguration;
  const auto allowed = allowed_shared.find({device, reinterpret_cast<const void*>(kernel)});
  if (config->dynamicSmemBytes >
      (allowed == allowed_shared.end() ? kDefaultShared : std::max(kDefaultShared, allowed->second)))
    return cudaErrorInvalidValue;
  for (unsigned i = 0; i < config->numAttrs; ++i)
    if (config->attrs[i].id == cudaLaunchAttributeCooperative && !together) return cudaErrorCooperativeLaunchTooLarge;
  launched.push_back(reinterpret_cast<const void*>(kernel));
  if (idle) return cudaSuccess;
  body = &launch;
  failure[0] = 0;
  resize_shared(config->dynamicSmemBytes);
  const FaultHandler handler;
  for (unsigned z = 0; z < gridDim.z; ++z)
    for (unsigned y = 0; y < gridDim.y; ++y)
      for (unsigned x = 0; x < gridDim.x; ++x) {
        blockIdx = dim3(x, y, z);
        num_threads = threads;
        begin_shared();
        begin_block();
        if (!run_block(threads, seed)) return failure[0] != 0 ? cudaErrorIllegalAddress : cudaErrorLaunchTimeout;
        if (!check_fences()) return cudaErrorIllegalAddress;
      }
  return cudaSuccess;
}

}  // namespace emu

#define cudaLaunchKernelEx emu::launch_kernel

template <typename... Params>
cudaError_t cudaFuncSetAttribute(void (*kernel)(Params...), cudaFuncAttribute, int bytes) {
  if (bytes > emu::kDevices[emu::device].shared_bytes) return cudaErrorInvalidValue;
  emu::allowed_shared[{emu::device, reinterpret_cast<const void*>(kernel)}] = bytes;
  return cudaSuccess;
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
  if (!emu::idle) std::memset(at, value, bytes);
  return cudaSuccess;
}
cudaError_t cudaGetLastError() { return cudaSuccess; }
const char* cudaGetErrorString(cudaError_t error) {
  if (error == cudaErrorCooperativeLaunchTooLarge) return "the blocks cannot all run at once";
  if (error == cudaErrorIllegalAddress) return emu::failure;
  return error == cudaErrorLaunchTimeout ? "the block's threads wait for each other for ever" : "an error";
}
}
