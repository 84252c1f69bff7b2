// A layer of few channels whose numbers are compiled in (generated_few_channels.h): of one axis, which taps an output
// reads and from where. Everything is a constant expression.
#pragma once

#include "../layer.h"

namespace tconv {
namespace cuda {

// As make_axis_phase in layer.h: output residue + stride * q reads through tap k input q + offset, where that is whole.
struct FewChannelsAxis {
  int kernel, stride, padding, dilation;

  TCONV_HD constexpr int numerator(int tap) const { return padding - dilation * tap; }
  // The residue of the outputs that read through a tap, and from where.
  TCONV_HD constexpr int residue(int tap) const { return ((-numerator(tap)) % stride + stride) % stride; }
  TCONV_HD constexpr int offset(int tap) const { return (residue(tap) + numerator(tap)) / stride; }

  TCONV_HD constexpr int least_offset() const {
    int least = offset(0);
    for (int tap = 1; tap < kernel; ++tap) least = offset(tap) < least ? offset(tap) : least;
    return least;
  }
  TCONV_HD constexpr int window() const {  // inputs that the outputs of one q read
    int most = offset(0);
    for (int tap = 1; tap < kernel; ++tap) most = offset(tap) > most ? offset(tap) : most;
    return most - least_offset() + 1;
  }
  // How many taps the outputs of a residue read.
  TCONV_HD constexpr int taps_of(int of_residue) const {
    int count = 0;
    for (int tap = 0; tap < kernel; ++tap) count += residue(tap) == of_residue;
    return count;
  }
  TCONV_HD constexpr bool has_residue_of(int taps) const {
    for (int r = 0; r < stride; ++r)
      if (taps_of(r) == taps) return true;
    return false;
  }
};

template <typename Layer>
TCONV_HD constexpr FewChannelsAxis few_channels_axis(int axis) {
  return {Layer::kKernel[axis], Layer::kStride[axis], Layer::kPadding[axis], Layer::kDilation[axis]};
}

}  // namespace cuda
}  // namespace tconv
