// What operators over tails are given, checked.
#pragma once

#include "conv_inputs.h"

namespace tconv {
namespace binding {

// What every operator is given first and last.
struct TailOperands {
  int64_t number;
  Tensor value;
  OptionalTensor vectors[kMaxChannelVectors];

  explicit TailOperands(Stack& stack) : number(stack.integer()), value(stack.tensor()) {}
  TailOperands(int64_t number_of, const Tensor& of) : number(number_of), value(of) {}

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

  // Of the forward or of gradients.
  template <typename Call = TailCall>
  Call call(TailOperator asked, const Tensor& result) const {
    Call made{};
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

// Of LayerNorm: row and eps, weight and bias.
struct RowNormOperands {
  OptionalTensor weight, bias;
  double eps;
  int64_t row;

  explicit RowNormOperands(Stack& stack)
      : weight(stack.optional_tensor()), bias(stack.optional_tensor()), eps(stack.number()), row(stack.integer()) {}

  // And made contiguous. in: checked.
  void check(const TailOperands& in) {
    if (row < 1 || in.plane() % row != 0)
      refuse("row must divide the ", in.plane(), " values behind the channels of value ", shape_text(in.value),
             ", got ", row);
    check_row_vector("weight", weight, row, in.value), check_row_vector("bias", bias, row, in.value);
    weight = dense(weight), bias = dense(bias);
  }

  // places: addresses of all tensors of the value's shape, or-ed.
  void fill(TailCall& call, const Tensor& value, uintptr_t places) const {
    if (!row_norm_fits(row, aoti_torch_dtype_element_size(torch_dtype_of(value)), places % 16 == 0))
      refuse("row must be at most 1024, or 256 where rows do not begin at multiples of 16 bytes, got ", row);
    call.row = row, call.eps = eps, call.weight = pointer_of(weight), call.bias = pointer_of(bias);
  }
};

// Of a pool: extents of its windows in depth, height and width.
struct PoolWindow {
  int64_t extents[3];

  explicit PoolWindow(Stack& stack) {
    for (int64_t& extent : extents) extent = stack.integer();
  }

  void check(const TailOperands& in) const {
    if (in.value.dim() != 5)
      refuse("value must have 5 dimensions (batch, channels, depth, height, width), got shape ", shape_text(in.value));
    const char* const names[] = {"window_d", "window_h", "window_w"};
    for (int axis = 0; axis < 3; ++axis) {
      const int64_t given = in.value.size(axis + 2);
      if (extents[axis] < 1 || extents[axis] > given)
        refuse(names[axis], " must be 1 to ", given, ", which value ", shape_text(in.value), " has there, got ",
               extents[axis]);
    }
  }

  void outputs_of(const Tensor& value, int64_t (&sizes)[5]) const {
    for (int axis = 0; axis < 5; ++axis) sizes[axis] = value.size(axis) / (axis < 2 ? 1 : extents[axis - 2]);
  }

  void fill(TailCall& call, const Tensor& value) const {
    for (int axis = 0; axis < 3; ++axis) {
      call.in[axis] = value.size(axis + 2), call.window[axis] = extents[axis];
      call.out[axis] = call.in[axis] / extents[axis];
    }
  }
};

}  // namespace binding
}  // namespace tconv
