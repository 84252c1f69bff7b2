// Tensors through PyTorch's stable ABI. Only the files of this folder see torch.
#pragma once

#include <torch/csrc/inductor/aoti_torch/c/shim.h>
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <initializer_list>
#include <optional>
#include <string>

#include "../common.h"
#include "errors.h"

namespace tconv {
namespace binding {

// A call of the stable ABI's C functions.
#define TCONV_TORCH_CALL(call)                                             \
  do {                                                                     \
    if ((call) != 0) ::tconv::binding::refuse("PyTorch failed in " #call); \
  } while (0)

using Tensor = torch::stable::Tensor;
using OptionalTensor = std::optional<Tensor>;

struct Device {
  int32_t type, index;

  bool operator==(const Device& other) const { return type == other.type && index == other.index; }
  bool is_cpu() const { return type == aoti_torch_device_type_cpu(); }

  std::string name() const {
    if (type == aoti_torch_device_type_cuda()) return "cuda:" + std::to_string(index);
    if (is_cpu()) return "cpu";
    return type == aoti_torch_device_type_meta() ? "meta" : "device type " + std::to_string(type);
  }
};

inline Device device_of(const Tensor& tensor) {
  Device device{};
  TCONV_TORCH_CALL(aoti_torch_get_device_type(tensor.get(), &device.type));
  TCONV_TORCH_CALL(aoti_torch_get_device_index(tensor.get(), &device.index));
  return device;
}

inline int32_t torch_dtype_of(const Tensor& tensor) {
  int32_t dtype = 0;
  TCONV_TORCH_CALL(aoti_torch_get_dtype(tensor.get(), &dtype));
  return dtype;
}

struct TorchDType {
  int32_t code;
  const char* name;
  int64_t kernel_dtype;  // of enum DType, or -1
};

inline const TorchDType* torch_dtypes(size_t* count) {
  static const TorchDType known[] = {
      {aoti_torch_dtype_float32(), "torch.float32", kFloat32},
      {aoti_torch_dtype_float64(), "torch.float64", kFloat64},
      {aoti_torch_dtype_float16(), "torch.float16", kFloat16},
      {aoti_torch_dtype_bfloat16(), "torch.bfloat16", kBFloat16},
      {aoti_torch_dtype_int64(), "torch.int64", -1},
      {aoti_torch_dtype_int32(), "torch.int32", -1},
      {aoti_torch_dtype_int16(), "torch.int16", -1},
      {aoti_torch_dtype_int8(), "torch.int8", -1},
      {aoti_torch_dtype_uint8(), "torch.uint8", -1},
      {aoti_torch_dtype_bool(), "torch.bool", -1},
      {aoti_torch_dtype_complex64(), "torch.complex64", -1},
      {aoti_torch_dtype_complex128(), "torch.complex128", -1},
  };
  *count = sizeof(known) / sizeof(known[0]);
  return known;
}

inline const TorchDType* find_dtype(int32_t code) {
  size_t count = 0;
  const TorchDType* known = torch_dtypes(&count);
  for (size_t i = 0; i < count; ++i)
    if (known[i].code == code) return known + i;
  return nullptr;
}

// The enum DType of a torch dtype, or -1.
inline int64_t kernel_dtype(int32_t code) {
  const TorchDType* found = find_dtype(code);
  return found == nullptr ? -1 : found->kernel_dtype;
}

inline int32_t torch_dtype(int64_t dtype) {
  size_t count = 0;
  return torch_dtypes(&count)[dtype].code;  // the first four are those of enum DType, in its order
}

inline std::string dtype_name(int32_t code) {
  const TorchDType* found = find_dtype(code);
  return found == nullptr ? "dtype " + std::to_string(code) : found->name;
}

// "(2, 64, 5, 5)"
inline std::string shape_text(const Tensor& tensor) {
  const auto sizes = tensor.sizes();
  return tuple_text(sizes.data(), sizes.size());
}

// Uninitialised and contiguous. Where memory is short the message has a form that the Python side knows
// (generator/runtime/allocation.py): it asks again there, for PyTorch's own error.
inline Tensor allocate(const int64_t* sizes, size_t dim, int32_t dtype, const Device& device) {
#ifdef TCONV_MANY_DIMENSIONS  // where results are of more than an image's (generator/sources.py)
  constexpr size_t kMostDims = 16;
  if (dim > kMostDims) refuse("a result of ", static_cast<int64_t>(dim), " dimensions, allowed are 16");
#else
  constexpr size_t kMostDims = 4;
#endif
  int64_t strides[kMostDims], elements = 1;
  for (size_t axis = dim; axis-- > 0;) {
    strides[axis] = elements;
    elements *= sizes[axis] > 1 ? sizes[axis] : 1;
  }
  AtenTensorHandle handle = nullptr;
  if (aoti_torch_empty_strided(static_cast<int64_t>(dim), sizes, strides, dtype, device.type, device.index, &handle))
    refuse("cannot allocate ", elements * static_cast<int64_t>(aoti_torch_dtype_element_size(dtype)), " bytes on ",
           device.name());
  return Tensor(handle);
}

inline Tensor dense(const Tensor& tensor) {
  return tensor.is_contiguous() ? tensor : torch::stable::contiguous(tensor);
}

inline OptionalTensor dense(const OptionalTensor& tensor) {
  return tensor ? OptionalTensor(dense(*tensor)) : OptionalTensor();
}

inline Tensor converted(const Tensor& tensor, int64_t dtype) {
  if (kernel_dtype(torch_dtype_of(tensor)) == dtype) return tensor;
  const torch::headeronly::ScalarType types[] = {
      torch::headeronly::ScalarType::Float, torch::headeronly::ScalarType::Double, torch::headeronly::ScalarType::Half,
      torch::headeronly::ScalarType::BFloat16};
  return torch::stable::to(tensor, types[dtype]);
}

inline OptionalTensor converted(const OptionalTensor& tensor, int64_t dtype) {
  return tensor ? OptionalTensor(converted(*tensor, dtype)) : OptionalTensor();
}

// Whether PyTorch takes the layout of `tensor` [n, c, h, w] for channels_last: strides grow from c over w and h to n.
// Source: is_channels_last_strides_2d in PyTorch's c10/core/MemoryFormat.h.
inline bool suggests_channels_last(const Tensor& tensor) {
  if (tensor.dim() != 4) return false;
  const auto sizes = tensor.sizes(), strides = tensor.strides();
  if (strides[1] == 0) return false;
  int64_t least = 0;
  for (const int axis : {1, 3, 2, 0}) {
    if (sizes[axis] == 0 || strides[axis] < least) return false;
    if (axis == 0 && least == strides[1]) return false;  // one channel and one pixel: either layout
    least = strides[axis];
    if (sizes[axis] > 1) least *= sizes[axis];
  }
  return true;
}

inline void* pointer_of(const Tensor& tensor) { return tensor.data_ptr(); }
inline void* pointer_of(const OptionalTensor& tensor) { return tensor ? tensor->data_ptr() : nullptr; }

}  // namespace binding
}  // namespace tconv
