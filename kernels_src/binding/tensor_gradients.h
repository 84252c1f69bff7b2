// Gradients of a chain's operands that have the output's shape: what the operators of chains' gradients take and return
// beside the rest, where a solution has such operands.
#pragma once

#ifdef TCONV_CHAINS_READ_TENSORS

#include "../group_norm_gradient_call.h"
#include "stack.h"
#include "tensor_operands.h"

#define TCONV_TENSORS_SCHEMA ", int tensors, int need_tensors"
#define TCONV_TENSORS_RESULT ", Tensor"

namespace tconv {
namespace binding {

struct TensorGradients {
  int64_t tensors, wanted;  // bit i: operand i has the output's shape; its gradient is wanted

  explicit TensorGradients(Stack& stack) : tensors(stack.integer()), wanted(stack.integer() & tensors) {}

  // Makes operands what the kernels read. Those of the output's shape are missing where backward does not read them.
  void check(OptionalTensor (&operands)[kMaxChannelVectors], const int64_t (&sizes)[4], const Tensor& x) const {
    for (int i = 0; i < kMaxChannelVectors; ++i) {
      if (!(tensors >> i & 1))
        check_channel_vector("a chain's operand", operands[i], sizes[1], x);
      else if (operands[i])
        check_tensor_operand(operands[i], sizes, 4, x);
      operands[i] = dense(operands[i]);
    }
  }

  // [the wanted ones, sizes], and the call's places for them.
  Tensor allocate_for(GroupNormGradientCall* call, const int64_t (&sizes)[4], int32_t dtype,
                      const Device& device) const {
    int64_t all[] = {0, sizes[0], sizes[1], sizes[2], sizes[3]};
    for (int i = 0; i < kMaxChannelVectors; ++i) all[0] += wanted >> i & 1;
    const Tensor made = allocate(all, 5, dtype, device);
    char* next = static_cast<char*>(pointer_of(made));
    const int64_t element = static_cast<int64_t>(aoti_torch_dtype_element_size(dtype));
    for (int i = 0; i < kMaxChannelVectors; ++i) {
      if (!(wanted >> i & 1)) continue;
      call->grad_tensors[i] = next;
      next += sizes[0] * sizes[1] * sizes[2] * sizes[3] * element;
    }
    return made;
  }
};

}  // namespace binding
}  // namespace tconv

#else
#define TCONV_TENSORS_SCHEMA
#define TCONV_TENSORS_RESULT
#endif
