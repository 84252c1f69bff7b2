// The operator of gradients through a convolution and what follows it: a chain of element-wise operations
// (generated_gradient.h), or GroupNorm (num_groups > 0) behind one.
#pragma once

#include "../group_norm_gradient_call.h"
#include "../padded_rows.h"
#include "conv_inputs.h"
#include "tensor_gradients.h"

namespace tconv {
namespace binding {

struct ChainInputs {
  OptionalTensor bias, norm_weight;
  int64_t num_groups;
  double eps;
  OptionalTensor vectors[kMaxChannelVectors];  // the chain's operands
  bool need_norm_weight, need_norm_bias;
  int64_t chain;
  OptionalTensor value;  // what the chain's gradient reads, where that is not the convolution's output
#ifdef TCONV_CHAINS_READ_TENSORS
  std::optional<TensorGradients> tensors;
#endif

  explicit ChainInputs(Stack& stack) : bias(stack.optional_tensor()), norm_weight(stack.optional_tensor()) {
    num_groups = stack.integer();
    eps = stack.number();
    for (OptionalTensor& vector : vectors) vector = stack.optional_tensor();
    need_norm_weight = stack.boolean(), need_norm_bias = stack.boolean();
    chain = stack.integer();
    value = stack.optional_tensor();
#ifdef TCONV_CHAINS_READ_TENSORS
    tensors.emplace(stack);
#endif
  }

  void check(const ConvTransposeLayer& layer, const Tensor& x) {
    if (num_groups < 0 || (num_groups > 0 && layer.out_channels % num_groups != 0))
      refuse("num_groups must divide ", layer.out_channels, " channels or be 0, got ", num_groups);
    if (num_groups == 0 && (norm_weight || need_norm_weight || need_norm_bias))
      refuse("where nothing is normalised there is no weight");
    check_channel_vector("norm_weight", norm_weight, layer.out_channels, x);
    const int64_t out[] = {layer.batch, layer.out_channels, layer.out_h, layer.out_w};
#ifdef TCONV_CHAINS_READ_TENSORS
    tensors->check(vectors, out, x);
#else
    for (OptionalTensor& vector : vectors) {
      check_channel_vector("a chain's operand", vector, layer.out_channels, x);
      vector = dense(vector);
    }
#endif
    if (value && shape_text(*value) != tuple_text(out, 4))
      refuse("value must have the output's shape ", tuple_text(out, 4), ", got ", shape_text(*value));
    if (value) check_same_kind("value", *value, x);
    bias = dense(bias), norm_weight = dense(norm_weight), value = dense(value);
  }

