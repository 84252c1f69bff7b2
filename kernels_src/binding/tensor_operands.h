// Operands of element-wise operations that have the output's shape.
#pragma once

#include <algorithm>

#include "arguments.h"

namespace tconv {
namespace binding {

inline bool has_shape(const Tensor& tensor, const int64_t* sizes, size_t dim) {
  const auto given = tensor.sizes();
  return given.size() == dim && std::equal(sizes, sizes + dim, given.data());
}

// sizes: the output's, of `dim` dimensions.
inline void check_tensor_operand(const OptionalTensor& value, const int64_t* sizes, size_t dim, const Tensor& x) {
  constexpr auto name = "an element-wise operand";
  if (!value || !has_shape(*value, sizes, dim))
    refuse(name, " must have the output's shape ", tuple_text(sizes, dim), ", got ",
           value ? shape_text(*value) : "none");
  check_same_kind(name, *value, x);
}

}  // namespace binding
}  // namespace tconv
