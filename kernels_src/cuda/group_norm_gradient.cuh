// The one door to GroupNorm's gradients on CUDA.
#pragma once

#include "gradient_sums.cuh"
#include "group_norm_gradient_apply.cuh"
#include "group_norm_gradient_finalise.cuh"
#include "group_norm_gradient_sums.cuh"

namespace tconv {
namespace cuda {

inline int64_t whole_alignments(int64_t bytes) { return (bytes + 255) / 256 * 256; }

// Places in the workspace, from its beginning.
struct GroupNormGradientWorkspace {
  int64_t parts_per_plane, coefficients_at, weight_at, bias_at, total_bytes;

  template <typename Acc>
  static GroupNormGradientWorkspace of(const GroupNormGradientCall& call) {
    GroupNormGradientWorkspace made;
    const int64_t planes = call.batch * call.channels;
    made.parts_per_plane = (call.plane + GroupNormGradientConfig::kPart - 1) / GroupNormGradientConfig::kPart;
    made.coefficients_at =
        whole_alignments(planes * made.parts_per_plane * static_cast<int64_t>(sizeof(GradientMoments<Acc>)));
    made.weight_at = whole_alignments(made.coefficients_at + call.batch * call.num_groups *
                                                                 static_cast<int64_t>(sizeof(GroupCoefficients<Acc>)));
    made.bias_at = whole_alignments(made.weight_at + planes * static_cast<int64_t>(sizeof(Acc)));
    made.total_bytes = made.bias_at + planes * static_cast<int64_t>(sizeof(Acc));
    return made;
  }
};

inline int64_t group_norm_gradient_workspace_bytes(const GroupNormGradientCall& call) {
  if (call.conv.dtype < kFloat32 || call.conv.dtype > kBFloat16) return kUnsupportedDType;
  return call.conv.dtype == kFloat64 ? GroupNormGradientWorkspace::of<double>(call).total_bytes
                                     : GroupNormGradientWorkspace::of<float>(call).total_bytes;
}

inline bool norm_vectors_aligned(const void* pointer, int64_t bytes) {
  return reinterpret_cast<uintptr_t>(pointer) % static_cast<uintptr_t>(bytes) == 0;
}

inline dim3 norm_blocks(int64_t units, int units_per_block) {
  const int64_t blocks = (units + units_per_block - 1) / units_per_block;
  return dim3(static_cast<unsigned>(
      blocks < GroupNormGradientConfig::kMaxBlocks ? blocks : GroupNormGradientConfig::kMaxBlocks));
}

template <int kLanes, typename Storage>
int64_t launch_group_norm_gradient_kernels(const GroupNormGradientArgs<Storage>& args, void* stream) {
  constexpr int kThreads = GroupNormGradientConfig::kThreads;
  const dim3 blocks = norm_blocks(args.num_units, kThreads / kLanes);
  TCONV_RETURN_IF_ERROR(
      launch_kernel(group_norm_gradient_sums_kernel<kLanes, Storage>, blocks, dim3(kThreads), 0, stream, args));
  TCONV_RETURN_IF_ERROR(launch_kernel(group_norm_gradient_finalise_kernel<Storage>,
                                      norm_blocks(args.num_sample_groups, kThreads / 32), dim3(kThreads), 0, stream,
                                      args));
  return launch_kernel(group_norm_gradient_apply_kernel<kLanes, Storage>, blocks, dim3(kThreads), 0, stream, args);
}

template <typename Storage>
int64_t launch_group_norm_gradient(const GroupNormGradientCall& call) {
  using Config = GroupNormGradientConfig;
  using Acc = typename StorageTraits<Storage>::Acc;
  const GroupNormGradientWorkspace places = GroupNormGradientWorkspace::of<Acc>(call);
  char* const base = static_cast<char*>(call.conv.workspace);
  GroupNormGradientArgs<Storage> args{};
  args.grad = static_cast<const Storage*>(call.grad), args.value = static_cast<const Storage*>(call.value);
  args.weight = static_cast<const Storage*>(call.weight), args.grad_value = static_cast<Storage*>(call.grad_value);
  args.parts = reinterpret_cast<GradientMoments<Acc>*>(base);
  args.coefficients = reinterpret_cast<GroupCoefficients<Acc>*>(base + places.coefficients_at);
  if (call.grad_weight != nullptr) args.weight_parts = reinterpret_cast<Acc*>(base + places.weight_at);
  if (call.grad_bias != nullptr) args.bias_parts = reinterpret_cast<Acc*>(base + places.bias_at);
  args.channels = call.channels, args.plane = call.plane, args.num_groups = call.num_groups;
  args.num_planes = call.batch * call.channels, args.num_sample_groups = call.batch * call.num_groups;
  args.parts_per_plane = static_cast<int>(places.parts_per_plane);
  args.num_units = args.num_planes * args.parts_per_plane;
  args.eps = call.eps;
  constexpr int64_t kBytes = Config::kVector * sizeof(Storage);
  args.vectors = call.plane % Config::kVector == 0 && norm_vectors_aligned(call.grad, kBytes) &&
                 norm_vectors_aligned(call.value, kBytes) && norm_vectors_aligned(call.grad_value, kBytes);
  args.by_parts = FastDivisor64::make(static_cast<uint64_t>(args.parts_per_plane));
  args.by_channels = FastDivisor64::make(static_cast<uint64_t>(call.channels));
  args.by_group_channels = FastDivisor64::make(static_cast<uint64_t>(call.channels / call.num_groups));
  args.by_groups = FastDivisor64::make(static_cast<uint64_t>(call.num_groups));
  if (call.plane <= Config::kMaxOfWarp)
    TCONV_RETURN_IF_ERROR((launch_group_norm_gradient_kernels<32, Storage>(args, call.conv.stream)));
  else
    TCONV_RETURN_IF_ERROR((launch_group_norm_gradient_kernels<Config::kThreads, Storage>(args, call.conv.stream)));
  if (call.grad_weight != nullptr)
    TCONV_RETURN_IF_ERROR(launch_sum_gradient_parts(args.weight_parts, static_cast<Storage*>(call.grad_weight),
                                                    call.batch, call.channels, call.conv.stream));
  if (call.grad_bias != nullptr)
    TCONV_RETURN_IF_ERROR(launch_sum_gradient_parts(args.bias_parts, static_cast<Storage*>(call.grad_bias), call.batch,
                                                    call.channels, call.conv.stream));
  return kOk;
}

}  // namespace cuda
}  // namespace tconv
