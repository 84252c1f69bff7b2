// The one door to the transposed convolution on CPU.
#pragma once

#include <memory>
#include <type_traits>

#include "conv_transpose_packed.h"
#include "conv_transpose_plain.h"
#include "explain.h"

namespace tconv {
namespace cpu {

// kOk, or why this call cannot run here. fp16 and bf16 arrive as fp32.
inline int64_t check_call(const ConvCall& call) {
  if (call.dtype != kFloat32 && call.dtype != kFloat64) return kUnsupportedDType;
#ifdef TCONV_WALKS_DEPTH
  if (call.depth.walks() && !walk_is_served(call)) return kUnsupportedKernel;
#endif
  if (call.kernel_choice != kHopper && call.kernel_choice != kDirect) return kOk;
  if (call.explanation != nullptr) call.explanation->fail(reason::kNoSuchKernel);
  return kUnsupportedKernel;
}

// A convolution that is run on up to `samples_at_once` samples at a time. With a null workspace it only measures.
template <typename T>
class ConvTranspose {
 public:
  ConvTranspose(const ConvCall& call, int64_t samples_at_once, void* workspace) : call_(call) {
    if constexpr (std::is_same<T, float>::value)
      if (call.kernel_choice != kPlain)
        packed_ = std::make_unique<PackedConvTranspose>(call, samples_at_once, workspace);
    (void)samples_at_once;
    (void)workspace;
  }

  int64_t workspace_bytes() const { return packed_ ? packed_->workspace_bytes() : 0; }
  int64_t num_partials() const { return packed_ ? packed_->num_partials() : plain_num_partials(call_.layer); }

  // Once per call, before run.
  void pack() {
    if (packed_) packed_->pack();
    explain(call_, why_no_tiles());
  }

  void run(const ConvOutputs<T>& outputs) const {
    if constexpr (std::is_same<T, float>::value)
      if (packed_) return packed_->run(outputs);
    run_conv_transpose_plain<T>(call_, outputs);
  }

 private:
  // Null where tiles are computed.
  const char* why_no_tiles() const {
    if (std::is_same<T, double>::value) return reason::kFP64;
    if (!packed_) return reason::kForced;
    return packed_->has_finite_weights() ? nullptr : reason::kNonFiniteWeights;
  }

  const ConvCall& call_;
  std::unique_ptr<PackedConvTranspose> packed_;
};

}  // namespace cpu
}  // namespace tconv
