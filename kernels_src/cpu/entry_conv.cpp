// Pattern 1 on CPU: transposed convolution + element-wise epilogue.
#include "entry.h"  // first

#include "huge_pages.h"

namespace tconv {
namespace cpu {

template <typename T>
class ConvOnly {
 public:
  ConvOnly(const ConvOnlyCall& call, void* workspace)
      : call_(call.conv), conv_(call.conv, call.conv.layer.batch, workspace) {}

  int64_t workspace_bytes() const { return conv_.workspace_bytes(); }

  void run() {
    prefer_huge_pages(call_.out, output_bytes(call_.layer, sizeof(T)));
    conv_.pack();
    conv_.run(ConvOutputs<T>{0, call_.layer.batch, static_cast<T*>(call_.out), nullptr});
  }

 private:
  const ConvCall& call_;
  ConvTranspose<T> conv_;
};

}  // namespace cpu
}  // namespace tconv

TCONV_EXPORT_PATTERN(ConvOnly, ConvOnlyCall)
