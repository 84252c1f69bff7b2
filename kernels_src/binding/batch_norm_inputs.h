// BatchNorm2d's tensors and parameters, and how they become BatchNormPoolArgs.
#pragma once

#include "conv_inputs.h"

namespace tconv {
namespace binding {

#define TCONV_BATCH_NORM_SCHEMA                                                                                \
  "Tensor? batch_norm_weight, Tensor? batch_norm_bias, Tensor(a!)? running_mean, Tensor(b!)? running_var, "    \
  "Tensor? num_batches, float momentum, Tensor(c!)? batch_mean, Tensor(d!)? batch_var, bool use_batch_stats, " \
  "float batch_norm_eps"

// use_batch_stats: running_mean and running_var, where given, move towards the batch's by momentum or, where
// num_batches is given, by 1 / num_batches; batch_mean and batch_var, where given, receive the batch's mean and biased
// variance. Otherwise running_mean and running_var are read.
struct BatchNormInputs {
  OptionalTensor weight, bias, running_mean, running_var, num_batches;
  double momentum;
  OptionalTensor batch_mean, batch_var;
  bool use_batch_stats;
  double eps;

  explicit BatchNormInputs(Stack& stack)
      : weight(stack.optional_tensor()),
        bias(stack.optional_tensor()),
        running_mean(stack.optional_tensor()),
        running_var(stack.optional_tensor()),
        num_batches(stack.optional_tensor()),
        momentum(stack.number()),
        batch_mean(stack.optional_tensor()),
        batch_var(stack.optional_tensor()),
        use_batch_stats(stack.boolean()),
        eps(stack.number()) {}

  // ValueError as PyTorch for a wrong number of dimensions or values.
  void check(ConvInputs& inputs) const {
    int64_t shape[4];
    size_t dim = 0;
    inputs.shape(inputs.layer.out_h, inputs.layer.out_w, shape, &dim);
    if (dim != 4)
      refuse_value(
          "batch_norm: input must have 4 dimensions (batch, channels, height, width), "
          "got a convolution output of shape ",
          tuple_text(shape, dim));
    inputs.check_norm_vector("the BatchNorm weight", weight);
    inputs.check_norm_vector("the BatchNorm bias", bias);
    if (use_batch_stats) {
      if (shape[0] * shape[2] * shape[3] == 1)
        refuse_value("batch_norm: expected more than 1 value per channel when training, got shape ",
                     tuple_text(shape, dim));
      check_written("running_mean", running_mean, inputs), check_written("running_var", running_var, inputs);
      check_written("batch_mean", batch_mean, inputs), check_written("batch_var", batch_var, inputs);
    } else {
      check_read("running_mean", running_mean, inputs), check_read("running_var", running_var, inputs);
    }
  }

  // The tensors stay alive in this object.
  BatchNormPoolArgs prepare(const ConvInputs& inputs) {
    weight = inputs.readable(weight), bias = inputs.readable(bias);
    BatchNormPoolArgs args{};
    args.use_batch_stats = use_batch_stats;
    args.eps = eps;
    args.weight = pointer_of(weight), args.bias = pointer_of(bias);
    if (use_batch_stats) {
      args.batch_mean = pointer_of(batch_mean), args.batch_var = pointer_of(batch_var);
      args.updated = {pointer_of(running_mean), pointer_of(running_var), momentum,
                      static_cast<const int64_t*>(pointer_of(num_batches))};
    } else {
      running_mean = dense(converted(running_mean, statistics_dtype(inputs)));
      running_var = dense(converted(running_var, statistics_dtype(inputs)));
      args.running_mean = pointer_of(running_mean), args.running_var = pointer_of(running_var);
    }
    return args;
  }

 private:
  static int64_t statistics_dtype(const ConvInputs& inputs) {
    return inputs.computed_dtype == kFloat64 ? kFloat64 : kFloat32;
  }

  static void check_read(const char* name, const OptionalTensor& value, const ConvInputs& inputs) {
    if (!value) refuse(name, " is needed where batch statistics are not used, got None");
    if (value->dim() != 1 || value->size(0) != inputs.layer.out_channels || !(device_of(*value) == inputs.device))
      refuse(name, " must have shape (", inputs.layer.out_channels, ",) on ", inputs.device.name(), ", got ",
             shape_text(*value), " on ", device_of(*value).name());
  }

  static void check_written(const char* name, const OptionalTensor& value, const ConvInputs& inputs) {
    if (!value) return;
    check_read(name, value, inputs);
    if (kernel_dtype(torch_dtype_of(*value)) != statistics_dtype(inputs) || !value->is_contiguous())
      refuse(name, " must be contiguous and ", dtype_name(torch_dtype(statistics_dtype(inputs))),
             " to be written, got ", dtype_name(torch_dtype_of(*value)));
  }
};

}  // namespace binding
}  // namespace tconv
