// Pattern 2 on CPU: transposed convolution + element-wise epilogue + GroupNorm, a few samples at a time so that
// outputs are normalised while they are still in cache.
#include "entry.h"  // first

#include "group_norm.h"
#include "huge_pages.h"
#include "sample_chunks.h"

namespace tconv {
namespace cpu {

template <typename T>
class ConvGroupNorm {
 public:
  ConvGroupNorm(const ConvGroupNormCall& call, void* workspace)
      : call_(call),
        p_(call.conv.layer),
        space_(workspace),
        chunk_(samples_per_chunk(p_, call.conv.num_threads, sizeof(T))),
        conv_(call.conv, chunk_, workspace) {
    space_.take<char>(conv_.workspace_bytes());
    partials_ = space_.take<MomentsF64>(chunk_ * conv_.num_partials() * p_.out_channels);
  }

  int64_t workspace_bytes() const { return space_.used(); }

  void run() {
    prefer_huge_pages(call_.conv.out, output_bytes(p_, sizeof(T)));
    conv_.pack();
    for (int64_t first = 0; first < p_.batch; first += chunk_) {
      const int64_t samples = std::min(chunk_, p_.batch - first);
      T* out = static_cast<T*>(call_.conv.out) + first * p_.out_channels * p_.out_h * p_.out_w;
      conv_.run(ConvOutputs<T>{first, samples, out, partials_});
      normalise(samples, out);
    }
  }

 private:
  void normalise(int64_t samples, T* out) const {
    const Isa isa = pick_isa(call_.conv.kernel_choice);
    const int64_t plane = p_.out_h * p_.out_w, num_groups = call_.group_norm.num_groups;
    const int64_t group_channels = p_.out_channels / num_groups, num_partials = conv_.num_partials();
#pragma omp parallel for collapse(2) schedule(dynamic) num_threads(int(call_.conv.num_threads))
    for (int64_t n = 0; n < samples; ++n) {
      for (int64_t g = 0; g < num_groups; ++g) {
        const int64_t first_channel = g * group_channels;
        MomentsF64 moments;
        for (int64_t i = 0; i < num_partials; ++i)
          for (int64_t c = first_channel; c < first_channel + group_channels; ++c) {
            const MomentsF64& part = partials_[(n * num_partials + i) * p_.out_channels + c];
            moments.combine(part.count, part.mean, part.m2);
          }
        group_norm_planes(isa, call_.group_norm, moments, first_channel, group_channels, plane,
                          out + (n * p_.out_channels + first_channel) * plane);
      }
    }
  }

  const ConvGroupNormCall& call_;
  const ConvTransposeLayer& p_;
  Workspace space_;
  int64_t chunk_;
  ConvTranspose<T> conv_;
  MomentsF64* partials_;
};

}  // namespace cpu
}  // namespace tconv

TCONV_EXPORT_PATTERN(ConvGroupNorm, ConvGroupNormCall)
