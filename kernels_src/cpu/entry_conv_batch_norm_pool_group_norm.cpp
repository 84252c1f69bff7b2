// Pattern 3 on CPU: transposed convolution + BatchNorm + activation + max-pool + GroupNorm. The raw outputs of a few
// samples at a time are pooled while in cache; the full-size convolution output is kept where the call wants it.
#include "entry.h"  // first

#include "../generated_activation.h"
#include "batch_norm_pool.h"
#include "group_norm.h"
#include "sample_chunks.h"

namespace tconv {
namespace cpu {

template <typename T>
class ConvBatchNormPoolGroupNorm {
 public:
  ConvBatchNormPoolGroupNorm(const ConvBatchNormPoolGroupNormCall& call, void* workspace)
      : call_(call),
        p_(call.conv.layer),
        pool_(call.batch_norm_pool),
        space_(workspace),
        chunk_(samples_per_chunk(p_, call.conv.num_threads, sizeof(T))),
        conv_(call.conv, chunk_, workspace) {
    space_.take<char>(conv_.workspace_bytes());
    if (call.conv_out == nullptr) raw_ = space_.take<T>(chunk_ * sample_outputs());
    partials_ = space_.take<MomentsF64>(chunk_ * conv_.num_partials() * p_.out_channels);
    channels_ = space_.take<MomentsF64>(p_.out_channels);
    batch_norm_ = space_.take<Affine<T>>(p_.out_channels);
  }

  int64_t workspace_bytes() const { return space_.used(); }

  void run() {
    conv_.pack();
    for (int64_t c = 0; c < p_.out_channels; ++c) channels_[c] = MomentsF64();
    for (int64_t first = 0; first < p_.batch; first += chunk_) {
      const int64_t samples = std::min(chunk_, p_.batch - first);
      if (call_.conv_out != nullptr)  // a CPU's caller wants it
        raw_ = static_cast<T*>(const_cast<void*>(call_.conv_out)) + first * sample_outputs();
      conv_.run(ConvOutputs<T>{first, samples, raw_, pool_.use_batch_stats != 0 ? partials_ : nullptr});
      pool(first, samples);
    }
    for (int64_t c = 0; c < p_.out_channels; ++c) batch_norm_[c] = batch_norm_affine<T>(pool_, channels_[c], c);
    normalise();
  }

 private:
  int64_t sample_outputs() const { return p_.out_channels * p_.out_h * p_.out_w; }

  T* pooled(int64_t n, int64_t c) const {
    return static_cast<T*>(call_.conv.out) + (n * p_.out_channels + c) * pool_.pooled_h * pool_.pooled_w;
  }

  // Pools raw_ into the output and gathers each channel's moments, in the order of the samples.
  void pool(int64_t first, int64_t samples) const {
    const Isa isa = pick_isa(call_.conv.kernel_choice);
    const int64_t num_partials = conv_.num_partials();
    const T* weight = static_cast<const T*>(pool_.weight);
#pragma omp parallel for schedule(dynamic) num_threads(int(call_.conv.num_threads))
    for (int64_t c = 0; c < p_.out_channels; ++c) {
      MaxPool<T> max_pool(pool_, p_.out_h, p_.out_w);
      const bool smallest = weight != nullptr && weight[c] < T(0);
      for (int64_t n = 0; n < samples; ++n) {
        for (int64_t i = 0; i < num_partials && pool_.use_batch_stats != 0; ++i) {
          const MomentsF64& part = partials_[(n * num_partials + i) * p_.out_channels + c];
          channels_[c].combine(part.count, part.mean, part.m2);
        }
        max_pool.run(isa, smallest, raw_ + (n * p_.out_channels + c) * p_.out_h * p_.out_w, pooled(first + n, c));
      }
    }
  }

  // BatchNorm, activation and GroupNorm, in place on the pooled values.
  void normalise() const {
    const Isa isa = pick_isa(call_.conv.kernel_choice);
    const int64_t plane = pool_.pooled_h * pool_.pooled_w;
    const int64_t num_groups = call_.group_norm.num_groups, group_channels = p_.out_channels / num_groups;
#pragma omp parallel for collapse(2) schedule(dynamic) num_threads(int(call_.conv.num_threads))
    for (int64_t n = 0; n < p_.batch; ++n) {
      for (int64_t g = 0; g < num_groups; ++g) {
        MomentsF64 moments;
        for (int64_t c = g * group_channels; c < (g + 1) * group_channels; ++c) {
          affine_activation_in_place(isa, pooled(n, c), plane, batch_norm_[c]);
          add_moments(isa, pooled(n, c), plane, moments);
        }
        group_norm_planes(isa, call_.group_norm, moments, g * group_channels, group_channels, plane,
                          pooled(n, g * group_channels));
      }
    }
  }

  static void affine_activation_in_place(Isa isa, T* values, int64_t count, const Affine<T>& shared_affine) {
    vectorised<T>(isa, [=]() __attribute__((always_inline)) {
      const Affine<T> affine = shared_affine;
#pragma omp simd
      for (int64_t i = 0; i < count; ++i) values[i] = Activation::apply<T>(affine.apply(values[i]));
    });
  }

  const ConvBatchNormPoolGroupNormCall& call_;
  const ConvTransposeLayer& p_;
  const BatchNormPoolArgs& pool_;
  Workspace space_;
  int64_t chunk_;
  ConvTranspose<T> conv_;
  T* raw_;
  MomentsF64* partials_;
  MomentsF64* channels_;   // [out_channels], of the whole batch
  Affine<T>* batch_norm_;  // [out_channels]
};

}  // namespace cpu
}  // namespace tconv

TCONV_EXPORT_PATTERN(ConvBatchNormPoolGroupNorm, ConvBatchNormPoolGroupNormCall)
