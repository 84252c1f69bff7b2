// The operator of three dimensions, for what the Hopper kernel, or the CPU's, takes without a copy of the input: slices
// of volumes as images (depth_walk.h). It declines everything else, and all that may be wrong, with an empty result:
// the caller then asks in another form (generator/runtime/dimensions.py), which also says what is wrong.
#pragma once

#ifdef TCONV_READS_TENSORS
#include <array>
#endif
#include <climits>

#include "../depth_residue.h"
#include "conv_inputs.h"

namespace tconv {
namespace binding {

// Parameters of nn.ConvTranspose3d: depth, then height and width.
struct DepthGeometry {
  int64_t stride, padding, output_padding, dilation;
  Geometry plane;
};

struct DepthInputs {
  Tensor x, weight;
  OptionalTensor bias;
  DepthGeometry g{};
  bool tf32;
  OptionalTensor vectors[kMaxChannelVectors];
#ifdef TCONV_READS_TENSORS
  OptionalTensor kept;  // for what the first tensor operand is joined to, beside the result
#endif
#ifdef TCONV_KEEPS_MASK
  bool wants_mask = false;
  OptionalTensor mask;  // of the result's shape, a byte each, where it is wanted and the kernels leave it
#endif

  explicit DepthInputs(Stack& stack) : x(stack.tensor()), weight(stack.tensor()), bias(stack.optional_tensor()) {
    g.stride = stack.integer(), g.plane.stride = stack.pair();
    g.padding = stack.integer(), g.plane.padding = stack.pair();
    g.output_padding = stack.integer(), g.plane.output_padding = stack.pair();
    g.dilation = stack.integer(), g.plane.dilation = stack.pair();
    g.plane.groups = stack.integer(), tf32 = stack.boolean();
    for (OptionalTensor& vector : vectors) vector = stack.optional_tensor();
#ifdef TCONV_READS_TENSORS
    kept = stack.optional_tensor();
#endif
  }

  bool is_of_kind(const Tensor& tensor) const {
    return torch_dtype_of(tensor) == torch_dtype_of(x) && device_of(tensor) == device_of(x);
  }

  bool is_vector(const OptionalTensor& value, int64_t channels) const {
    return !value || (value->dim() == 1 && value->size(0) == channels && is_of_kind(*value));
  }

  bool fits() const {
    if (x.dim() != 5 || weight.dim() != 5 || !is_of_kind(weight)) return false;
    const int64_t dtype = kernel_dtype(torch_dtype_of(x));
    const bool on_cpu = device_of(x).is_cpu();
    if (on_cpu ? dtype != kFloat32 : dtype != kFloat16 && dtype != kBFloat16 && dtype != kFloat32) return false;
    const int64_t least_of_plane[] = {g.plane.stride.smallest() - 1, g.plane.dilation.smallest() - 1,
                                      g.plane.padding.smallest(), g.plane.output_padding.smallest()};
    for (const int64_t value : least_of_plane)
      if (value < 0) return false;
    if (g.stride < 1 || g.dilation < 1 || g.padding < 0 || g.output_padding < 0 || g.plane.groups < 1) return false;
    if (g.output_padding >= std::max(g.stride, g.dilation)) return false;
    for (int axis = 0; axis < 2; ++axis)
      if (g.plane.output_padding[axis] >= std::max(g.plane.stride[axis], g.plane.dilation[axis])) return false;
    const auto sizes = x.sizes(), kernel = weight.sizes();
    for (size_t axis = 0; axis < 5; ++axis)
      if (sizes[axis] < 1 || kernel[axis] < 1 || sizes[axis] > INT_MAX / 4 || kernel[axis] > INT_MAX / 4) return false;
    if (kernel[0] != sizes[1] || sizes[1] % g.plane.groups != 0) return false;
    const int64_t of_group = sizes[1] / g.plane.groups;
    // Plans say whether a kernel takes those.
    const bool few = of_group < kDepthChannels || (of_group == kDepthChannels && g.plane.groups > 1);
    if (!on_cpu && !few && of_group % kDepthChannels != 0) return false;
    if (!on_cpu && of_group >= kDepthChannels && dtype == kFloat32 && !tf32) return false;
    const int64_t channels = kernel[1] * g.plane.groups;
    if (!is_vector(bias, channels)) return false;
#ifdef TCONV_READS_TENSORS
    for (int i = 0; i < kMaxChannelVectors; ++i)  // tensors are checked where the output's shape is known
      if (!(kTensorOperands >> i & 1) && !is_vector(vectors[i], channels)) return false;
#else
    for (const OptionalTensor& vector : vectors)
      if (!is_vector(vector, channels)) return false;
#endif
    return true;
  }

#ifdef TCONV_READS_TENSORS
  // A CPU reads tensor operands as it writes, from the residue's first slice on.
  bool joins_row_by_row() const { return device_of(x).is_cpu(); }

