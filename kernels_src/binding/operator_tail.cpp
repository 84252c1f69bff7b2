// The operators of the library of tails, each with the element-wise steps of the tail that a number names: LayerNorm
// over rows of a channel's own, softmax over channels, pools of volumes over windows side by side.
#include "../tail_call.h"
#include "cuda_half.h"

TCONV_DECLARE_CUDA_HALF(TailCall)

#include "conv_inputs.h"

namespace tconv {
namespace binding {

// What every operator is given first and last.
struct TailOperands {
  int64_t number;
  Tensor value;
  OptionalTensor vectors[kMaxChannelVectors];

  explicit TailOperands(Stack& stack) : number(stack.integer()), value(stack.tensor()) {}

  void take_vectors(Stack& stack) {
    for (OptionalTensor& vector : vectors) vector = stack.optional_tensor();
  }

  // And made contiguous.
  void check() {
    if (value.dim() < 3)
      refuse("value must have 3 dimensions or more (batch, channels, ...), got shape ", shape_text(value));
    const int64_t dtype = kernel_dtype(torch_dtype_of(value));
    if (dtype != kFloat32 && dtype != kFloat16 && dtype != kBFloat16)
      refuse("value must be float32, float16 or bfloat16, got ", dtype_name(torch_dtype_of(value)));
    for (const OptionalTensor& vector : vectors)
      check_channel_vector("a per-channel operand", vector, value.size(1), value);
    value = dense(value);
    for (OptionalTensor& vector : vectors) vector = dense(vector);
  }

  int64_t plane() const {
    int64_t values = 1;
    for (int64_t axis = 2; axis < value.dim(); ++axis) values *= value.size(axis);
    return values;
  }

  Tensor result_of(const int64_t* sizes) const {
    return allocate(sizes, static_cast<size_t>(value.dim()), torch_dtype_of(value), device_of(value));
  }

