// A layer's gradients as sliding products of stride one. Plain C++.
//
// Tap k of one axis reads g at i*s - p + k*d for input i. With g' = gcd(s, d) the taps fall into classes c = k mod
// (s/g'), and those of one class read one plane of g, every s-th row or column, at distances of d/g':
//
//   k = c + m * (s/g')      reads      plane_c[i + m * (d/g')],      plane_c[j] = g[j*s + c*d - p]
//
// Planes are further channels: [group][class h][class w][out channel of the group], and a tap is m alone. With stride
// one there is one class, and its plane is g itself, shifted by the padding.
#pragma once

#ifdef TCONV_WALKS_DEPTH
#include "../depth_walk.h"
#endif
#include "../layer.h"

namespace tconv {
namespace cuda {

struct SlidingAxis {
  int64_t classes, taps;  // taps: of a class, the most; those beyond the kernel's end have no weights
  int64_t step;           // of the plane, from one tap to the next
  int64_t kernel_step;    // of the kernel, from one tap of a class to the next
  int64_t plane_size;     // what the taps of all inputs read
};

inline SlidingAxis sliding_axis(int64_t in, int64_t kernel, int64_t stride, int64_t dilation) {
  const int64_t common = gcd(stride, dilation);
  SlidingAxis axis;
  axis.kernel_step = stride / common;
  axis.step = dilation / common;
  axis.classes = kernel < axis.kernel_step ? kernel : axis.kernel_step;
  axis.taps = (kernel + axis.kernel_step - 1) / axis.kernel_step;
  axis.plane_size = in + (axis.taps - 1) * axis.step;
  return axis;
}

struct SlidingLayer {
  SlidingAxis h, w;
  int64_t channels_per_group;  // of all planes
  bool strided;                // planes are not g itself
  bool absent_taps;            // some class has fewer taps than others: those it lacks are multiplied as zeros

#ifdef TCONV_WALKS_DEPTH
  SlidingAxis d = {1, 1, 1, 1, 1};  // its classes are outside those of h

  SlidingLayer(const ConvTransposeLayer& p, const DepthAxis& axis) : SlidingLayer(p) {
    if (axis.in == 0) return;
    d = sliding_axis(axis.in, axis.kernel, axis.stride, axis.dilation);
    channels_per_group *= d.classes;
    strided = strided || axis.stride != 1;
    absent_taps = absent_taps || d.classes * d.taps != axis.kernel;
  }
#endif
  explicit SlidingLayer(const ConvTransposeLayer& p)
      : h(sliding_axis(p.in_h, p.kernel_h, p.stride_h, p.dilation_h)),
        w(sliding_axis(p.in_w, p.kernel_w, p.stride_w, p.dilation_w)),
        channels_per_group(h.classes * w.classes * (p.out_channels / p.groups)),
        strided(p.stride_h != 1 || p.stride_w != 1),
        absent_taps(h.classes * h.taps != p.kernel_h || w.classes * w.taps != p.kernel_w) {}
};

// Channel of all planes of a group -> class and out channel of the group.
struct PlaneChannel {
  int64_t class_h, class_w, oc;

  TCONV_HD PlaneChannel(int64_t channel, int64_t classes_w, int64_t oc_per_group) {
    const int64_t both = channel / oc_per_group;
    oc = channel - both * oc_per_group;
    class_h = both / classes_w;
    class_w = both - class_h * classes_w;
  }
};

}  // namespace cuda
}  // namespace tconv
