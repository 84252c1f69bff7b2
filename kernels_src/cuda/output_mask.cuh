// A byte beside each output: does the condition hold on which alone the gradient of the chain depends? Backward then
// reads it in place of the convolution's output.
#pragma once

#include "../epilogue.h"
#include "storage.cuh"

namespace tconv {
namespace cuda {

// Of what the chain is given, as it would be stored: that is what the gradient would read.
template <typename Storage>
__device__ __forceinline__ bool condition_holds(float value) {
  return Epilogue::condition(static_cast<float>(to_storage<Storage>(value)));
}

}  // namespace cuda
}  // namespace tconv