  bool tensors_fit(const std::array<int64_t, 5>& sizes) const {
    if (kept && (joins_row_by_row() || !is_of_kind(*kept) || !has_shape(*kept, sizes.data(), sizes.size()) ||
                 !kept->is_contiguous()))
      return false;
    for (int i = 0; i < kMaxChannelVectors; ++i) {
      if (!(kTensorOperands >> i & 1)) continue;
      if (!vectors[i] || !is_of_kind(*vectors[i]) || !has_shape(*vectors[i], sizes.data(), sizes.size())) return false;
    }
    return true;
  }
#endif

  // The layer of one image, without what a residue says.
  ConvTransposeLayer image() const {
    const auto sizes = x.sizes(), strides = x.strides(), kernel = weight.sizes();
    ConvTransposeLayer p{};
    p.groups = g.plane.groups, p.out_channels = kernel[1] * p.groups;
    p.in_h = sizes[3], p.in_w = sizes[4], p.kernel_h = kernel[3], p.kernel_w = kernel[4];
    p.out_h = output_size(sizes[3], kernel[3], 0, g.plane), p.out_w = output_size(sizes[4], kernel[4], 1, g.plane);
    p.stride_h = g.plane.stride.h, p.stride_w = g.plane.stride.w;
    p.padding_h = g.plane.padding.h, p.padding_w = g.plane.padding.w;
    p.dilation_h = g.plane.dilation.h, p.dilation_w = g.plane.dilation.w;
    // Both lead from image to image; plans ask of it only whether it is a multiple of something.
    p.x_stride_n = strides[0] | strides[2];
    p.x_stride_c = strides[1], p.x_stride_h = strides[3], p.x_stride_w = strides[4];
    return p;
  }

  int64_t out_depth() const {
    return (x.size(2) - 1) * g.stride - 2 * g.padding + g.dilation * (weight.size(2) - 1) + g.output_padding + 1;
  }

