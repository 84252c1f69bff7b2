// A dtype's Hopper kernels take longest to compile and are parts of their own (dtype_parts.h): one, of fp32 two.
// TCONV_HOPPER_PARTS says how many; TCONV_HOPPER_PART which one this is, of TCONV_HOPPER_STORAGE. Where only the first
// is defined, calls go to those parts; without both a translation unit has its Hopper kernels itself.
#pragma once

#include <type_traits>

#include "conv_transpose_hopper.cuh"
#ifdef TCONV_TAKES_TURNS
#include "conv_transpose_hopper_turns.cuh"
#endif
#include "dtype_parts.h"

#if defined(TCONV_HOPPER_PARTS) && !defined(TCONV_HOPPER_PART)
TCONV_EXPORT int64_t TCONV_IN_PART(tconv_cuda_hopper, _0)(int64_t outputs, const void* args, int num_sms, void* stream);
TCONV_EXPORT int64_t TCONV_IN_PART(tconv_cuda_hopper, _1)(int64_t outputs, const void* args, int num_sms, void* stream);
#endif

namespace tconv {
namespace cuda {
namespace hopper {

// Which of two parts has the kernels of so many columns and data warps: either takes about as long.
constexpr int part_of_two(int n, int producer_warps) { return n <= 128 && producer_warps <= 4 ? 1 : 0; }

constexpr bool is_of_part(Shape shape) {
#ifdef TCONV_HOPPER_PART
  return TCONV_HOPPER_PARTS == 1 || part_of_two(shape.n, shape.producer_warps) == TCONV_HOPPER_PART;
#else
  return true;
#endif
}

// conv_transpose_hopper_launch.cuh
template <Outputs kOutputs, typename Storage, int kIndex>
int64_t launch_planned(const Plan& plan, const HopperArgs<Storage>& args, int num_sms, void* stream);

// launch_planned, wherever it is compiled.
template <Outputs kOutputs, typename Storage>
int64_t launch_in_part(const HopperArgs<Storage>& args, int num_sms, void* stream) {
#if defined(TCONV_HOPPER_PARTS) && !defined(TCONV_HOPPER_PART)
  constexpr int64_t outputs = static_cast<int64_t>(kOutputs);
#if TCONV_HOPPER_PARTS == 2
  if (part_of_two(args.plan.n, args.plan.producer_warps) == 1)
    return TCONV_IN_PART(tconv_cuda_hopper, _1)(outputs, &args, num_sms, stream);
#endif
  return TCONV_IN_PART(tconv_cuda_hopper, _0)(outputs, &args, num_sms, stream);
#else
  return launch_planned<kOutputs, Storage, 0>(args.plan, args, num_sms, stream);
#endif
}

#ifdef TCONV_HOPPER_PART
// kOutputs: those that are wanted of convolutions.
template <Outputs... kOutputs>
int64_t launch_of_part(int64_t outputs, const void* args, int num_sms, void* stream) {
  using Storage = TCONV_HOPPER_STORAGE;
  const auto& typed = *static_cast<const HopperArgs<Storage>*>(args);
  int64_t status = kUnsupportedKernel;
  const auto launch = [&](auto kind) {
    if (outputs == static_cast<int64_t>(kind()))
      status = launch_planned<kind(), Storage, 0>(typed.plan, typed, num_sms, stream);
  };
  (launch(std::integral_constant<Outputs, kOutputs>()), ...);
  return status;
}
#endif

}  // namespace hopper
}  // namespace cuda
}  // namespace tconv

// The function that calls to a part go to; the argument says which function with these parameters does the work.
#define TCONV_EXPORT_HOPPER_PART(...)                                                                    \
  TCONV_EXPORT int64_t tconv_cuda_hopper(int64_t outputs, const void* args, int num_sms, void* stream) { \
    return __VA_ARGS__(outputs, args, num_sms, stream);                                                  \
  }
