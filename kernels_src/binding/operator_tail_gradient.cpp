// The operators of the library of the gradients through tails: of the tail that a number names, from `grad`, that of
// its result. Each gives the gradient of value, and sums [n, row or channels] whose rows are those that `wanted` has a
// bit for: of norms the gradients of weight and bias, else those of the steps' operands by index.
#include "../tail_gradient_call.h"
#include "cuda_half.h"

TCONV_DECLARE_CUDA_HALF(TailGradientCall)

#include "norm_tail_inputs.h"

namespace tconv {
namespace binding {

// What every operator is given besides: grad behind the number, and at the end what sums are wanted.
struct TailGradientOperands {
  Tensor grad;
  TailOperands in;
  int64_t wanted = 0;

  static TailGradientOperands from(Stack& stack) {
    const int64_t number = stack.integer();
    Tensor grad = stack.tensor();
    return {grad, TailOperands(number, stack.tensor())};
  }

  void take_rest(Stack& stack) {
    wanted = stack.integer();
    in.take_vectors(stack);
  }

  // of_result: the shape that grad must have.
  void check(const int64_t* of_result, int sums) {
    in.check();
    check_same_kind("grad", grad, in.value);
    bool same = grad.dim() == in.value.dim();
    for (int64_t axis = 0; same && axis < grad.dim(); ++axis) same = grad.size(axis) == of_result[axis];
    if (!same) refuse("grad must have the shape of the tail's result, got ", shape_text(grad));
    if (wanted < 0 || wanted >= int64_t{1} << sums)
      refuse("wanted must be 0 to ", (int64_t{1} << sums) - 1, ", got ", wanted);
    grad = dense(grad);
  }

  // columns: of a sum. more(call): what the operator has besides.
  template <typename More>
  void run(Stack& stack, TailOperator asked, int64_t columns, const More& more) {
    const Tensor grad_value = in.result_of(in.value.sizes().data());
    TailGradientCall call = in.call<TailGradientCall>(asked, grad_value);
    call.grad = pointer_of(grad), call.grad_value = call.result, call.wanted = wanted;
    const int64_t sizes[] = {call.num_sums(), columns};
    const Tensor sums = allocate(sizes, 2, torch_dtype_of(in.value), device_of(in.value));
    call.sums = pointer_of(sums);
    more(call);
    if (in.value.numel() == 0) refuse("value must not be empty, got shape ", shape_text(in.value));
    launch(call, device_of(in.value));
    stack.give(grad_value, sums);
  }
};

void layer_norm_backward(StableIValue* values, uint64_t, uint64_t) {
  Stack stack(values);
  TailGradientOperands given = TailGradientOperands::from(stack);
  RowNormOperands norm(stack);
  given.take_rest(stack);
  given.check(given.in.value.sizes().data(), 2);
  norm.check(given.in);
  given.run(stack, TailOperator::kLayerNorm, norm.row, [&](TailGradientCall& call) {
    const auto places = reinterpret_cast<uintptr_t>(call.value) | reinterpret_cast<uintptr_t>(call.grad) |
                        reinterpret_cast<uintptr_t>(call.grad_value);
    norm.fill(call, given.in.value, places);
  });
}

void softmax_backward(StableIValue* values, uint64_t, uint64_t) {
  Stack stack(values);
  TailGradientOperands given = TailGradientOperands::from(stack);
  given.take_rest(stack);
  const Tensor& value = given.in.value;
  given.check(value.sizes().data(), kMaxChannelVectors);
  if (value.size(1) > kMostSoftmaxChannels)
    refuse("value must have at most ", kMostSoftmaxChannels, " channels, got ", value.size(1));
  if ((given.wanted & (given.wanted - 1)) != 0) refuse("wanted must have one bit at most, got ", given.wanted);
  given.run(stack, TailOperator::kSoftmax, value.size(1), [](TailGradientCall&) {});
}

void plane_softmax_backward(StableIValue* values, uint64_t, uint64_t) {
  Stack stack(values);
  TailGradientOperands given = TailGradientOperands::from(stack);
  given.take_rest(stack);
  given.check(given.in.value.sizes().data(), kMaxChannelVectors);
  given.run(stack, TailOperator::kPlaneSoftmax, given.in.value.size(1), [](TailGradientCall&) {});
}

void pool_backward(StableIValue* values, uint64_t, uint64_t) {
  Stack stack(values);
  TailGradientOperands given = TailGradientOperands::from(stack);
  const PoolWindow window(stack);
  given.take_rest(stack);
  window.check(given.in);
  int64_t sizes[5];
  window.outputs_of(given.in.value, sizes);
  given.check(sizes, kMaxChannelVectors);
  given.run(stack, TailOperator::kPool, given.in.value.size(1),
            [&](TailGradientCall& call) { window.fill(call, given.in.value); });
}

// Of GroupNorm, which has groups, or of BatchNorm.
void channel_norm_backward(Stack& stack, TailOperator asked) {
  TailGradientOperands given = TailGradientOperands::from(stack);
  ChannelNormOperands norm(stack);
  const Tensor maps = stack.tensor();
  if (asked == TailOperator::kGroupNorm) norm.num_groups = stack.integer();
  norm.eps = stack.number();
  given.wanted = stack.integer();
  const Tensor& value = given.in.value;
  given.check(value.sizes().data(), 2);
  norm.check(given.in, asked);
  norm.check_maps(maps, value, asked);
  given.run(stack, asked, value.size(1), [&](TailGradientCall& call) { norm.fill(call, maps); });
}

void group_norm_backward(StableIValue* values, uint64_t, uint64_t) {
  Stack stack(values);
  channel_norm_backward(stack, TailOperator::kGroupNorm);
}

void batch_norm_backward(StableIValue* values, uint64_t, uint64_t) {
  Stack stack(values);
  channel_norm_backward(stack, TailOperator::kBatchNorm);
}

#ifdef TCONV_CENTRED_TAILS
void centred_batch_norm_backward(StableIValue* values, uint64_t, uint64_t) {
  Stack stack(values);
  channel_norm_backward(stack, TailOperator::kCentredBatchNorm);
}
#endif

}  // namespace binding
}  // namespace tconv

