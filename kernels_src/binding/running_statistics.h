// BatchNorm's running statistics, as operators are given them.
#pragma once

#include "arguments.h"

namespace tconv {
namespace binding {

inline void check_written(const char* name, const OptionalTensor& given, int64_t channels, const Tensor& value) {
  check_channel_vector(name, given, channels, value);
  if (given && !given->is_contiguous()) refuse(name, " must be contiguous to be written");
}

}  // namespace binding
}  // namespace tconv