  // Of what fits.
  bool has_outputs() const {
    const ConvTransposeLayer p = image();
    return out_depth() >= 1 && out_depth() <= INT_MAX / 4 && p.out_h >= 1 && p.out_w >= 1;
  }
};

// Output slices `residue`, residue + stride, ... of every volume.
inline ConvCall residue_call(const DepthInputs& in, ConvTransposeLayer p, int64_t depth, int64_t residue) {
  DepthWalk walk =
      residue_walk({in.x.size(2), depth, in.weight.size(2), in.g.stride, in.g.padding, in.g.dilation, 0}, residue);
  const auto strides = in.x.strides();
  walk.x_stride_n = strides[0], walk.x_stride_d = strides[2];
  const int64_t plane = p.out_h * p.out_w;
  walk.out_stride_c = depth * plane, walk.out_stride_n = p.out_channels * walk.out_stride_c;
  walk.out_stride_d = in.g.stride * plane;
  p.batch = in.x.size(0) * walk.slices;
  p.in_channels = in.x.size(1) * walk.taps;
  ConvCall call = make_call(p, kernel_dtype(torch_dtype_of(in.x)), in.tf32);
  call.depth = walk;
  return call;
}

// The calls of several residues as one, where it can be: or no call at all. Few output channels have forms of their own
// (row_pairs.h, joined_columns.h), which know of no residues.
template <typename Call>
std::vector<Call> together(const std::vector<Call>& calls) {
  constexpr int64_t kFewChannels = 32;
  const ConvCall& first = calls[0].conv;
  const size_t residues = calls.size();
  if ((residues != 2 && residues != kMostResidues) || first.depth.taps == 0 || first.layer.stride_w > 2 ||
      first.layer.out_channels / first.layer.groups <= kFewChannels)
    return {};
  std::vector<Call> made = {calls[0]};
  DepthWalk& walk = made[0].conv.depth;
  walk.more_residues = static_cast<int64_t>(residues) - 1;
  for (size_t i = 1; i < residues; ++i) {
    const DepthWalk& other = calls[i].conv.depth;
    if (other.slices != walk.slices || other.taps != walk.taps) return {};
    walk.more_first[i - 1] = other.first, walk.more_kernel_first[i - 1] = other.kernel_first;
  }
  return made;
}

// Does the library serve all of these calls? It says so without a workspace, from pointers that are there.
template <typename Call>
bool all_served(const std::vector<Call>& calls, const Device& device) {
#if defined(TCONV_WITH_CUDA)
  std::optional<CurrentDevice> current;
  if (!device.is_cpu()) current.emplace(device);
  const auto workspace_bytes = device.is_cpu() ? tconv_cpu_workspace_bytes : tconv_cuda_workspace_bytes;
#else
  const auto workspace_bytes = tconv_cpu_workspace_bytes;
#endif
  for (const Call& call : calls)
    if (call.conv.layer.batch > INT_MAX / 4 || workspace_bytes(&call) < 0) return false;
  return true;
}

#ifdef TCONV_READS_TENSORS
// Do the kernels of all these calls read the chain's operand of the output's shape as they store their outputs? The
// CPU's half does not answer.
template <typename Call>
bool all_join(std::vector<Call> calls, const Device& device) {
  for (Call& call : calls) {
    bool can = false;
    call.conv.joined = calls.back().conv.joined;
    call.conv.joined.can = &can;
    if (!all_served(std::vector<Call>{call}, device) || !can) return false;
    call.conv.joined.can = nullptr;
  }
  return true;
}

#endif
#ifdef TCONV_KEEPS_MASK
// Do the kernels of all these calls leave a mask? The CPU's half does not answer.
template <typename Call>
bool all_keep_mask(std::vector<Call> calls, const Device& device) {
  for (Call& call : calls) {
    bool can = false;
    call.conv.mask.can = &can;
    if (!all_served(std::vector<Call>{call}, device) || !can) return false;
  }
  return true;
}

#endif
// The result [batch * out_channels, depth, height, width], or an empty tensor. Call: the argument block of the library
// that this is part of; of the gradients' it asks for the convolution (gradient_call.h).
template <typename Call>
Tensor convolve_volumes(DepthInputs& in) {
  const Device device = device_of(in.x);
  const int32_t dtype = torch_dtype_of(in.x);
  const int64_t nothing[] = {0};
  const auto declined = [&] { return allocate(nothing, 1, dtype, device); };
  if (!in.fits() || !in.has_outputs()) return declined();
  const ConvTransposeLayer image = in.image();
  const int64_t depth = in.out_depth();
#ifdef TCONV_READS_TENSORS
  if (!in.tensors_fit({in.x.size(0), image.out_channels, depth, image.out_h, image.out_w})) return declined();
#endif
  in.weight = dense(in.weight), in.bias = dense(in.bias);
  for (OptionalTensor& vector : in.vectors) vector = dense(vector);
  const int64_t residues = std::min(in.g.stride, depth);
  std::vector<Call> calls;
  for (int64_t residue = 0; residue < residues; ++residue) {
    calls.push_back(Call{residue_call(in, image, depth, residue)});
    calls.back().conv.x = calls.back().conv.out = pointer_of(in.x);  // is there, no more is asked
  }
  const std::vector<Call> as_one = together(calls);
  if (!as_one.empty() && all_served(as_one, device))
    calls = as_one;
  else if (!all_served(calls, device))
    return declined();
  const int64_t sizes[] = {in.x.size(0) * image.out_channels, depth, image.out_h, image.out_w};
  const Tensor out = allocate(sizes, 4, dtype, device);
#ifdef TCONV_KEEPS_MASK
  if (in.wants_mask && all_keep_mask(calls, device)) in.mask = allocate(sizes, 4, aoti_torch_dtype_uint8(), device);
#endif
#ifdef TCONV_READS_TENSORS
  char* const written = static_cast<char*>(in.kept ? pointer_of(*in.kept) : pointer_of(out));
#else
  char* const written = static_cast<char*>(pointer_of(out));
#endif
  const int64_t slice_bytes = image.out_h * image.out_w * static_cast<int64_t>(aoti_torch_dtype_element_size(dtype));
  for (size_t residue = 0; residue < calls.size(); ++residue) {
    Call& call = calls[residue];
    call.conv.x = pointer_of(in.x), call.conv.weight = pointer_of(in.weight), call.conv.bias = pointer_of(in.bias);
    for (int i = 0; i < kMaxChannelVectors; ++i) call.conv.channel_vectors[i] = pointer_of(in.vectors[i]);
#ifdef TCONV_READS_TENSORS
    for (int i = 0; i < kMaxChannelVectors; ++i)
      if (in.joins_row_by_row() && (kTensorOperands >> i & 1))
        call.conv.channel_vectors[i] =
            static_cast<const char*>(call.conv.channel_vectors[i]) + static_cast<int64_t>(residue) * slice_bytes;
    if (residue + 1 == calls.size())
      call.conv.joined = {pointer_of(out), in.x.size(0) * image.out_channels, depth * image.out_h * image.out_w,
                          written};
#endif
    call.conv.out = written + static_cast<int64_t>(residue) * slice_bytes;
#ifdef TCONV_KEEPS_MASK
    if (in.mask)
      call.conv.mask.to =
          static_cast<uint8_t*>(pointer_of(*in.mask)) + static_cast<int64_t>(residue) * image.out_h * image.out_w;
#endif
#ifndef TCONV_READS_TENSORS
    launch(call, device);
#endif
  }
#ifdef TCONV_READS_TENSORS
  const bool at_once = all_join(calls, device);
  for (Call& call : calls) {
    if (at_once) call.conv.joined = calls.back().conv.joined;
    call.conv.joined.at_once = at_once;
    launch(call, device);
  }
#endif
  return out;
}

template <typename Call>
void run_depth(StableIValue* values, uint64_t, uint64_t) {
  Stack stack(values);
  DepthInputs inputs(stack);
  stack.give(convolve_volumes<Call>(inputs));
}

}  // namespace binding
}  // namespace tconv

