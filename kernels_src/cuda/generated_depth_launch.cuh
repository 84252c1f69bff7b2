// Calls whose images are slices of volumes: there are none. The generator puts depth_launch.cuh in this file's place
// where a solution has a transposed convolution of three dimensions.
#pragma once

#include "../call.h"

namespace tconv {
namespace cuda {

inline int64_t launch_depth_plain(const ConvCall&, void*, const int*) { return kUnsupportedKernel; }

}  // namespace cuda
}  // namespace tconv
