// Plans, remembered for each call that asked: the search for tiles takes tens of microseconds, and the layers of a
// network call by turns.
#pragma once

#include <cstring>
#include <unordered_map>

#include "../call.h"
#include "check.h"

namespace tconv {
namespace cuda {

// What a plan depends on, beside the code: the call's layer, dtype, math and forced choice, and the current device.
struct PlanKey {
  ConvTransposeLayer layer;
  int64_t dtype, math, kernel_choice, device;
#ifdef TCONV_WALKS_DEPTH
  int64_t slices, in_depth, out_stride_n;
#endif

  bool operator==(const PlanKey& other) const { return std::memcmp(this, &other, sizeof(PlanKey)) == 0; }
};

struct PlanKeyHash {
  size_t operator()(const PlanKey& key) const {
    const auto* words = reinterpret_cast<const uint64_t*>(&key);
    uint64_t hash = 0;
    for (size_t i = 0; i < sizeof(PlanKey) / sizeof(uint64_t); ++i)
      hash = (hash ^ words[i]) * 0x9E3779B97F4A7C15u ^ hash >> 29;
    return static_cast<size_t>(hash);
  }
};

// What plan_anew(call) says, asked once per key and host thread. The reference holds until the next call of this
// function.
template <typename Plan, Plan (*plan_anew)(const ConvCall&)>
const Plan& remembered_plan(const ConvCall& call) {
  constexpr size_t kMostPlans = 1024;  // sizes may change with every call
  thread_local std::unordered_map<PlanKey, Plan, PlanKeyHash> known;
  thread_local Plan unknown;
  int device = 0;
  const cudaError_t error = cudaGetDevice(&device);
#ifdef TCONV_WALKS_DEPTH
  const PlanKey key = {call.layer,
                       call.dtype,
                       call.math,
                       call.kernel_choice,
                       call.depth.key() << 32 | device,
                       call.depth.slices,
                       call.depth.in_depth,
                       call.depth.out_stride_n};
#else
  const PlanKey key = {call.layer, call.dtype, call.math, call.kernel_choice, device};
#endif
  const auto found = known.find(key);
  if (error == cudaSuccess && found != known.end()) return found->second;
  unknown = plan_anew(call);
  if (error != cudaSuccess || unknown.status > 0) return unknown;  // the device's fault, which may pass
  if (known.size() >= kMostPlans) known.clear();
  return known[key] = unknown;
}

}  // namespace cuda
}  // namespace tconv
