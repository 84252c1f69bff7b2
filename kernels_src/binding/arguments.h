// Checks of the transposed convolution's arguments, and the layer that the kernels see.
#pragma once

#include "../call.h"
#include "tensors.h"

namespace tconv {
namespace binding {

// Parameters of nn.ConvTranspose2d.
struct Geometry {
  Pair stride, padding, output_padding, dilation;
  int64_t groups;
};

inline void check_geometry(const Geometry& g) {
  if (g.stride.smallest() <= 0) refuse("stride must be positive, got ", g.stride);
  if (g.padding.smallest() < 0) refuse("padding must be non-negative, got ", g.padding);
  if (g.dilation.smallest() <= 0) refuse("dilation must be positive, got ", g.dilation);
  if (g.groups <= 0) refuse("groups must be positive, got ", g.groups);
  if (g.output_padding.smallest() < 0) refuse("output_padding must be non-negative, got ", g.output_padding);
  for (int axis = 0; axis < 2; ++axis)
    if (g.output_padding[axis] >= g.stride[axis] && g.output_padding[axis] >= g.dilation[axis])
      refuse("output_padding must be smaller than stride or dilation on each axis, got output_padding ",
             g.output_padding, ", stride ", g.stride, ", dilation ", g.dilation);
}

inline void check_same_kind(const char* name, const Tensor& value, const Tensor& x, bool any_dtype = false) {
  if (!any_dtype && torch_dtype_of(value) != torch_dtype_of(x))
    refuse(name, " must have the input's dtype, got ", name, " ", dtype_name(torch_dtype_of(value)), " and input ",
           dtype_name(torch_dtype_of(x)));
  if (!(device_of(value) == device_of(x)))
    refuse(name, " must be on the input's device, got ", name, " on ", device_of(value).name(), " and input on ",
           device_of(x).name());
}

// An optional tensor of one value per channel.
inline void check_channel_vector(const char* name, const OptionalTensor& value, int64_t channels, const Tensor& x,
                                 bool any_dtype = false) {
  if (!value) return;
  if (value->dim() != 1 || value->size(0) != channels)
    refuse(name, " must have shape (", channels, ",), one value per channel, got ", shape_text(*value));
  check_same_kind(name, *value, x, any_dtype);
}

// One axis of the output. Source: PyTorch ConvTranspose2d documentation.
inline int64_t output_size(int64_t size, int64_t kernel, int axis, const Geometry& g) {
  return (size - 1) * g.stride[axis] - 2 * g.padding[axis] + g.dilation[axis] * (kernel - 1) + g.output_padding[axis] +
         1;
}

// The layer of an input [batch, in_channels, h, w] or [in_channels, h, w] and a weight
// [in_channels, out_channels / groups, kernel_h, kernel_w]. Refuses what nn.ConvTranspose2d refuses.
inline ConvTransposeLayer make_layer(const Tensor& x, const Tensor& weight, const OptionalTensor& bias,
                                     const Geometry& g) {
  check_geometry(g);
  const auto sizes = x.sizes(), strides = x.strides(), kernel = weight.sizes();
  if (sizes.size() != 3 && sizes.size() != 4)
    refuse("input must have 3 dimensions (unbatched: channels, height, width) or 4 (batch first), got shape ",
           shape_text(x));
  if (kernel.size() != 4)
    refuse(
        "weight must have 4 dimensions (in_channels, out_channels / groups, kernel height, kernel width), got shape ",
        shape_text(weight));
  if (kernel_dtype(torch_dtype_of(x)) < 0)
    refuse("input must be float32, float64, float16 or bfloat16, got ", dtype_name(torch_dtype_of(x)));
  check_same_kind("weight", weight, x);
  const bool batched = sizes.size() == 4;
  const size_t first = batched ? 1 : 0;
  const int64_t channels = sizes[first], height = sizes[first + 1], width = sizes[first + 2];
  if (kernel[0] != channels)
    refuse("input must have ", kernel[0], " channels, the first dimension of weight ", shape_text(weight), ", got ",
           channels, " in an input of shape ", shape_text(x));
  if (channels % g.groups != 0)
    refuse("input channels must be divisible by groups, got ", channels, " channels and groups ", g.groups);
  if (channels <= 0 || height <= 0 || width <= 0)
    refuse("only the batch may be empty, got an input of shape ", shape_text(x));
  if (kernel[1] <= 0 || kernel[2] <= 0 || kernel[3] <= 0)
    refuse("weight must not be empty, got shape ", shape_text(weight));
  const Pair out = {output_size(height, kernel[2], 0, g), output_size(width, kernel[3], 1, g)};
  check_channel_vector("bias", bias, kernel[1] * g.groups, x);
  if (out.smallest() <= 0)
    refuse("the output must have a positive size, got ", out.h, " x ", out.w, " for an input of shape ", shape_text(x),
           ", a kernel of ", Pair{kernel[2], kernel[3]}, ", stride ", g.stride, ", padding ", g.padding);

  ConvTransposeLayer p{};
  p.batch = batched ? sizes[0] : 1;
  p.in_channels = channels, p.out_channels = kernel[1] * g.groups, p.groups = g.groups;
  p.in_h = height, p.in_w = width, p.out_h = out.h, p.out_w = out.w;
  p.kernel_h = kernel[2], p.kernel_w = kernel[3];
  p.stride_h = g.stride.h, p.stride_w = g.stride.w;
  p.padding_h = g.padding.h, p.padding_w = g.padding.w;
  p.dilation_h = g.dilation.h, p.dilation_w = g.dilation.w;
  p.x_stride_n = batched ? strides[0] : 0;
  p.x_stride_c = strides[first], p.x_stride_h = strides[first + 1], p.x_stride_w = strides[first + 2];
  return p;
}

}  // namespace binding
}  // namespace tconv
