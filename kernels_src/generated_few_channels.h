// Stand-in for what the generator writes: the layers of three dimensions and few channels of one reference, whose
// numbers its kernel is compiled for.
#pragma once

namespace tconv {

constexpr int kNumFewChannels = 1;

template <int kNumber>
struct FewChannels;

template <>
struct FewChannels<0> {
  static constexpr int kChannels = 3;  // of the input
  // Depth, height, width.
  static constexpr int kKernel[3] = {3, 3, 3}, kStride[3] = {2, 2, 2}, kPadding[3] = {1, 1, 1},
                       kDilation[3] = {1, 1, 1};
};

}  // namespace tconv
