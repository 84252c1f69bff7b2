// The operator of the library of GroupNorm's gradients: of `value`, whose chain of that number (generated_gradient.h)
// was normalised, contiguous, with pad_rows rows in whole vectors, zeros behind (padded_rows.h); of weight and bias,
// and the first one's sums per channel, where they are wanted.
#include "../group_norm_gradient_call.h"
#include "../padded_rows.h"
#include "cuda_half.h"

TCONV_DECLARE_CUDA_HALF(GroupNormGradientCall)

#include "run.h"
#include "stack.h"
#include "tensor_gradients.h"

namespace tconv {
namespace binding {

void backward(StableIValue* values, uint64_t, uint64_t) {
  Stack stack(values);
  Tensor grad = stack.tensor();
  Tensor value = stack.tensor();
  OptionalTensor weight = stack.optional_tensor();
  const int64_t num_groups = stack.integer();
  const double eps = stack.number();
  OptionalTensor vectors[kMaxChannelVectors];
  for (OptionalTensor& vector : vectors) vector = stack.optional_tensor();
  const bool need_weight = stack.boolean(), need_bias = stack.boolean(), need_sums = stack.boolean();
  const bool pad_rows = stack.boolean();
  const int64_t chain = stack.integer();
#ifdef TCONV_CHAINS_READ_TENSORS
  const TensorGradients tensors(stack);
#endif

  if (value.dim() != 4) refuse("value must have 4 dimensions, got ", shape_text(value));
  const auto sizes = value.sizes();
  check_same_kind("grad", grad, value);
  bool same = grad.dim() == 4;
  for (int64_t axis = 0; same && axis < 4; ++axis) same = grad.sizes()[axis] == sizes[axis];
  if (!same) refuse("grad must have the shape of value, ", shape_text(value), ", got ", shape_text(grad));
  if (num_groups < 0 || (num_groups > 0 && sizes[1] % num_groups != 0))
    refuse("num_groups must divide ", sizes[1], " channels or be 0, got ", num_groups);
  if (num_groups == 0 && (weight || need_weight || need_bias)) refuse("where nothing is normalised there is no weight");
  check_channel_vector("weight", weight, sizes[1], value);
  const Device device = device_of(value);
  const int32_t dtype = torch_dtype_of(value);
  grad = dense(grad), value = dense(value), weight = dense(weight);

  const int64_t row_columns = pad_rows ? padded_columns(sizes[3]) : sizes[3];
  const int64_t of_grad_value[] = {sizes[0], sizes[1], sizes[2], row_columns};
  const Tensor grad_value = allocate(of_grad_value, 4, dtype, device);
  const auto channel_values = [&](bool wanted) {
    const int64_t count = wanted ? sizes[1] : 0;
    return allocate(&count, 1, dtype, device);
  };
  const Tensor grad_weight = channel_values(need_weight), grad_bias = channel_values(need_bias);
  const Tensor grad_sums = channel_values(need_sums);
#ifdef TCONV_CHAINS_READ_TENSORS
  const int64_t of_tensors[] = {sizes[0], sizes[1], sizes[2], sizes[3]};
  tensors.check(vectors, of_tensors, value);
  const int64_t num_vectors = kMaxChannelVectors;
#else
  int64_t num_vectors = 0;
  for (OptionalTensor& vector : vectors) {
    check_channel_vector("a chain's operand", vector, sizes[1], value);
    vector = dense(vector);
    num_vectors += vector ? 1 : 0;
  }
#endif
  const int64_t of_vectors[] = {num_vectors, sizes[1]};
  const Tensor grad_vectors = allocate(of_vectors, 2, dtype, device);

  GroupNormGradientCall call{};
  ConvTransposeLayer none{};
  none.groups = 1;  // what counts threads divides by it
  call.conv = make_call(none, kernel_dtype(dtype), false);
  call.chain = chain;
  call.grad = pointer_of(grad), call.value = pointer_of(value), call.weight = pointer_of(weight);
  call.batch = sizes[0], call.channels = sizes[1], call.height = sizes[2], call.width = sizes[3];
  call.row_columns = row_columns;
  call.num_groups = num_groups, call.eps = eps;
  call.grad_value = pointer_of(grad_value);
  if (need_weight) call.grad_weight = pointer_of(grad_weight);
  if (need_bias) call.grad_bias = pointer_of(grad_bias);
  if (need_sums) call.grad_sums = pointer_of(grad_sums);
  const int64_t value_bytes = call.conv.dtype == kFloat64 ? 8 : call.conv.dtype == kFloat32 ? 4 : 2;
  for (int64_t i = 0; i < num_vectors; ++i) {
    call.conv.channel_vectors[i] = pointer_of(vectors[i]);
    call.grad_vectors[i] = static_cast<char*>(pointer_of(grad_vectors)) + i * sizes[1] * value_bytes;
  }
#ifdef TCONV_CHAINS_READ_TENSORS
  const Tensor grad_tensors = tensors.allocate_for(&call, of_tensors, dtype, device);
  if (value.numel() > 0) launch(call, device);
  stack.give(grad_value, grad_weight, grad_bias, grad_sums, grad_vectors, grad_tensors);
#else
  if (value.numel() > 0) launch(call, device);
  stack.give(grad_value, grad_weight, grad_bias, grad_sums, grad_vectors);
#endif
}

}  // namespace binding
}  // namespace tconv

TCONV_LIBRARY(TCONV_NAMESPACE, library) {
  library.def(
      "backward(Tensor grad, Tensor value, Tensor? weight, int num_groups, float eps, Tensor? vector0, "
      "Tensor? vector1, Tensor? vector2, Tensor? vector3, bool need_weight, bool need_bias, bool need_sums, "
      "bool pad_rows, int chain" TCONV_TENSORS_SCHEMA
      ") -> (Tensor, Tensor, Tensor, Tensor, Tensor" TCONV_TENSORS_RESULT ")");
}
TCONV_LIBRARY_IMPL(TCONV_NAMESPACE, CPU, library) { library.impl("backward", &tconv::binding::backward); }
TCONV_LIBRARY_IMPL(TCONV_NAMESPACE, CUDA, library) { library.impl("backward", &tconv::binding::backward); }
