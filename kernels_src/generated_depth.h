// Whether calls may be slices of volumes: not here. The generator puts depth_walk.h in this file's place where a
// solution has a transposed convolution of three dimensions.
#pragma once

#include <cstdint>

namespace tconv {

constexpr bool kWalksDepth = false;
struct DepthWalk {
  bool walks() const { return false; }
  int64_t key() const { return 0; }
  int64_t tap_count() const { return 1; }
};

}  // namespace tconv
