// Pattern 2 on CPU: transposed convolution + element-wise epilogue + GroupNorm, a few samples at a time so that
// outputs are normalised while they are still in cache.
#include "conv_transpose.h"
#include "group_norm.h"
#include "sample_chunks.h"
#include "workspace.h"

namespace tconv {
namespace cpu {

template <typename T>
struct Buffers {
  char* conv;
  MomentsF64* partials;
  int64_t bytes;

  Buffers(const ConvGroupNormCall& call, void* base) {
    const ConvTransposeProblem& p = call.conv.problem;
    Workspace workspace(base);
    conv = workspace.take<char>(conv_workspace_bytes<T>(call.conv));
    partials = workspace.take<MomentsF64>(samples_per_chunk(p, call.conv.num_threads, sizeof(T)) *
                                          conv_num_partials<T>(call.conv) * p.out_channels);
    bytes = workspace.used();
  }
};

template <typename T>
int64_t run(const ConvGroupNormCall& call) {
  const ConvTransposeProblem& p = call.conv.problem;
  const Buffers<T> buffers(call, call.conv.workspace);
  const Isa isa = pick_isa(call.conv.kernel_choice);
  const int64_t num_partials = conv_num_partials<T>(call.conv);
  const int64_t plane = p.out_h * p.out_w, num_groups = call.group_norm.num_groups;
  const int64_t group_channels = p.out_channels / num_groups;
  const int64_t chunk = samples_per_chunk(p, call.conv.num_threads, sizeof(T));
  for (int64_t first = 0; first < p.batch; first += chunk) {
    const int64_t samples = p.batch - first < chunk ? p.batch - first : chunk;
    T* out = static_cast<T*>(call.conv.out) + first * p.out_channels * plane;
    const int64_t status =
        run_conv_transpose<T>(call.conv, ConvOutputs<T>{first, samples, out, buffers.partials}, buffers.conv);
    if (status != kOk) return status;
#pragma omp parallel for collapse(2) schedule(dynamic) num_threads(int(call.conv.num_threads))
    for (int64_t n = 0; n < samples; ++n) {
      for (int64_t g = 0; g < num_groups; ++g) {
        const int64_t first_channel = g * group_channels;
        MomentsF64 moments;
        for (int64_t i = 0; i < num_partials; ++i)
          for (int64_t c = first_channel; c < first_channel + group_channels; ++c) {
            const MomentsF64& part = buffers.partials[(n * num_partials + i) * p.out_channels + c];
            moments.combine(part.count, part.mean, part.m2);
          }
        group_norm_planes(isa, call.group_norm, moments, first_channel, group_channels, plane,
                          out + (n * p.out_channels + first_channel) * plane);
      }
    }
  }
  return kOk;
}

}  // namespace cpu
}  // namespace tconv

TCONV_EXPORT int64_t tconv_cpu_workspace_bytes(const tconv::ConvGroupNormCall* call) {
  using namespace tconv;
  const int64_t status = cpu::check_call(call->conv);
  if (status != kOk) return status;
  return call->conv.dtype == kFloat32 ? cpu::Buffers<float>(*call, nullptr).bytes
                                      : cpu::Buffers<double>(*call, nullptr).bytes;
}

TCONV_EXPORT int64_t tconv_cpu_run(const tconv::ConvGroupNormCall* call) {
  using namespace tconv;
  const int64_t status = cpu::check_call(call->conv);
  if (status != kOk) return status;
  if (call->conv.workspace_bytes < tconv_cpu_workspace_bytes(call)) return kWorkspaceTooSmall;
  return call->conv.dtype == kFloat32 ? cpu::run<float>(*call) : cpu::run<double>(*call);
}