  // Rows of the gradients of operands.
  int64_t num_vectors() const {
#ifdef TCONV_CHAINS_READ_TENSORS
    return kMaxChannelVectors;
#endif
    int64_t count = 0;
    for (const OptionalTensor& vector : vectors) count += vector ? 1 : 0;
    return count;
  }
};

// Can the gradient of the output be formed as it is packed?
inline bool forms_as_it_packs(const GradientCall& call, const Device& device) {
  if (device.is_cpu()) return tconv_cpu_workspace_bytes(&call) >= 0;
#if defined(TCONV_WITH_CUDA)
  const CurrentDevice current(device);
  return tconv_cuda_workspace_bytes(&call) >= 0;
#else
  return false;
#endif
}

void chain_backward(StableIValue* values, uint64_t, uint64_t) {
  Stack stack(values);
  GradientInputs inputs(stack);
  ChainInputs behind(stack);
  const ConvTransposeLayer layer = make_layer(inputs.x, inputs.weight, behind.bias, inputs.geometry);
  if (inputs.x.dim() != 4) refuse("input must have 4 dimensions, got ", shape_text(inputs.x));
  inputs.check_grad(layer);
  behind.check(layer, inputs.x);
  const Device device = device_of(inputs.x);
  const int32_t dtype = torch_dtype_of(inputs.x);
  const Tensor weight = dense(inputs.weight), grad = dense(inputs.grad);
  if (grad.sizes()[3] != layer.out_w) refuse("grad must have the output's shape, got ", shape_text(grad));

  const auto channel_values = [&](bool wanted) {
    const int64_t count = wanted ? layer.out_channels : 0;
    return allocate(&count, 1, dtype, device);
  };
  const Tensor grad_bias = channel_values(inputs.need_bias), grad_norm_weight = channel_values(behind.need_norm_weight);
  const Tensor grad_norm_bias = channel_values(behind.need_norm_bias);
  const int64_t of_vectors[] = {behind.num_vectors(), layer.out_channels};
  const Tensor grad_vectors = allocate(of_vectors, 2, dtype, device);

  GradientCall call{};
  call.conv = make_call(layer, kernel_dtype(dtype), inputs.tf32);
  call.conv.x = pointer_of(inputs.x), call.conv.weight = pointer_of(weight);
  const GradientCall of_conv = call;

  GroupNormGradientCall& chain = call.of_chain;
  chain.chain = behind.chain, chain.grad = pointer_of(grad);
  chain.weight = pointer_of(behind.norm_weight), chain.num_groups = behind.num_groups, chain.eps = behind.eps;
  chain.batch = layer.batch, chain.channels = layer.out_channels, chain.height = layer.out_h, chain.width = layer.out_w;
  if (inputs.need_bias) chain.grad_sums = pointer_of(grad_bias);
  if (behind.need_norm_weight) chain.grad_weight = pointer_of(grad_norm_weight);
  if (behind.need_norm_bias) chain.grad_bias = pointer_of(grad_norm_bias);
  const int64_t value_bytes = call.conv.dtype == kFloat64 ? 8 : call.conv.dtype == kFloat32 ? 4 : 2;
  for (int64_t i = 0; i < of_vectors[0]; ++i) {
    chain.conv.channel_vectors[i] = pointer_of(behind.vectors[i]);
    chain.grad_vectors[i] = static_cast<char*>(pointer_of(grad_vectors)) + i * layer.out_channels * value_bytes;
  }
#ifdef TCONV_CHAINS_READ_TENSORS
  const int64_t of_tensors[] = {layer.batch, layer.out_channels, layer.out_h, layer.out_w};
  const Tensor grad_tensors = behind.tensors->allocate_for(&chain, of_tensors, dtype, device);
#endif
  const auto set_grad = [&](void* of, int64_t columns) {
    call.grad = of, call.grad_columns = columns;
    call.grad_stride_w = 1, call.grad_stride_h = columns, call.grad_stride_c = layer.out_h * columns;
    call.grad_stride_n = layer.out_channels * call.grad_stride_c;
  };

  const Tensor grad_x = allocate_like(inputs.x, inputs.need_x, device);
  const Tensor grad_weight = allocate_like(weight, inputs.need_weight, device);
  if (inputs.need_x) call.grad_x = pointer_of(grad_x);
  if (inputs.need_weight) call.grad_weight = pointer_of(grad_weight);
  set_grad(nullptr, layer.out_w);
  const bool both = inputs.need_x && inputs.need_weight;
  GradientCall along = call;  // with the value
  along.conv.bias = pointer_of(behind.bias), along.computes_value = true;
  OptionalTensor formed, value = behind.value;
  const bool at_once = !value && both && forms_as_it_packs(along, device);
  if (!at_once) {
    const int64_t sizes[] = {layer.batch, layer.out_channels, layer.out_h, layer.out_w};
    formed = allocate(sizes, 4, dtype, device);
    set_grad(pointer_of(formed), layer.out_w);
    if (!value) {
      value = formed;
      GradientCall once_more = of_conv;
      once_more.conv.bias = pointer_of(behind.bias), once_more.conv.out = pointer_of(formed);
      launch(once_more, device);
    }
    chain.value = pointer_of(value);
  }
  if (at_once) {
    launch(along, device);
  } else if (both && forms_as_it_packs(call, device)) {
    launch(call, device);
  } else {
    // Rows in whole vectors where the input's gradient slides over them.
    const bool slides = inputs.geometry.stride[0] == 1 && inputs.geometry.stride[1] == 1;
    const int64_t columns = slides ? padded_columns(layer.out_w) : layer.out_w;
    const int64_t padded[] = {layer.batch, layer.out_channels, layer.out_h, columns};
    const Tensor grad_value = allocate(padded, 4, dtype, device);
    chain.row_columns = columns, chain.grad_value = pointer_of(grad_value);
    launch(call, device);
    value.reset(), formed.reset();  // their memory serves the convolution's gradients
    chain = GroupNormGradientCall{};
    set_grad(pointer_of(grad_value), columns);
    if (inputs.need_x || inputs.need_weight) launch(call, device);
  }
  // As PyTorch's, which are channels_last where input or weight are.
  const bool channels_last =
      inputs.need_x && (suggests_channels_last(inputs.x) || suggests_channels_last(inputs.weight));
  const Tensor made_x =
      channels_last ? torch::stable::contiguous(grad_x, torch::headeronly::MemoryFormat::ChannelsLast) : grad_x;
#ifdef TCONV_CHAINS_READ_TENSORS
  stack.give(made_x, grad_weight, grad_bias, grad_norm_weight, grad_norm_bias, grad_vectors, grad_tensors);
#else
  stack.give(made_x, grad_weight, grad_bias, grad_norm_weight, grad_norm_bias, grad_vectors);
#endif
}

}  // namespace binding
}  // namespace tconv

#define TCONV_CHAIN_SCHEMA                                                                                            \
  "chain_backward(Tensor grad, Tensor x, Tensor weight, int stride_h, int stride_w, int padding_h, int padding_w, "   \
  "int output_padding_h, int output_padding_w, int dilation_h, int dilation_w, int groups, bool tf32, bool need_x, "  \
  "bool need_weight, bool need_bias, Tensor? bias, Tensor? norm_weight, int num_groups, float eps, Tensor? vector0, " \
  "Tensor? vector1, Tensor? vector2, Tensor? vector3, bool need_norm_weight, bool need_norm_bias, int chain, "        \
  "Tensor? value" TCONV_TENSORS_SCHEMA ") -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor" TCONV_TENSORS_RESULT ")"
#define TCONV_IMPLEMENT_CHAINS(device)                               \
  TCONV_LIBRARY_IMPL(TCONV_NAMESPACE, device, library) {             \
    library.impl("chain_backward", &tconv::binding::chain_backward); \
  }
