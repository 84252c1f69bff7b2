// The operators of the library of tails, each with the element-wise steps of the tail that a number names: LayerNorm
// over rows of a channel's own, softmax over channels, pools of volumes over windows side by side; GroupNorm and
// BatchNorm, which give the result and the maps that their gradients read.
#include "../tail_call.h"
#include "cuda_half.h"

TCONV_DECLARE_CUDA_HALF(TailCall)

#include "norm_tail_inputs.h"
#include "running_statistics.h"

namespace tconv {
namespace binding {

void layer_norm(StableIValue* values, uint64_t, uint64_t) {
  Stack stack(values);
  TailOperands in(stack);
  RowNormOperands norm(stack);
  in.take_vectors(stack);
  in.check();
  norm.check(in);
  const Tensor result = in.result_of(in.value.sizes().data());
  TailCall call = in.call(TailOperator::kLayerNorm, result);
  norm.fill(call, in.value, reinterpret_cast<uintptr_t>(call.value) | reinterpret_cast<uintptr_t>(call.result));
  if (result.numel() > 0) launch(call, device_of(in.value));
  stack.give(result);
}

void softmax(StableIValue* values, uint64_t, uint64_t) {
  Stack stack(values);
  TailOperands in(stack);
  in.take_vectors(stack);
  in.check();
  if (in.value.size(1) > kMostSoftmaxChannels)
    refuse("value must have at most ", kMostSoftmaxChannels, " channels, got ", in.value.size(1));
  const Tensor result = in.result_of(in.value.sizes().data());
  TailCall call = in.call(TailOperator::kSoftmax, result);
  if (result.numel() > 0) launch(call, device_of(in.value));
  stack.give(result);
}

void plane_softmax(StableIValue* values, uint64_t, uint64_t) {
  Stack stack(values);
  TailOperands in(stack);
  in.take_vectors(stack);
  in.check();
  const Tensor result = in.result_of(in.value.sizes().data());
  TailCall call = in.call(TailOperator::kPlaneSoftmax, result);
  if (result.numel() > 0) launch(call, device_of(in.value));
  stack.give(result);
}

void pool(StableIValue* values, uint64_t, uint64_t) {
  Stack stack(values);
  TailOperands in(stack);
  const PoolWindow window(stack);
  in.take_vectors(stack);
  window.check(in);
  in.check();
  int64_t sizes[5];
  window.outputs_of(in.value, sizes);
  const Tensor result = in.result_of(sizes);
  TailCall call = in.call(TailOperator::kPool, result);
  window.fill(call, in.value);
  if (result.numel() > 0) launch(call, device_of(in.value));
  stack.give(result);
}

void group_norm(StableIValue* values, uint64_t, uint64_t) {
  constexpr TailOperator kAsked = TailOperator::kGroupNorm;
  Stack stack(values);
  TailOperands in(stack);
  ChannelNormOperands norm(stack);
  norm.num_groups = stack.integer(), norm.eps = stack.number();
  in.check();
  norm.check(in, kAsked);
  const Tensor result = in.result_of(in.value.sizes().data()), maps = norm.allocate_maps(in.value, kAsked);
  TailCall call = in.call(kAsked, result);
  norm.fill(call, maps);
  if (result.numel() > 0) launch(call, device_of(in.value));
  stack.give(result, maps);
}

// running_mean and running_var, where given, move towards the batch's statistics by momentum or, where num_batches is
// given, by 1 / num_batches.
void normalise_batch(StableIValue* values, TailOperator asked) {
  Stack stack(values);
  TailOperands in(stack);
  ChannelNormOperands norm(stack);
  OptionalTensor running_mean = stack.optional_tensor(), running_var = stack.optional_tensor();
  OptionalTensor num_batches = stack.optional_tensor();
  const double momentum = stack.number();
  norm.eps = stack.number();
  in.check();
  norm.check(in, asked);
  check_written("running_mean", running_mean, in.value.size(1), in.value);
  check_written("running_var", running_var, in.value.size(1), in.value);
  const Tensor result = in.result_of(in.value.sizes().data()), maps = norm.allocate_maps(in.value, asked);
  TailCall call = in.call(asked, result);
  norm.fill(call, maps);
  call.updated = {pointer_of(running_mean), pointer_of(running_var), momentum,
                  static_cast<const int64_t*>(pointer_of(num_batches))};
  launch(call, device_of(in.value));
  stack.give(result, maps);
}

void batch_norm(StableIValue* values, uint64_t, uint64_t) { normalise_batch(values, TailOperator::kBatchNorm); }

#ifdef TCONV_CENTRED_TAILS
void centred_batch_norm(StableIValue* values, uint64_t, uint64_t) {
  normalise_batch(values, TailOperator::kCentredBatchNorm);
}
#endif

}  // namespace binding
}  // namespace tconv

TCONV_LIBRARY(TCONV_NAMESPACE, library) {
  library.def(
      "layer_norm(int number, Tensor value, Tensor? weight, Tensor? bias, float eps, int row, " TCONV_VECTORS_SCHEMA
      ") -> Tensor");
  library.def("softmax(int number, Tensor value, " TCONV_VECTORS_SCHEMA ") -> Tensor");
  library.def("plane_softmax(int number, Tensor value, " TCONV_VECTORS_SCHEMA ") -> Tensor");
  library.def("pool(int number, Tensor value, int window_d, int window_h, int window_w, " TCONV_VECTORS_SCHEMA
              ") -> Tensor");
  library.def(
      "group_norm(int number, Tensor value, Tensor? weight, Tensor? bias, int num_groups, float eps) "
      "-> (Tensor, Tensor)");
  library.def(
      "batch_norm(int number, Tensor value, Tensor? weight, Tensor? bias, Tensor(a!)? running_mean, "
      "Tensor(b!)? running_var, Tensor? num_batches, float momentum, float eps) -> (Tensor, Tensor)");
#ifdef TCONV_CENTRED_TAILS
  library.def(
      "centred_batch_norm(int number, Tensor value, Tensor? weight, Tensor? bias, Tensor(a!)? running_mean, "
      "Tensor(b!)? running_var, Tensor? num_batches, float momentum, float eps) -> (Tensor, Tensor)");
#endif
}
TCONV_LIBRARY_IMPL(TCONV_NAMESPACE, CPU, library) {
  library.impl("layer_norm", &tconv::binding::layer_norm), library.impl("softmax", &tconv::binding::softmax);
  library.impl("plane_softmax", &tconv::binding::plane_softmax), library.impl("pool", &tconv::binding::pool);
  library.impl("group_norm", &tconv::binding::group_norm);
  library.impl("batch_norm", &tconv::binding::batch_norm);
#ifdef TCONV_CENTRED_TAILS
  library.impl("centred_batch_norm", &tconv::binding::centred_batch_norm);
#endif
}
TCONV_LIBRARY_IMPL(TCONV_NAMESPACE, CUDA, library) {
  library.impl("layer_norm", &tconv::binding::layer_norm), library.impl("softmax", &tconv::binding::softmax);
  library.impl("plane_softmax", &tconv::binding::plane_softmax), library.impl("pool", &tconv::binding::pool);
  library.impl("group_norm", &tconv::binding::group_norm);
  library.impl("batch_norm", &tconv::binding::batch_norm);
#ifdef TCONV_CENTRED_TAILS
  library.impl("centred_batch_norm", &tconv::binding::centred_batch_norm);
#endif
}
