// What operators over tails of GroupNorm and BatchNorm are given besides, checked. Their steps have no operands.
#pragma once

#include "tail_inputs.h"

namespace tconv {
namespace binding {

struct ChannelNormOperands {
  OptionalTensor weight, bias;
  int64_t num_groups = 0;  // of GroupNorm; BatchNorm has none
  double eps = 0;

  explicit ChannelNormOperands(Stack& stack) : weight(stack.optional_tensor()), bias(stack.optional_tensor()) {}

  // And made contiguous. in: checked.
  void check(const TailOperands& in, TailOperator asked) {
    const Tensor& value = in.value;
    const int64_t channels = value.size(1);
    check_channel_vector("weight", weight, channels, value), check_channel_vector("bias", bias, channels, value);
    weight = dense(weight), bias = dense(bias);
    if (asked == TailOperator::kGroupNorm) {
      if (num_groups < 1 || channels % num_groups != 0)
        refuse("num_groups must divide ", channels, " channels, got ", num_groups);
      return;
    }
    if (kernel_dtype(torch_dtype_of(value)) != kFloat32)
      refuse("value must be float32, got ", dtype_name(torch_dtype_of(value)));
    if (value.numel() == 0 || value.numel() < 2 * channels)
      refuse_value("batch_norm: expected more than 1 value per channel when training, got shape ", shape_text(value));
  }

  // How many maps forward leaves.
  static int64_t num_maps(const Tensor& value, TailOperator asked) {
#ifdef TCONV_CENTRED_TAILS
    if (asked == TailOperator::kCentredBatchNorm) return value.size(0) * value.size(1);
#endif
    return asked == TailOperator::kGroupNorm ? value.size(0) * value.size(1) : value.size(1);
  }

  static Tensor allocate_maps(const Tensor& value, TailOperator asked) {
    const int64_t sizes[] = {num_maps(value, asked), 4};
    return allocate(sizes, 2, torch_dtype(kFloat32), device_of(value));
  }

  static void check_maps(const Tensor& maps, const Tensor& value, TailOperator asked) {
    const int64_t rows = num_maps(value, asked);
    const bool fits = maps.dim() == 2 && maps.size(0) == rows && maps.size(1) == 4 && maps.is_contiguous();
    if (!fits || torch_dtype_of(maps) != torch_dtype(kFloat32) || !(device_of(maps) == device_of(value)))
      refuse("maps must be forward's, (", rows, ", 4) of float32, got ", shape_text(maps));
  }

  void fill(TailCall& call, const Tensor& maps) const {
    call.weight = pointer_of(weight), call.bias = pointer_of(bias);
    call.num_groups = num_groups, call.eps = eps, call.maps = pointer_of(maps);
  }
};

}  // namespace binding
}  // namespace tconv