TCONV_LIBRARY(TCONV_NAMESPACE, library) {
  library.def(
      "layer_norm_backward(int number, Tensor grad, Tensor value, Tensor? weight, Tensor? bias, float eps, int row, "
      "int wanted, " TCONV_VECTORS_SCHEMA ") -> (Tensor, Tensor)");
  library.def("softmax_backward(int number, Tensor grad, Tensor value, int wanted, " TCONV_VECTORS_SCHEMA
              ") -> (Tensor, Tensor)");
  library.def("plane_softmax_backward(int number, Tensor grad, Tensor value, int wanted, " TCONV_VECTORS_SCHEMA
              ") -> (Tensor, Tensor)");
  library.def(
      "pool_backward(int number, Tensor grad, Tensor value, int window_d, int window_h, int window_w, "
      "int wanted, " TCONV_VECTORS_SCHEMA ") -> (Tensor, Tensor)");
  library.def(
      "group_norm_backward(int number, Tensor grad, Tensor value, Tensor? weight, Tensor? bias, Tensor maps, "
      "int num_groups, float eps, int wanted) -> (Tensor, Tensor)");
  library.def(
      "batch_norm_backward(int number, Tensor grad, Tensor value, Tensor? weight, Tensor? bias, Tensor maps, "
      "float eps, int wanted) -> (Tensor, Tensor)");
#ifdef TCONV_CENTRED_TAILS
  library.def(
      "centred_batch_norm_backward(int number, Tensor grad, Tensor value, Tensor? weight, Tensor? bias, Tensor maps, "
      "float eps, int wanted) -> (Tensor, Tensor)");
#endif
}
TCONV_LIBRARY_IMPL(TCONV_NAMESPACE, CPU, library) {
  library.impl("layer_norm_backward", &tconv::binding::layer_norm_backward);
  library.impl("softmax_backward", &tconv::binding::softmax_backward);
  library.impl("plane_softmax_backward", &tconv::binding::plane_softmax_backward);
  library.impl("pool_backward", &tconv::binding::pool_backward);
  library.impl("group_norm_backward", &tconv::binding::group_norm_backward);
  library.impl("batch_norm_backward", &tconv::binding::batch_norm_backward);
#ifdef TCONV_CENTRED_TAILS
  library.impl("centred_batch_norm_backward", &tconv::binding::centred_batch_norm_backward);
#endif
}
TCONV_LIBRARY_IMPL(TCONV_NAMESPACE, CUDA, library) {
  library.impl("layer_norm_backward", &tconv::binding::layer_norm_backward);
  library.impl("softmax_backward", &tconv::binding::softmax_backward);
  library.impl("plane_softmax_backward", &tconv::binding::plane_softmax_backward);
  library.impl("pool_backward", &tconv::binding::pool_backward);
  library.impl("group_norm_backward", &tconv::binding::group_norm_backward);
  library.impl("batch_norm_backward", &tconv::binding::batch_norm_backward);
#ifdef TCONV_CENTRED_TAILS
  library.impl("centred_batch_norm_backward", &tconv::binding::centred_batch_norm_backward);
#endif
}
