// GroupNorm's tensors and parameters, and how they become GroupNormArgs.
#pragma once

#include "conv_inputs.h"

namespace tconv {
namespace binding {

#define TCONV_GROUP_NORM_SCHEMA "int num_groups, Tensor? norm_weight, Tensor? norm_bias, float norm_eps"

struct GroupNormInputs {
  int64_t num_groups;
  OptionalTensor weight, bias;
  double eps;

  explicit GroupNormInputs(Stack& stack)
      : num_groups(stack.integer()),
        weight(stack.optional_tensor()),
        bias(stack.optional_tensor()),
        eps(stack.number()) {}

  // Over an image of that size; raises where PyTorch does.
  void check(ConvInputs& inputs, int64_t height, int64_t width) const {
    int64_t shape[4];
    size_t dim = 0;
    inputs.shape(height, width, shape, &dim);
    if (dim != 4) refuse("an unbatched input (3 dimensions) cannot be followed by GroupNorm; add a batch dimension");
    const int64_t channels = shape[1];
    if (num_groups <= 0) refuse("num_groups must be positive, got ", num_groups);
    if (channels % num_groups != 0)
      refuse("channels must be divisible by num_groups, got ", channels, " channels and num_groups ", num_groups);
    inputs.check_norm_vector("the GroupNorm weight", weight);
    inputs.check_norm_vector("the GroupNorm bias", bias);
    if (shape[0] * channels / num_groups * height * width == 1)
      refuse_value("group_norm: expected more than 1 value per group, got an input of shape ", tuple_text(shape, dim),
                   " and num_groups ", num_groups);
  }

  // The tensors stay alive in this object.
  GroupNormArgs prepare(const ConvInputs& inputs) {
    weight = inputs.readable(weight), bias = inputs.readable(bias);
    return {num_groups, eps, pointer_of(weight), pointer_of(bias)};
  }
};

}  // namespace binding
}  // namespace tconv
