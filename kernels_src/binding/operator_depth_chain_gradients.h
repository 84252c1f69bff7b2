// Gradients through volumes' convolution and a chain of element-wise operations behind it (generated_gradient.h), whose
// gradient is formed as it is packed (chain_gradients.cuh): never in memory, but for what tensor cores cannot do.
// Declined, with empty results, where that is not served.
#pragma once

#include "operator_depth_gradients.h"

namespace tconv {
namespace binding {

struct DepthChainInputs {
  DepthGradientInputs conv;  // grad: of the chain's result; vectors: its operands
  OptionalTensor value;      // what the chain's gradient reads, where that is not the convolution's output
  int64_t chain;
  bool need_bias;

  explicit DepthChainInputs(Stack& stack)
      : conv(stack), value(stack.optional_tensor()), chain(stack.integer()), need_bias(stack.boolean()) {}

  // Both, and the output, lie as one tensor would.
  bool fits() const {
    if (!conv.fits() || !conv.can_count_images() || !conv.grad.is_contiguous()) return false;
#ifdef TCONV_READS_MASK
    if (reads_mask() && device_of(*value) == device_of(conv.grad))
      return value->is_contiguous() && shape_text(*value) == shape_text(conv.grad);
#endif
    return !value ||
           (conv.of.is_of_kind(*value) && value->is_contiguous() && shape_text(*value) == shape_text(conv.grad));
  }

#ifdef TCONV_READS_MASK
  // Is `value` of bytes, as operator_depth_mask.h leaves them?
  bool reads_mask() const { return value && torch_dtype_of(*value) == aoti_torch_dtype_uint8(); }

#endif
  int64_t num_vectors() const {
    int64_t count = 0;
    for (const OptionalTensor& vector : conv.of.vectors) count += vector ? 1 : 0;
    return count;
  }

  // But for its results, for what is computed first, and for weights that lie as one tensor.
  GradientCall call() const {
    GradientCall made = conv.volumes();
    const ConvTransposeLayer& p = made.conv.layer;
    made.grad_stride_w = 1, made.grad_stride_h = p.out_w, made.depth.grad_stride = p.out_h * p.out_w;
    made.grad_stride_c = made.depth.out * made.depth.grad_stride;
    made.grad_stride_n = p.out_channels * made.grad_stride_c;
    GroupNormGradientCall& behind = made.of_chain;
    behind.chain = chain, behind.grad = pointer_of(conv.grad);
#ifdef TCONV_READS_MASK
    behind.reads_mask = reads_mask();
#endif
    behind.batch = p.batch, behind.channels = p.out_channels;
    behind.height = made.depth.out * p.out_h, behind.width = p.out_w;  // slices below each other
    for (int i = 0; i < kMaxChannelVectors; ++i) behind.conv.channel_vectors[i] = pointer_of(conv.of.vectors[i]);
    return made;
  }
};

// Gradients of x and the weight, as gradients_of_volumes has them, of the bias, and of the chain's operands.
inline std::vector<Tensor> chain_gradients_of_volumes(DepthChainInputs& in) {
  const std::vector<Tensor> nothing(4, declined(in.conv));
  if (!in.fits()) return nothing;
  DepthInputs& of = in.conv.of;
  of.weight = dense(of.weight), of.bias = dense(of.bias);
  for (OptionalTensor& vector : of.vectors) vector = dense(vector);
  const Device device = device_of(of.x);
  const int32_t dtype = torch_dtype_of(of.x);
  std::vector<GradientCall> calls = {in.call()};
  GradientCall& call = calls[0];
  call.grad_x = call.grad_weight = pointer_of(of.x);  // is there, no more is asked
  if (!all_served(calls, device)) return nothing;

  // Where g is written, should it be read: over the output, where that is computed again.
  Tensor room = of.x;
  if (in.value) {
    const int64_t count[] = {call.conv.layer.batch * call.grad_stride_n};
    room = allocate(count, 1, dtype, device);
  } else {
    DepthInputs alone = of;
    for (OptionalTensor& vector : alone.vectors) vector.reset();
    room = convolve_volumes<GradientCall>(alone);
    if (room.numel() == 0) return nothing;
  }
  const auto x = of.x.sizes(), kernel = of.weight.sizes();
  const int64_t sizes[] = {x[0] * x[1], x[2], x[3], x[4]};
  const int64_t weight_sizes[] = {kernel[0] * kernel[1], kernel[2], kernel[3], kernel[4]};
  const int64_t channels = call.conv.layer.out_channels, of_bias[] = {in.need_bias ? channels : 0};
  const int64_t of_vectors[] = {in.num_vectors(), channels};
  const std::vector<Tensor> found = {allocate(sizes, 4, dtype, device), allocate(weight_sizes, 4, dtype, device),
                                     allocate(of_bias, 1, dtype, device), allocate(of_vectors, 2, dtype, device)};
  call.conv.weight = pointer_of(of.weight);
  call.grad = pointer_of(room), call.grad_x = pointer_of(found[0]), call.grad_weight = pointer_of(found[1]);
  GroupNormGradientCall& behind = call.of_chain;
  behind.value = in.value ? pointer_of(*in.value) : call.grad;
  if (in.need_bias) behind.grad_sums = pointer_of(found[2]);
  const int64_t row_bytes = channels * static_cast<int64_t>(aoti_torch_dtype_element_size(dtype));
  for (int64_t i = 0; i < of_vectors[0]; ++i)
    behind.grad_vectors[i] = static_cast<char*>(pointer_of(found[3])) + i * row_bytes;
  launch(call, device);
  return found;
}

inline void run_depth_chain_gradients(StableIValue* values, uint64_t, uint64_t) {
  Stack stack(values);
  DepthChainInputs inputs(stack);
  const std::vector<Tensor> found = chain_gradients_of_volumes(inputs);
  stack.give(found[0], found[1], found[2], found[3]);
}

}  // namespace binding
}  // namespace tconv

#define TCONV_IMPLEMENT_DEPTH_CHAINS(DEVICE)                                           \
  TCONV_LIBRARY_IMPL(TCONV_NAMESPACE, DEVICE, library) {                               \
    library.impl("depth_chain_gradients", &tconv::binding::run_depth_chain_gradients); \
  }
#define TCONV_REGISTER_DEPTH_CHAINS                                                                              \
  TCONV_DEPTH_LIBRARY(TCONV_NAMESPACE, library) {                                                                \
    library.def("depth_chain_gradients(Tensor grad, " TCONV_DEPTH_SCHEMA                                         \
                ", Tensor? value=None, int chain=0, bool need_bias=False) -> (Tensor, Tensor, Tensor, Tensor)"); \
  }                                                                                                              \
  TCONV_IMPLEMENT_DEPTH_CHAINS(CPU)                                                                              \
  TCONV_IMPLEMENT_DEPTH_CHAINS(CUDA)
