// The operator of pattern 2: transposed convolution, element-wise operations, GroupNorm.
#define TCONV_MORE_KERNELS {"slices", kInSlices},

#include "cuda_half.h"

TCONV_DECLARE_CUDA_HALF(ConvGroupNormCall)

#include "conv_inputs.h"

namespace tconv {
namespace binding {

Tensor run(const Tensor& x, const Tensor& weight, const OptionalTensor& bias, int64_t stride_h, int64_t stride_w,
           int64_t padding_h, int64_t padding_w, int64_t output_padding_h, int64_t output_padding_w, int64_t dilation_h,
           int64_t dilation_w, int64_t groups, bool tf32, int64_t num_groups, const OptionalTensor& norm_weight,
           const OptionalTensor& norm_bias, double norm_eps, const OptionalTensor& vector0, const OptionalTensor& vector1,
           const OptionalTensor& vector2, const OptionalTensor& vector3) {
  ConvInputs inputs(x, weight, bias,
                    {{stride_h, stride_w}, {padding_h, padding_w}, {output_padding_h, output_padding_w},
                     {dilation_h, dilation_w}, groups});
  inputs.take_vectors({&vector0, &vector1, &vector2, &vector3});
  int64_t sizes[4];
  size_t dim = 0;
  inputs.shape(inputs.problem.out_h, inputs.problem.out_w, sizes, &dim);
  check_group_norm(sizes, dim, num_groups, norm_weight, norm_bias, x);
  const Tensor out = inputs.allocate_output(inputs.problem.out_h, inputs.problem.out_w);
  if (inputs.problem.batch > 0) {
    const OptionalTensor scale = inputs.readable(norm_weight), shift = inputs.readable(norm_bias);
    ConvGroupNormCall call{inputs.prepare(out, tf32), {num_groups, norm_eps, pointer_of(scale), pointer_of(shift)}};
    launch(call, inputs.device);
  }
  return inputs.finished(out);
}

}  // namespace binding
}  // namespace tconv

TCONV_LIBRARY(TCONV_NAMESPACE, library) {
  library.def(
      "run(Tensor x, Tensor weight, Tensor? bias, int stride_h, int stride_w, int padding_h, int padding_w, "
      "int output_padding_h, int output_padding_w, int dilation_h, int dilation_w, int groups, bool tf32, int num_groups, "
      "Tensor? norm_weight, Tensor? norm_bias, float norm_eps, Tensor? vector0=None, Tensor? vector1=None, "
      "Tensor? vector2=None, Tensor? vector3=None) -> Tensor");
}

TCONV_LIBRARY_IMPL(TCONV_NAMESPACE, CPU, library) { library.impl("run", TORCH_BOX(&tconv::binding::run)); }
TCONV_LIBRARY_IMPL(TCONV_NAMESPACE, CUDA, library) { library.impl("run", TORCH_BOX(&tconv::binding::run)); }
