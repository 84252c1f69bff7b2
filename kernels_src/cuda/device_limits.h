// What the launchers need to know about the current device, asked once per device and host thread.
#pragma once

#include "check.h"

namespace tconv {
namespace cuda {

struct DeviceLimits {
  int compute_major, compute_minor, sm_count;
  int smem_per_sm, smem_per_block, smem_reserved_per_block;  // bytes; per_block is the opt-in maximum
};

inline int64_t query_device_limits(DeviceLimits* limits) {
  thread_local int cached_device = -1;
  thread_local DeviceLimits cached;
  int device = 0;
  TCONV_RETURN_IF_ERROR(cudaGetDevice(&device));
  if (device != cached_device) {
    DeviceLimits fresh = {};
    const std::pair<int*, cudaDeviceAttr> wanted[] = {
        {&fresh.compute_major, cudaDevAttrComputeCapabilityMajor},
        {&fresh.compute_minor, cudaDevAttrComputeCapabilityMinor},
        {&fresh.sm_count, cudaDevAttrMultiProcessorCount},
        {&fresh.smem_per_sm, cudaDevAttrMaxSharedMemoryPerMultiprocessor},
        {&fresh.smem_per_block, cudaDevAttrMaxSharedMemoryPerBlockOptin},
        {&fresh.smem_reserved_per_block, cudaDevAttrReservedSharedMemoryPerBlock},
    };
    for (const auto& item : wanted) TCONV_RETURN_IF_ERROR(cudaDeviceGetAttribute(item.first, item.second, device));
    cached = fresh;
    cached_device = device;
  }
  *limits = cached;
  return kOk;
}

}  // namespace cuda
}  // namespace tconv
