// The operators of the gradients' library: gradients of input, weight and bias in one call, those that are wanted; and
// the convolution's output once more, contiguous, for the gradients of what follows it.
#include "../gradient_call.h"
#include "../padded_rows.h"
#include "cuda_half.h"

TCONV_DECLARE_CUDA_HALF(GradientCall)

#include "conv_inputs.h"
#ifdef TCONV_WALKS_DEPTH
#include "operator_depth_gradients.h"
#endif

namespace tconv {
namespace binding {

struct GradientInputs {
  Tensor grad, x, weight;
  Geometry geometry;
  bool tf32, need_x, need_weight, need_bias;

  explicit GradientInputs(Stack& stack)
      : grad(stack.tensor()),
        x(stack.tensor()),
        weight(stack.tensor()),
        geometry{stack.pair(), stack.pair(), stack.pair(), stack.pair(), stack.integer()},
        tf32(stack.boolean()),
        need_x(stack.boolean()),
        need_weight(stack.boolean()),
        need_bias(stack.boolean()) {}

  // grad: the shape of the output, [batch,] channels, h, w; or with zeros behind each row, up to whole vectors.
  void check_grad(const ConvTransposeLayer& p) const {
    check_same_kind("grad", grad, x);
    const auto sizes = grad.sizes();
    const bool batched = x.dim() == 4;
    int64_t wanted[4] = {p.batch, p.out_channels, p.out_h, p.out_w};
    bool same = grad.dim() == x.dim();
    if (same && sizes.back() == padded_columns(p.out_w)) wanted[3] = sizes.back();
    for (int64_t axis = 0; same && axis < grad.dim(); ++axis) same = sizes[axis] == wanted[batched ? axis : axis + 1];
    if (!same)
      refuse("grad must have the output's shape ", tuple_text(batched ? wanted : wanted + 1, batched ? 4 : 3), ", got ",
             shape_text(grad));
  }
};

// A gradient that nobody wants is an empty tensor: every result is one, for compilers that trace the operator.
inline Tensor allocate_like(const Tensor& tensor, bool wanted, const Device& device) {
  const auto sizes = tensor.sizes();
  const int64_t none[] = {0};
  return wanted ? allocate(sizes.data(), sizes.size(), torch_dtype_of(tensor), device)
                : allocate(none, 1, torch_dtype_of(tensor), device);
}

void backward(StableIValue* values, uint64_t, uint64_t) {
  Stack stack(values);
  GradientInputs inputs(stack);
  const ConvTransposeLayer layer = make_layer(inputs.x, inputs.weight, OptionalTensor(), inputs.geometry);
  inputs.check_grad(layer);
  const Device device = device_of(inputs.x);
  const int32_t dtype = torch_dtype_of(inputs.x);

  const Tensor weight = dense(inputs.weight);
  const Tensor grad_x = allocate_like(inputs.x, inputs.need_x, device);
  const Tensor grad_weight = allocate_like(weight, inputs.need_weight, device);
  const int64_t channels[] = {inputs.need_bias ? layer.out_channels : 0};
  const Tensor grad_bias = allocate(channels, 1, dtype, device);

  GradientCall call{};
  call.conv = make_call(layer, kernel_dtype(dtype), inputs.tf32);
  call.conv.x = pointer_of(inputs.x);
  call.conv.weight = pointer_of(weight);
  call.grad = pointer_of(inputs.grad);
  const auto strides = inputs.grad.strides();
  const size_t first = inputs.grad.dim() == 4 ? 1 : 0;
  call.grad_stride_n = first == 1 ? strides[0] : 0;
  call.grad_columns = inputs.grad.sizes().back();
  call.grad_stride_c = strides[first], call.grad_stride_h = strides[first + 1], call.grad_stride_w = strides[first + 2];
  if (inputs.need_x) call.grad_x = pointer_of(grad_x);
  if (inputs.need_weight) call.grad_weight = pointer_of(grad_weight);
  if (inputs.need_bias) call.grad_bias = pointer_of(grad_bias);
  if (inputs.need_x || inputs.need_weight || inputs.need_bias) launch(call, device);
  // As PyTorch's, which are channels_last where input or weight are.
  const bool channels_last = inputs.need_x && inputs.x.dim() == 4 &&
                             (suggests_channels_last(inputs.x) || suggests_channels_last(inputs.weight));
  stack.give(channels_last ? torch::stable::contiguous(grad_x, torch::headeronly::MemoryFormat::ChannelsLast) : grad_x,
             grad_weight, grad_bias);
}

void convolve(StableIValue* values, uint64_t, uint64_t) {
  Stack stack(values);
  ConvInputs inputs(stack);
  inputs.check();
  const Tensor out = inputs.allocate_output(inputs.layer.out_h, inputs.layer.out_w);
  if (inputs.layer.batch > 0) {
    GradientCall call{};
    call.conv = inputs.prepare(out);
    launch(call, inputs.device);
  }
  stack.give(inputs.widened() ? converted(out, kernel_dtype(inputs.dtype)) : out);
}

}  // namespace binding
}  // namespace tconv

#ifdef TCONV_GRADIENT_CHAINS
#ifdef TCONV_WALKS_DEPTH
#include "operator_depth_chain_gradients.h"
TCONV_REGISTER_DEPTH_CHAINS
#else
#include "operator_chain_gradients.h"
TCONV_IMPLEMENT_CHAINS(CPU)
TCONV_IMPLEMENT_CHAINS(CUDA)
#endif
#endif
#ifdef TCONV_WALKS_DEPTH
TCONV_REGISTER_DEPTH(tconv::GradientCall)
TCONV_REGISTER_DEPTH_GRADIENTS
#endif
TCONV_LIBRARY(TCONV_NAMESPACE, library) {
  library.def(
      "backward(Tensor grad, Tensor x, Tensor weight, int stride_h, int stride_w, int padding_h, int padding_w, "
      "int output_padding_h, int output_padding_w, int dilation_h, int dilation_w, int groups, bool tf32, bool need_x, "
      "bool need_weight, bool need_bias) -> (Tensor, Tensor, Tensor)");
  library.def("convolve(" TCONV_CONV_SCHEMA ") -> Tensor");
#ifdef TCONV_GRADIENT_CHAINS
#ifndef TCONV_WALKS_DEPTH
  library.def(TCONV_CHAIN_SCHEMA);
#endif
#endif
}
#define TCONV_IMPLEMENT(device)                          \
  TCONV_LIBRARY_IMPL(TCONV_NAMESPACE, device, library) { \
    library.impl("backward", &tconv::binding::backward); \
    library.impl("convolve", &tconv::binding::convolve); \
  }
TCONV_IMPLEMENT(CPU)
TCONV_IMPLEMENT(CUDA)
