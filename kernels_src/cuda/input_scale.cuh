// The Hopper convolution's input scale, from a sample of the input: for headers that include this within namespace
// tconv::cuda, behind gradient_scales.cuh.
#pragma once

// What a tensor of these sizes and strides is multiplied by, for the Hopper kernel, which clears the rest of the state.
inline int64_t launch_input_scale(const SampledTensor& tensor, GuardState* state, void* stream) {
  const cudaError_t cleared = cudaMemsetAsync(state, 0, sizeof(GuardState), static_cast<cudaStream_t>(stream));
  if (cleared != cudaSuccess) return static_cast<int64_t>(cleared);
  MagnitudeSampleArgs args{};
  args.tensors[0] = tensor;
  args.largest[0] = &state->largest;
  return launch_sample_magnitudes(args, 1, stream);
}
