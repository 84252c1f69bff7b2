// What every pattern's operator takes: the convolution's tensors and parameters, and how they become a ConvCall.
#pragma once

#ifdef TCONV_READS_TENSORS
#include "generated_operands.h"
#endif
#include "run.h"
#include "stack.h"
#ifdef TCONV_READS_TENSORS
#include "tensor_operands.h"
#endif

namespace tconv {
namespace binding {

// Their part of every schema, in front of a pattern's own arguments; TCONV_VECTORS_SCHEMA ends those that have such
// operands.
#define TCONV_CONV_SCHEMA                                                                             \
  "Tensor x, Tensor weight, Tensor? bias, int stride_h, int stride_w, int padding_h, int padding_w, " \
  "int output_padding_h, int output_padding_w, int dilation_h, int dilation_w, int groups, bool tf32"
#define TCONV_VECTORS_SCHEMA "Tensor? vector0=None, Tensor? vector1=None, Tensor? vector2=None, Tensor? vector3=None"

struct ConvInputs {
  Tensor x, weight;
  OptionalTensor bias;
  Geometry geometry;
  bool tf32;
  OptionalTensor vectors[kMaxChannelVectors];  // per-channel operands of the element-wise operations
  ConvTransposeLayer layer{};
  Device device{};
  int32_t dtype = 0;           // torch's, of x and of the output
  int64_t computed_dtype = 0;  // enum DType
  bool channels_last = false;  // the output's layout, which is the input's or the weight's, as PyTorch's

  explicit ConvInputs(Stack& stack)
      : x(stack.tensor()),
        weight(stack.tensor()),
        bias(stack.optional_tensor()),
        geometry{stack.pair(), stack.pair(), stack.pair(), stack.pair(), stack.integer()},
        tf32(stack.boolean()) {}

  void take_vectors(Stack& stack) {
    for (OptionalTensor& vector : vectors) vector = stack.optional_tensor();
  }

  // Raises where PyTorch does.
  void check() {
    layer = make_layer(x, weight, bias, geometry);
    device = device_of(x);
    dtype = torch_dtype_of(x);
    computed_dtype = binding::computed_dtype(kernel_dtype(dtype), device);
    channels_last = x.dim() == 4 && (suggests_channels_last(x) || suggests_channels_last(weight));
#ifdef TCONV_READS_TENSORS
    int64_t sizes[4];
    size_t dim = 0;
    shape(layer.out_h, layer.out_w, sizes, &dim);
    for (int i = 0; i < kMaxChannelVectors; ++i) {
      if (kTensorOperands >> i & 1)
        check_tensor_operand(vectors[i], sizes, dim, x);
      else
        check_channel_vector("a per-channel operand", vectors[i], layer.out_channels, x);
    }
#else
    for (const OptionalTensor& vector : vectors)
      check_channel_vector("a per-channel operand", vector, layer.out_channels, x);
#endif
  }

  bool widened() const { return kernel_dtype(dtype) != computed_dtype; }

  // An affine parameter or a running statistic as the kernels read it.
  OptionalTensor readable(const OptionalTensor& tensor) const { return dense(converted(tensor, computed_dtype)); }

  // Output shape [batch,] channels, h, w.
  void shape(int64_t out_h, int64_t out_w, int64_t (&sizes)[4], size_t* dim) const {
    *dim = static_cast<size_t>(x.dim());
    int64_t* size = sizes;
    if (*dim == 4) *size++ = layer.batch;
    size[0] = layer.out_channels, size[1] = out_h, size[2] = out_w;
  }

  // Where the kernels write; `finished` turns it into what the operator returns.
  Tensor allocate_output(int64_t out_h, int64_t out_w) const {
    int64_t sizes[4];
    size_t dim = 0;
    shape(out_h, out_w, sizes, &dim);
    return allocate(sizes, dim, torch_dtype(computed_dtype), device);
  }

  Tensor finished(const Tensor& out) const {
    const Tensor narrow = widened() ? converted(out, kernel_dtype(dtype)) : out;
    return channels_last ? torch::stable::contiguous(narrow, torch::headeronly::MemoryFormat::ChannelsLast) : narrow;
  }

  // A norm's parameter: of the input's dtype, or in fp32 beside a 16-bit input, which is then computed in fp32, too.
  void check_norm_vector(const char* name, const OptionalTensor& value) {
    const bool wide = value && dtype != torch_dtype(kFloat64) && torch_dtype_of(*value) == torch_dtype(kFloat32);
    if (wide && computed_dtype != kFloat32) computed_dtype = kFloat32;
    check_channel_vector(name, value, layer.out_channels, x, wide);
  }

  // Makes the tensors what the kernels read, and the call of them.
  ConvCall prepare(const Tensor& out) {
    if (widened()) {
      x = converted(x, computed_dtype);
      const auto strides = x.strides();  // of the copy
      const size_t first = x.dim() == 4 ? 1 : 0;
      if (first == 1) layer.x_stride_n = strides[0];
      layer.x_stride_c = strides[first], layer.x_stride_h = strides[first + 1], layer.x_stride_w = strides[first + 2];
    }
    weight = dense(converted(weight, computed_dtype));
    bias = readable(bias);
    ConvCall call = make_call(layer, computed_dtype, tf32);
    call.x = pointer_of(x);
    call.weight = pointer_of(weight);
    call.bias = pointer_of(bias);
    for (int i = 0; i < kMaxChannelVectors; ++i) {
      vectors[i] = readable(vectors[i]);
      call.channel_vectors[i] = pointer_of(vectors[i]);
    }
    call.out = pointer_of(out);
#ifdef TCONV_READS_TENSORS
    call.joined = {call.out, layer.batch * layer.out_channels, layer.out_h * layer.out_w, nullptr};
#endif
    return call;
  }
};

}  // namespace binding
}  // namespace tconv
