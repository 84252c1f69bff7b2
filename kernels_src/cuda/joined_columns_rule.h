// Whether joined columns pay.
#pragma once

#include "../joined_columns.h"
#ifdef TCONV_INTERLEAVES
#include "conv_transpose_interleaved_launch.cuh"
#endif

namespace tconv {
namespace cuda {

// Why not, of a layer that has them, or null.
inline const char* joined_is_slower(const ConvTransposeLayer& p) {
#ifdef TCONV_INTERLEAVES
  return stores_take_longest(p);
#else
  return p.stride_w > 2 ? reason::kColumnsApart : nullptr;
#endif
}

}  // namespace cuda
}  // namespace tconv
