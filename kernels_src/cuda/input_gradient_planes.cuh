// g of a strided layer -> its planes (sliding_layer.h), zeros where a tap would read outside g:
//   grad [batch, out_channels, out_h, out_w], any strides -> planes [batch][group][class h][class w][oc of
//   group][plane_h][pitch]
// A thread per kVector values of a row, of all its classes in w: they are read from the same stretch of g.
#pragma once

#include "../gradient_call.h"
#include "check.h"
#include "fast_divisor.h"
#include "gradient_sums.cuh"
#include "sliding_layer.h"

namespace tconv {
namespace cuda {

struct GradientPlanesConfig {
  static constexpr int kThreads = 256;
  static constexpr int kVector = 4;  // pitch is a multiple of it
  static constexpr int kMostBlocks = 1 << 20, kMostFallbackBlocks = 1024;
};

template <typename Storage>
struct alignas(GradientPlanesConfig::kVector * sizeof(Storage)) PlaneVector {
  Storage values[GradientPlanesConfig::kVector];
};

template <typename Storage>
struct GradientPlanesArgs {
  const Storage* grad;
  int64_t stride_n, stride_c, stride_h, stride_w;  // of grad
  int64_t out_h, out_w, layer_stride_h, layer_stride_w, dilation_h, dilation_w, padding_h, padding_w;
  Storage* planes;
  int* not_finite;     // null, or set to 1 where a value of the planes is infinite or NaN
  const int* only_if;  // null, or not 0 where the planes are wanted
  int64_t num_units, groups, oc_per_group, plane_h, pitch;
  int classes_h, classes_w;
  FastDivisor64 by_vectors, by_plane_h, by_oc, by_classes_h, by_groups;
#ifdef TCONV_WALKS_DEPTH
  DepthAxis depth;  // a call of two dimensions has one slice
  FastDivisor64 by_plane_d, by_classes_d;
#endif
};

template <typename Storage>
__global__ void __launch_bounds__(GradientPlanesConfig::kThreads)
    gradient_planes_kernel(const __grid_constant__ GradientPlanesArgs<Storage> args) {
  using Config = GradientPlanesConfig;
  if (args.only_if != nullptr && *args.only_if == 0) return;
  const int64_t step = static_cast<int64_t>(gridDim.x) * Config::kThreads;
  for (int64_t unit = static_cast<int64_t>(blockIdx.x) * Config::kThreads + threadIdx.x; unit < args.num_units;
       unit += step) {
    int64_t rest = unit;
    const auto next_digit = [&rest](const FastDivisor64& by) {
      const int64_t quotient = by.quotient(rest), digit = rest - quotient * static_cast<int64_t>(by.divisor);
      rest = quotient;
      return digit;
    };
    const int64_t w = next_digit(args.by_vectors) * Config::kVector, h = next_digit(args.by_plane_h);
#ifdef TCONV_WALKS_DEPTH
    const int64_t d = next_digit(args.by_plane_d);
#endif
    const int64_t oc = next_digit(args.by_oc), class_h = next_digit(args.by_classes_h);
#ifdef TCONV_WALKS_DEPTH
    const int64_t class_d = next_digit(args.by_classes_d);
    const int64_t od = d * args.depth.stride + class_d * args.depth.dilation - args.depth.padding;
#endif
    const int64_t group = next_digit(args.by_groups);  // rest: the sample
    const int64_t oh = h * args.layer_stride_h + class_h * args.dilation_h - args.padding_h;
#ifdef TCONV_WALKS_DEPTH
    const bool inside = oh >= 0 && oh < args.out_h && od >= 0 && od < args.depth.out;
    const Storage* const source = args.grad + rest * args.stride_n + (group * args.oc_per_group + oc) * args.stride_c +
                                  od * args.depth.grad_stride + oh * args.stride_h;
    const int64_t plane_d = static_cast<int64_t>(args.by_plane_d.divisor),
                  classes_d = static_cast<int64_t>(args.by_classes_d.divisor);
    const int64_t plane =
        (((rest * args.groups + group) * classes_d + class_d) * args.classes_h + class_h) * args.classes_w;
    Storage* to = args.planes + (((plane * args.oc_per_group + oc) * plane_d + d) * args.plane_h + h) * args.pitch + w;
    const int64_t to_next_class = args.oc_per_group * plane_d * args.plane_h * args.pitch;
#else
    const bool inside = oh >= 0 && oh < args.out_h;
    const Storage* const source =
        args.grad + rest * args.stride_n + (group * args.oc_per_group + oc) * args.stride_c + oh * args.stride_h;
    const int64_t plane = ((rest * args.groups + group) * args.classes_h + class_h) * args.classes_w;
    Storage* to = args.planes + ((plane * args.oc_per_group + oc) * args.plane_h + h) * args.pitch + w;
    const int64_t to_next_class = args.oc_per_group * args.plane_h * args.pitch;
#endif
    bool finite = true;
#pragma unroll 2
    for (int class_w = 0; class_w < args.classes_w; ++class_w, to += to_next_class) {
      const int64_t first = w * args.layer_stride_w + class_w * args.dilation_w - args.padding_w;
      PlaneVector<Storage> made;
#pragma unroll
      for (int i = 0; i < Config::kVector; ++i) {
        const int64_t ow = first + i * args.layer_stride_w;
        made.values[i] = static_cast<Storage>(0.0f);
        if (inside && ow >= 0 && ow < args.out_w) made.values[i] = source[ow * args.stride_w];
        finite = finite && is_finite(made.values[i]);
      }
      *reinterpret_cast<PlaneVector<Storage>*>(to) = made;
    }
    if (args.not_finite != nullptr && !finite) *args.not_finite = 1;
  }
}

template <typename Storage>
int64_t launch_gradient_planes(const GradientCall& call, const SlidingLayer& sliding, int64_t pitch, void* planes,
                               int* not_finite, const int* only_if = nullptr) {
  using Config = GradientPlanesConfig;
  const ConvTransposeLayer& p = call.conv.layer;
  GradientPlanesArgs<Storage> args;
  args.grad = static_cast<const Storage*>(call.grad);
  args.stride_n = call.grad_stride_n, args.stride_c = call.grad_stride_c;
  args.stride_h = call.grad_stride_h, args.stride_w = call.grad_stride_w;
  args.out_h = p.out_h, args.out_w = p.out_w;
  args.layer_stride_h = p.stride_h, args.layer_stride_w = p.stride_w;
  args.dilation_h = p.dilation_h, args.dilation_w = p.dilation_w;
  args.padding_h = p.padding_h, args.padding_w = p.padding_w;
  args.planes = static_cast<Storage*>(planes);
  args.not_finite = not_finite, args.only_if = only_if;
  args.groups = p.groups, args.oc_per_group = p.out_channels / p.groups;
  args.plane_h = sliding.h.plane_size, args.pitch = pitch;
  args.classes_h = static_cast<int>(sliding.h.classes), args.classes_w = static_cast<int>(sliding.w.classes);
  const int64_t vectors = pitch / Config::kVector;
  args.num_units = p.batch * p.groups * args.classes_h * args.oc_per_group * args.plane_h * vectors;
#ifdef TCONV_WALKS_DEPTH
  args.depth = call.depth;
  if (call.depth.in == 0) args.depth = {1, 1, 1, 1, 0, 1, 0};
  args.num_units *= sliding.d.plane_size * sliding.d.classes;
  args.by_plane_d = FastDivisor64::make(static_cast<uint64_t>(sliding.d.plane_size));
  args.by_classes_d = FastDivisor64::make(static_cast<uint64_t>(sliding.d.classes));
#endif
  args.by_vectors = FastDivisor64::make(static_cast<uint64_t>(vectors));
  args.by_plane_h = FastDivisor64::make(static_cast<uint64_t>(args.plane_h));
  args.by_oc = FastDivisor64::make(static_cast<uint64_t>(args.oc_per_group));
  args.by_classes_h = FastDivisor64::make(static_cast<uint64_t>(args.classes_h));
  args.by_groups = FastDivisor64::make(static_cast<uint64_t>(p.groups));
  const int64_t blocks = (args.num_units + Config::kThreads - 1) / Config::kThreads;
  // Those that as a rule find nothing to do are few.
  const int64_t most = only_if != nullptr ? Config::kMostFallbackBlocks : Config::kMostBlocks;
  return launch_kernel(gradient_planes_kernel<Storage>, dim3(static_cast<unsigned>(blocks < most ? blocks : most)),
                       dim3(Config::kThreads), 0, call.conv.stream, args);
}

}  // namespace cuda
}  // namespace tconv
