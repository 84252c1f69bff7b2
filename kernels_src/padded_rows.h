// Rows of a tensor that are followed by zeros up to whole vectors of values: kernels that slide over images load these
// at once where every row begins at one.
#pragma once

#include "common.h"

namespace tconv {

constexpr int64_t kRowVector = 4;  // values

TCONV_HD int64_t padded_columns(int64_t columns) { return (columns + kRowVector - 1) / kRowVector * kRowVector; }

}  // namespace tconv