  TailCall call(TailOperator asked, const Tensor& result) const {
    TailCall made{};
    ConvTransposeLayer none{};
    none.groups = 1;  // what counts threads divides by it
    made.conv = make_call(none, kernel_dtype(torch_dtype_of(value)), false);
    for (int i = 0; i < kMaxChannelVectors; ++i) made.conv.channel_vectors[i] = pointer_of(vectors[i]);
    made.number = number, made.asked = asked;
    made.value = pointer_of(value), made.result = pointer_of(result);
    made.batch = value.size(0), made.channels = value.size(1), made.plane = plane();
    return made;
  }
};

inline void check_row_vector(const char* name, const OptionalTensor& given, int64_t row, const Tensor& value) {
  if (!given) return;
  if (given->dim() != 1 || given->size(0) != row)
    refuse(name, " must have shape (", row, ",), one value for each of a row, got ", shape_text(*given));
  check_same_kind(name, *given, value);
}

void layer_norm(StableIValue* values, uint64_t, uint64_t) {
  Stack stack(values);
  TailOperands in(stack);
  OptionalTensor weight = stack.optional_tensor(), bias = stack.optional_tensor();
  const double eps = stack.number();
  const int64_t row = stack.integer();
  in.take_vectors(stack);
  in.check();
  if (row < 1 || in.plane() % row != 0)
    refuse("row must divide the ", in.plane(), " values behind the channels of value ", shape_text(in.value), ", got ",
           row);
  check_row_vector("weight", weight, row, in.value), check_row_vector("bias", bias, row, in.value);
  weight = dense(weight), bias = dense(bias);
  const Tensor result = in.result_of(in.value.sizes().data());
  TailCall call = in.call(TailOperator::kLayerNorm, result);
  const auto places = reinterpret_cast<uintptr_t>(call.value) | reinterpret_cast<uintptr_t>(call.result);
  if (!row_norm_fits(row, aoti_torch_dtype_element_size(torch_dtype_of(in.value)), places % 16 == 0))
    refuse("row must be at most 1024, or 256 where rows do not begin at multiples of 16 bytes, got ", row);
  call.row = row, call.eps = eps, call.weight = pointer_of(weight), call.bias = pointer_of(bias);
  if (result.numel() > 0) launch(call, device_of(in.value));
  stack.give(result);
}

void softmax(StableIValue* values, uint64_t, uint64_t) {
  Stack stack(values);
  TailOperands in(stack);
  in.take_vectors(stack);
  in.check();
  if (in.value.size(1) > kMostSoftmaxChannels)
    refuse("value must have at most ", kMostSoftmaxChannels, " channels, got ", in.value.size(1));
  const Tensor result = in.result_of(in.value.sizes().data());
  TailCall call = in.call(TailOperator::kSoftmax, result);
  if (result.numel() > 0) launch(call, device_of(in.value));
  stack.give(result);
}

void plane_softmax(StableIValue* values, uint64_t, uint64_t) {
  Stack stack(values);
  TailOperands in(stack);
  in.take_vectors(stack);
  in.check();
  const Tensor result = in.result_of(in.value.sizes().data());
  TailCall call = in.call(TailOperator::kPlaneSoftmax, result);
  if (result.numel() > 0) launch(call, device_of(in.value));
  stack.give(result);
}

void pool(StableIValue* values, uint64_t, uint64_t) {
  Stack stack(values);
  TailOperands in(stack);
  int64_t window[3];
  for (int64_t& extent : window) extent = stack.integer();
  in.take_vectors(stack);
  if (in.value.dim() != 5)
    refuse("value must have 5 dimensions (batch, channels, depth, height, width), got shape ", shape_text(in.value));
  in.check();
  int64_t sizes[5] = {in.value.size(0), in.value.size(1)};
  const char* const names[] = {"window_d", "window_h", "window_w"};
  for (int axis = 0; axis < 3; ++axis) {
    const int64_t extent = in.value.size(axis + 2);
    if (window[axis] < 1 || window[axis] > extent)
      refuse(names[axis], " must be 1 to ", extent, ", which value ", shape_text(in.value), " has there, got ",
             window[axis]);
    sizes[axis + 2] = extent / window[axis];
  }
  const Tensor result = in.result_of(sizes);
  TailCall call = in.call(TailOperator::kPool, result);
  for (int axis = 0; axis < 3; ++axis) {
    call.in[axis] = in.value.size(axis + 2);
    call.window[axis] = window[axis], call.out[axis] = sizes[axis + 2];
  }
  if (result.numel() > 0) launch(call, device_of(in.value));
  stack.give(result);
}

}  // namespace binding
}  // namespace tconv

TCONV_LIBRARY(TCONV_NAMESPACE, library) {
  library.def(
      "layer_norm(int number, Tensor value, Tensor? weight, Tensor? bias, float eps, int row, " TCONV_VECTORS_SCHEMA
      ") -> Tensor");
  library.def("softmax(int number, Tensor value, " TCONV_VECTORS_SCHEMA ") -> Tensor");
  library.def("plane_softmax(int number, Tensor value, " TCONV_VECTORS_SCHEMA ") -> Tensor");
  library.def("pool(int number, Tensor value, int window_d, int window_h, int window_w, " TCONV_VECTORS_SCHEMA
              ") -> Tensor");
}
TCONV_LIBRARY_IMPL(TCONV_NAMESPACE, CPU, library) {
  library.impl("layer_norm", &tconv::binding::layer_norm), library.impl("softmax", &tconv::binding::softmax);
  library.impl("plane_softmax", &tconv::binding::plane_softmax), library.impl("pool", &tconv::binding::pool);
}
TCONV_LIBRARY_IMPL(TCONV_NAMESPACE, CUDA, library) {
  library.impl("layer_norm", &tconv::binding::layer_norm), library.impl("softmax", &tconv::binding::softmax);
  library.impl("plane_softmax", &tconv::binding::plane_softmax), library.impl("pool", &tconv::binding::pool);
}
