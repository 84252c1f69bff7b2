// Pattern 3 on CPU: transposed convolution + BatchNorm + activation + max-pool + GroupNorm. The raw outputs of a few
// samples at a time are pooled while in cache; the full-size convolution output is never kept.
#include "../generated_activation.h"
#include "batch_norm_pool.h"
#include "conv_transpose.h"
#include "group_norm.h"
#include "sample_chunks.h"
#include "workspace.h"

namespace tconv {
namespace cpu {

template <typename T>
struct Buffers {
  char* conv;
  T* raw;                // convolution outputs of one chunk of samples
  MomentsF64* partials;  // of one chunk
  MomentsF64* channels;  // [out_channels], of the whole batch
  Affine<T>* batch_norm;  // [out_channels]
  int64_t bytes;

  Buffers(const ConvBatchNormPoolGroupNormCall& call, void* base) {
    const ConvTransposeProblem& p = call.conv.problem;
    const int64_t chunk = samples_per_chunk(p, call.conv.num_threads, sizeof(T));
    Workspace workspace(base);
    conv = workspace.take<char>(conv_workspace_bytes<T>(call.conv));
    raw = workspace.take<T>(chunk * p.out_channels * p.out_h * p.out_w);
    partials = workspace.take<MomentsF64>(chunk * conv_num_partials<T>(call.conv) * p.out_channels);
    channels = workspace.take<MomentsF64>(p.out_channels);
    batch_norm = workspace.take<Affine<T>>(p.out_channels);
    bytes = workspace.used();
  }
};

// Convolves and pools every sample into call.conv.out; fills buffers.channels.
template <typename T>
int64_t convolve_and_pool(const ConvBatchNormPoolGroupNormCall& call, const Buffers<T>& buffers) {
  const ConvTransposeProblem& p = call.conv.problem;
  const BatchNormPoolArgs& args = call.batch_norm_pool;
  const T* weight = static_cast<const T*>(args.weight);
  const int64_t num_partials = conv_num_partials<T>(call.conv), plane = p.out_h * p.out_w;
  const int64_t chunk = samples_per_chunk(p, call.conv.num_threads, sizeof(T));
  for (int64_t c = 0; c < p.out_channels; ++c) buffers.channels[c] = MomentsF64();
  for (int64_t first = 0; first < p.batch; first += chunk) {
    const int64_t samples = p.batch - first < chunk ? p.batch - first : chunk;
    const int64_t status = run_conv_transpose<T>(
        call.conv, ConvOutputs<T>{first, samples, buffers.raw, buffers.partials}, buffers.conv);
    if (status != kOk) return status;
#pragma omp parallel for schedule(dynamic) num_threads(int(call.conv.num_threads))
    for (int64_t c = 0; c < p.out_channels; ++c) {
      const bool smallest = weight != nullptr && weight[c] < T(0);
      for (int64_t n = 0; n < samples; ++n) {
        for (int64_t i = 0; i < num_partials; ++i) {
          const MomentsF64& part = buffers.partials[(n * num_partials + i) * p.out_channels + c];
          buffers.channels[c].combine(part.count, part.mean, part.m2);
        }
        T* pooled = static_cast<T*>(call.conv.out) +
                    ((first + n) * p.out_channels + c) * args.pooled_h * args.pooled_w;
        pool_plane(args, smallest, buffers.raw + (n * p.out_channels + c) * plane, p.out_h, p.out_w, pooled);
      }
    }
  }
  return kOk;
}

template <typename T>
inline void batch_norm_activation(Isa isa, T* __restrict values, int64_t count, const Affine<T>& shared_affine) {
  vectorised(isa, [=]() __attribute__((always_inline)) {
    const Affine<T> affine = shared_affine;
#pragma omp simd
    for (int64_t i = 0; i < count; ++i) values[i] = Activation::apply<T>(affine.apply(values[i]));
  });
}

template <typename T>
int64_t run(const ConvBatchNormPoolGroupNormCall& call) {
  const ConvTransposeProblem& p = call.conv.problem;
  const Buffers<T> buffers(call, call.conv.workspace);
  const Isa isa = pick_isa(call.conv.kernel_choice);
  const int64_t status = convolve_and_pool<T>(call, buffers);
  if (status != kOk) return status;
  for (int64_t c = 0; c < p.out_channels; ++c)
    buffers.batch_norm[c] = batch_norm_affine<T>(call.batch_norm_pool, buffers.channels[c], c);

  const int64_t plane = call.batch_norm_pool.pooled_h * call.batch_norm_pool.pooled_w;
  const int64_t num_groups = call.group_norm.num_groups, group_channels = p.out_channels / num_groups;
#pragma omp parallel for collapse(2) schedule(dynamic) num_threads(int(call.conv.num_threads))
  for (int64_t n = 0; n < p.batch; ++n) {
    for (int64_t g = 0; g < num_groups; ++g) {
      T* planes = static_cast<T*>(call.conv.out) + (n * p.out_channels + g * group_channels) * plane;
      MomentsF64 moments;
      for (int64_t c = 0; c < group_channels; ++c) {
        batch_norm_activation(isa, planes + c * plane, plane, buffers.batch_norm[g * group_channels + c]);
        add_moments(isa, planes + c * plane, plane, 1, moments);
      }
      group_norm_planes(isa, call.group_norm, moments, g * group_channels, group_channels, plane, planes);
    }
  }
  return kOk;
}

}  // namespace cpu
}  // namespace tconv

TCONV_EXPORT int64_t tconv_cpu_workspace_bytes(const tconv::ConvBatchNormPoolGroupNormCall* call) {
  using namespace tconv;
  const int64_t status = cpu::check_call(call->conv);
  if (status != kOk) return status;
  return call->conv.dtype == kFloat32 ? cpu::Buffers<float>(*call, nullptr).bytes
                                      : cpu::Buffers<double>(*call, nullptr).bytes;
}

TCONV_EXPORT int64_t tconv_cpu_run(const tconv::ConvBatchNormPoolGroupNormCall* call) {
  using namespace tconv;
  const int64_t status = cpu::check_call(call->conv);
  if (status != kOk) return status;
  if (call->conv.workspace_bytes < tconv_cpu_workspace_bytes(call)) return kWorkspaceTooSmall;
  return call->conv.dtype == kFloat32 ? cpu::run<float>(*call) : cpu::run<double>(*call);
}
