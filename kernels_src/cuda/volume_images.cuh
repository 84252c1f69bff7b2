// Where the kernels of the weight gradient find images that are slices of volumes, and where its values go
// (depth_walk.h). A call of two dimensions has volumes of one slice.
#pragma once

#include "../gradient_call.h"
#include "fast_divisor.h"

namespace tconv {
namespace cuda {

// Images of x, which have the channels of every depth tap, or of grad, which have those of one slice; or of grad's
// planes in depth (sliding_layer.h), which have those of a slice for each class.
struct VolumeImages {
  FastDivisor64 by_slices, by_tap_channels;  // images of a volume; channels of a tap and group
  int64_t depth, first_slice, tap_slices;    // slices of the tensor; that of tap 0 in image 0; from tap to tap
  int64_t stride_n, stride_c, stride_d;
  int64_t image_slices = 1, class_slices = 0;  // from image to image, and from class to class

  static VolumeImages of_x(const ConvCall& call) {
    const ConvTransposeLayer& p = call.layer;
    const DepthWalk& depth = call.depth;
    const FastDivisor64 by_channels = FastDivisor64::make(p.in_channels / p.groups / depth.tap_count());
    if (!depth.walks()) return one_slice(by_channels, p.x_stride_n, p.x_stride_c);
    return {FastDivisor64::make(depth.slices),
            by_channels,
            depth.in_depth,
            depth.first,
            depth.step,
            depth.x_stride_n,
            p.x_stride_c,
            depth.x_stride_d};
  }

  static VolumeImages of_grad(const GradientCall& call) {
    const DepthWalk& depth = call.conv.depth;
    const DepthAxis& axis = call.depth;
    const FastDivisor64 by_channels = FastDivisor64::make(call.conv.layer.out_channels / call.conv.layer.groups);
    if (axis.in > 0)
      return {FastDivisor64::make(depth.slices),
              by_channels,
              axis.out,
              -axis.padding,
              0,
              call.grad_stride_n,
              call.grad_stride_c,
              axis.grad_stride,
              axis.stride,
              axis.dilation};
    if (!depth.walks()) return one_slice(by_channels, call.grad_stride_n, call.grad_stride_c);
    return {FastDivisor64::make(depth.slices),
            by_channels,
            depth.slices,
            0,
            0,
            depth.out_stride_n,
            depth.out_stride_c,
            depth.out_stride_d};
  }

 private:
  static VolumeImages one_slice(const FastDivisor64& by_channels, int64_t stride_n, int64_t stride_c) {
    return {FastDivisor64::make(1), by_channels, 1, 0, 0, stride_n, stride_c, 0};
  }
};

// What a channel of an image, counted in its group, is in the tensor.
struct ImageSlice {
  bool there;      // or zeros
  int64_t offset;  // from the tensor's value to the image's, where channels are counted as the image does

  TCONV_HD ImageSlice(const VolumeImages& images, int64_t image, int64_t channel, int64_t class_d = 0) {
    const int64_t volume = images.by_slices.quotient(image), tap = images.by_tap_channels.quotient(channel);
    const int64_t nth = image - volume * static_cast<int64_t>(images.by_slices.divisor);
    const int64_t slice =
        nth * images.image_slices + images.first_slice + tap * images.tap_slices + class_d * images.class_slices;
    there = slice >= 0 && slice < images.depth;
    offset = volume * images.stride_n + slice * images.stride_d -
             tap * static_cast<int64_t>(images.by_tap_channels.divisor) * images.stride_c;
  }
};

// The weight's values, of whose depth taps a call has some; of a class in depth, those from that place on.
struct WeightPlaces {
  int64_t ic_per_group, oc_per_group, tap_channels, plane_taps;
  int64_t kernel_depth, kernel_first, kernel_step;

  WeightPlaces() = default;
  explicit WeightPlaces(const ConvCall& call) {
    const ConvTransposeLayer& p = call.layer;
    const DepthWalk& depth = call.depth;
    ic_per_group = p.in_channels / p.groups, oc_per_group = p.out_channels / p.groups;
    tap_channels = ic_per_group / depth.tap_count(), plane_taps = p.kernel_h * p.kernel_w;
    kernel_depth = depth.walks() ? depth.kernel_depth : 1;
    kernel_first = depth.kernel_first, kernel_step = depth.kernel_step;
  }

  // The first of a pair of channels: the call's in channel, the group's out channel. -1: the class has no such tap.
  TCONV_HD int64_t of_pair(int64_t ic, int64_t oc, int64_t class_d = 0) const {
    const int64_t group = ic / ic_per_group, channel = ic - group * ic_per_group, tap = channel / tap_channels;
    const int64_t pair = (group * tap_channels + channel - tap * tap_channels) * oc_per_group + oc;
    const int64_t kd = class_d + kernel_first - tap * kernel_step;
    return kd < kernel_depth ? (pair * kernel_depth + kd) * plane_taps : -1;
  }
};

}  // namespace cuda
}  // namespace tconv
