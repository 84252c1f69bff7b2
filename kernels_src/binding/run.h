// From checked tensors to one call of the kernels: dtype, workspace, device and stream.
#pragma once

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "arguments.h"
#include "explain.h"
#include "kernel_names.h"

namespace tconv {
namespace binding {

constexpr int64_t kWorkspaceAlignment = 256;
constexpr int64_t kSmallWorkspace = 16 << 10;  // on a CPU cheaper than a tensor

// How fp32 products are formed is the caller's to say (it reads PyTorch's switch); other dtypes ignore it.
inline ConvCall make_call(const ConvTransposeLayer& layer, int64_t dtype, bool tf32) {
  ConvCall call{};
  call.layer = layer;
  call.dtype = dtype;
  call.math = dtype == kFloat32 && tf32 ? kMathTF32 : kMathStrict;
  call.kernel_choice = kernel_choice(std::getenv("TCONV_KERNEL"));
  return call;
}

// `why`: of a forced kernel that cannot run, or empty; `error`: of a status that is CUDA's.
[[noreturn]] inline void raise_failure(int64_t status, const std::string& why, const char* error) {
  switch (status) {
    case kUnsupportedDType: refuse("the kernel does not support this dtype");
    case kUnsupportedKernel: refuse("the kernel forced by TCONV_KERNEL cannot run this layer", why);
    case kWorkspaceTooSmall: refuse("the workspace is too small");
    default: break;
  }
  if (status < 0) refuse("status ", status);
  refuse("CUDA error ", status, ": ", error);
}

// What a half of the library has for a pattern's argument block.
template <typename Call>
struct Half {
  int64_t (*workspace_bytes)(const Call*);
  int64_t (*run)(const Call*);
  const char* (*error_string)(int64_t);
};

// Behind an error's text, why a forced kernel cannot run the call: asked once more, as that runs nothing.
template <typename Call>
std::string why_not(int64_t status, Call call, const Half<Call>& half) {
  if (status != kUnsupportedKernel) return "";
  Explanation told;
  call.conv.explanation = &told;
  half.run(&call);
  return told.failure == nullptr ? "" : joined(": ", told.failure);
}

// call: filled but for workspace, threads and stream.
template <typename Call>
void run_with_workspace(Call& call, const Device& device, const Half<Call>& half) {
  Explanation told;
  if (explains()) call.conv.explanation = &told;
  const int64_t needed = half.workspace_bytes(&call);
  if (needed < 0) raise_failure(needed, why_not(needed, call, half), "");
  OptionalTensor block;
  std::vector<char> small;
  if (needed > 0) {
    const int64_t bytes = needed + kWorkspaceAlignment;
    uintptr_t start = 0;
    if (device.is_cpu() && bytes <= kSmallWorkspace) {
      small.resize(static_cast<size_t>(bytes));
      start = reinterpret_cast<uintptr_t>(small.data());
    } else {
      block = allocate(&bytes, 1, aoti_torch_dtype_uint8(), device);
      start = reinterpret_cast<uintptr_t>(block->data_ptr());
    }
    call.conv.workspace =
        reinterpret_cast<void*>((start + kWorkspaceAlignment - 1) / kWorkspaceAlignment * kWorkspaceAlignment);
    call.conv.workspace_bytes = needed;
  }
  const int64_t status = half.run(&call);
  if (status != kOk) raise_failure(status, why_not(status, call, half), half.error_string(status));
  if (call.conv.explanation != nullptr) tell(call.conv, device, told);
}

#if defined(TCONV_WITH_CUDA)
// The input's device is current while this lives.
class CurrentDevice {
 public:
  explicit CurrentDevice(const Device& device) {
    TCONV_TORCH_CALL(aoti_torch_create_device_guard(device.index, &guard_));
  }
  ~CurrentDevice() { (void)aoti_torch_delete_device_guard(guard_); }
  CurrentDevice(const CurrentDevice&) = delete;
  CurrentDevice& operator=(const CurrentDevice&) = delete;

 private:
  DeviceGuardHandle guard_ = nullptr;
};
#endif

// Of those that PyTorch may use, as many as have something to do: to wake one and to wait for it takes microseconds, on
// a busy machine milliseconds. Results do not depend on it.
inline int64_t useful_threads(const ConvTransposeLayer& p, int64_t threads) {
  constexpr double kProductsPerThread = 1 << 18;  // some ten microseconds
  const double products = static_cast<double>(p.batch) * p.in_channels * p.in_h * p.in_w * (p.out_channels / p.groups) *
                          p.kernel_h * p.kernel_w;
  return std::max<int64_t>(1, std::min<int64_t>(threads, static_cast<int64_t>(products / kProductsPerThread)));
}

// Runs on the host, or on the current stream of the input's device.
template <typename Call>
void launch(Call& call, const Device& device) {
  if (device.is_cpu()) {
    call.conv.num_threads = useful_threads(call.conv.layer, torch::stable::get_num_threads());
    return run_with_workspace(call, device,
                              Half<Call>{tconv_cpu_workspace_bytes, tconv_cpu_run, tconv_cpu_error_string});
  }
#if defined(TCONV_WITH_CUDA)
  const CurrentDevice current(device);
  TCONV_TORCH_CALL(aoti_torch_get_current_cuda_stream(device.index, &call.conv.stream));
  run_with_workspace(call, device, Half<Call>{tconv_cuda_workspace_bytes, tconv_cuda_run, tconv_cuda_error_string});
#else
  refuse(
      "the CUDA kernels were not built: this needs a CUDA build of PyTorch and nvcc (CUDA_HOME) "
      "when the file is loaded");
#endif
}

// The dtype in which tensors on `device` are computed.
inline int64_t computed_dtype(int64_t dtype, const Device& device) {
  return device.is_cpu() ? tconv_cpu_computes_in(dtype) : dtype;
}

}  // namespace binding
}  // namespace tconv

// STABLE_TORCH_LIBRARY pastes its argument: these expand it first.
#define TCONV_TEXT_OF(NUMBER) #NUMBER
#define TCONV_TEXT(NUMBER) TCONV_TEXT_OF(NUMBER)
#if defined(TCONV_CALL)  // one of several operators of a library
#define TCONV_RUN "run_" TCONV_TEXT(TCONV_CALL)
#define TCONV_LIBRARY(NAMESPACE, M) STABLE_TORCH_LIBRARY_FRAGMENT(NAMESPACE, M)
#else
#define TCONV_RUN "run"
#define TCONV_LIBRARY(NAMESPACE, M) STABLE_TORCH_LIBRARY(NAMESPACE, M)
#endif
#define TCONV_LIBRARY_IMPL(NAMESPACE, KEY, M) STABLE_TORCH_LIBRARY_IMPL(NAMESPACE, KEY, M)
#if defined(__GNUC__) && !defined(__clang__)
#define TCONV_END_OF_OPERATOR _Pragma("GCC pop_options")  // of cuda_half.h
#else
#define TCONV_END_OF_OPERATOR
#endif
#define TCONV_REGISTER(SCHEMA)                                                                          \
  TCONV_LIBRARY(TCONV_NAMESPACE, library) { library.def(SCHEMA); }                                      \
  TCONV_LIBRARY_IMPL(TCONV_NAMESPACE, CPU, library) { library.impl(TCONV_RUN, &tconv::binding::run); }  \
  TCONV_LIBRARY_IMPL(TCONV_NAMESPACE, CUDA, library) { library.impl(TCONV_RUN, &tconv::binding::run); } \
  TCONV_END_OF_OPERATOR
