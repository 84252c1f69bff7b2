// What every pattern's operator takes: the convolution's tensors and parameters, and how they become a ConvCall.
#pragma once

#include "run.h"

namespace tconv {
namespace binding {

struct ConvInputs {
  Tensor x, weight;
  OptionalTensor bias;
  OptionalTensor vectors[kMaxChannelVectors];  // per-channel operands of the element-wise operations
  ConvTransposeProblem problem;
  Device device;
  int32_t dtype;           // torch's, of x and of the output
  int64_t computed_dtype;  // enum DType

  // Checked. Raises where PyTorch does.
  ConvInputs(const Tensor& x_, const Tensor& weight_, const OptionalTensor& bias_, const Geometry& geometry)
      : x(x_), weight(weight_), bias(bias_), problem(make_problem(x_, weight_, bias_, geometry)), device(device_of(x_)),
        dtype(torch_dtype_of(x_)),
        computed_dtype(binding::computed_dtype(kernel_dtype(dtype), device)) {}

  void take_vectors(std::initializer_list<const OptionalTensor*> given) {
    size_t count = 0;
    for (const OptionalTensor* vector : given) {
      check_channel_vector("a per-channel operand", *vector, problem.out_channels, x);
      vectors[count++] = *vector;
    }
  }

  bool widened() const { return kernel_dtype(dtype) != computed_dtype; }

  // An affine parameter or a running statistic as the kernels read it.
  OptionalTensor readable(const OptionalTensor& tensor) const { return dense(converted(tensor, computed_dtype)); }

  // Output shape [batch,] channels, h, w.
  void shape(int64_t out_h, int64_t out_w, int64_t (&sizes)[4], size_t* dim) const {
    *dim = static_cast<size_t>(x.dim());
    int64_t* size = sizes;
    if (*dim == 4) *size++ = problem.batch;
    size[0] = problem.out_channels, size[1] = out_h, size[2] = out_w;
  }

  // Where the kernels write; `finished` turns it into what the operator returns.
  Tensor allocate_output(int64_t out_h, int64_t out_w) const {
    int64_t sizes[4];
    size_t dim = 0;
    shape(out_h, out_w, sizes, &dim);
    return allocate(sizes, dim, torch_dtype(computed_dtype), device);
  }

  Tensor finished(const Tensor& out) const { return widened() ? converted(out, kernel_dtype(dtype)) : out; }

  // Makes the tensors what the kernels read, and the call of them.
  ConvCall prepare(const Tensor& out, bool tf32) {
    if (widened()) {
      x = converted(x, computed_dtype);
      const auto strides = x.strides();  // of the copy
      const size_t first = x.dim() == 4 ? 1 : 0;
      if (first == 1) problem.x_stride_n = strides[0];
      problem.x_stride_c = strides[first], problem.x_stride_h = strides[first + 1], problem.x_stride_w = strides[first + 2];
    }
    weight = dense(converted(weight, computed_dtype));
    bias = readable(bias);
    ConvCall call = make_call(problem, computed_dtype, tf32);
    call.x = pointer_of(x);
    call.weight = pointer_of(weight);
    call.bias = pointer_of(bias);
    for (int i = 0; i < kMaxChannelVectors; ++i) {
      vectors[i] = readable(vectors[i]);
      call.channel_vectors[i] = pointer_of(vectors[i]);
    }
    call.out = pointer_of(out);
    return call;
  }
};

}  // namespace binding
}  // namespace tconv