#if defined(TCONV_CALL)  // one of several operators of a library
#define TCONV_RUN_DEPTH "run_depth_" TCONV_TEXT(TCONV_CALL)
#else
#define TCONV_RUN_DEPTH "run_depth"
#endif
#ifdef TCONV_READS_TENSORS
#define TCONV_KEPT_SCHEMA ", Tensor(a!)? kept=None"
#else
#define TCONV_KEPT_SCHEMA
#endif
#define TCONV_DEPTH_SCHEMA                                                                           \
  "Tensor x, Tensor weight, Tensor? bias, int stride_d, int stride_h, int stride_w, int padding_d, " \
  "int padding_h, int padding_w, int output_padding_d, int output_padding_h, int output_padding_w, " \
  "int dilation_d, int dilation_h, int dilation_w, int groups, bool tf32, " TCONV_VECTORS_SCHEMA TCONV_KEPT_SCHEMA
// STABLE_TORCH_LIBRARY_FRAGMENT pastes its argument: this expands it first.
#define TCONV_DEPTH_LIBRARY(NAMESPACE, M) STABLE_TORCH_LIBRARY_FRAGMENT(NAMESPACE, M)
#define TCONV_IMPLEMENT_DEPTH(DEVICE, CALL)                          \
  TCONV_LIBRARY_IMPL(TCONV_NAMESPACE, DEVICE, library) {             \
    library.impl(TCONV_RUN_DEPTH, &tconv::binding::run_depth<CALL>); \
  }
#define TCONV_REGISTER_DEPTH(CALL)                                                                                     \
  TCONV_DEPTH_LIBRARY(TCONV_NAMESPACE, library) { library.def(TCONV_RUN_DEPTH "(" TCONV_DEPTH_SCHEMA ") -> Tensor"); } \
  TCONV_IMPLEMENT_DEPTH(CPU, CALL)                                                                                     \
  TCONV_IMPLEMENT_DEPTH(CUDA, CALL)
