// Compiled behind a solution's CUDA_SOURCE: one call of it without a GPU, with made-up addresses, through which nothing
// on the host reads. machine_code_runtime.cpp says what was launched.
#include <alloca.h>

#include <cstdint>

namespace machine_code {

// What standard input told of a field of the call.
int64_t number(const char* name);
double real(const char* name);

// Buffer i, a TiB for each: harness/measure/machine_code_calls.py knows these addresses again.
template <typename T = void>
T* buffer(int64_t i) {
  return reinterpret_cast<T*>(0x5AA5000000000000 + (i << 40));
}
// The next buffer, or null where `name` is 0.
inline int64_t num_buffers = 0;
template <typename T>
void set_pointer(T*& pointer, const char* name) {
  ++num_buffers;
  pointer = number(name) == 0 ? nullptr : buffer<T>(num_buffers);
}

inline void fill(tconv::ConvCall& call) {
  tconv::ConvTransposeLayer& p = call.layer;
#define TCONV_SET(name) p.name = number(#name)
  TCONV_SET(batch), TCONV_SET(in_channels), TCONV_SET(out_channels), TCONV_SET(groups);
  TCONV_SET(in_h), TCONV_SET(in_w), TCONV_SET(out_h), TCONV_SET(out_w);
  TCONV_SET(kernel_h), TCONV_SET(kernel_w), TCONV_SET(stride_h), TCONV_SET(stride_w);
  TCONV_SET(padding_h), TCONV_SET(padding_w), TCONV_SET(dilation_h), TCONV_SET(dilation_w);
#undef TCONV_SET
  p.x_stride_w = 1, p.x_stride_h = p.in_w, p.x_stride_c = p.in_h * p.in_w, p.x_stride_n = p.in_channels * p.x_stride_c;
  call.dtype = number("dtype");
  call.math = number("math");
  call.kernel_choice = number("kernel_choice");
  set_pointer(call.x, "x");
  set_pointer(call.weight, "weight");
  set_pointer(call.bias, "bias");
  set_pointer(call.out, "out");
  set_pointer(call.workspace, "workspace");
  for (const void*& vector : call.channel_vectors)
    if (&vector - call.channel_vectors < number("channel_vectors")) vector = buffer(++num_buffers);
}

inline void fill(tconv::GroupNormArgs& args) {
  args.num_groups = number("num_groups");
  args.eps = real("group_norm_eps");
  set_pointer(args.weight, "group_norm_weight");
  set_pointer(args.bias, "group_norm_bias");
}

inline void fill(tconv::BatchNormPoolArgs& args) {
  args.use_batch_stats = number("use_batch_stats");
  args.eps = real("batch_norm_eps");
  set_pointer(args.weight, "batch_norm_weight");
  set_pointer(args.bias, "batch_norm_bias");
  if (args.use_batch_stats) {
    set_pointer(args.batch_mean, "batch_norm");
    set_pointer(args.batch_var, "batch_norm");
  } else {
    set_pointer(args.running_mean, "batch_norm");
    set_pointer(args.running_var, "batch_norm");
  }
#define TCONV_SET(name) args.name = number(#name)
  TCONV_SET(pool_kernel_h), TCONV_SET(pool_kernel_w), TCONV_SET(pool_stride_h), TCONV_SET(pool_stride_w);
  TCONV_SET(pool_padding_h), TCONV_SET(pool_padding_w), TCONV_SET(pool_dilation_h), TCONV_SET(pool_dilation_w);
  TCONV_SET(pooled_h), TCONV_SET(pooled_w);
#undef TCONV_SET
}

inline void fill(tconv::ConvOnlyCall& call) { fill(call.conv); }
inline void fill(tconv::ConvGroupNormCall& call) { fill(call.conv), fill(call.group_norm); }
inline void fill(tconv::ConvBatchNormPoolGroupNormCall& call) {
  fill(call.conv), fill(call.batch_norm_pool), fill(call.group_norm);
}

// Every byte of the stack that the functions called next will use.
__attribute__((noinline)) inline void fill_stack(int byte) {
  constexpr size_t kBytes = 1 << 20;
  volatile char* const stack = static_cast<char*>(alloca(kBytes));
  for (size_t i = 0; i < kBytes; ++i) stack[i] = static_cast<char>(byte);
}

template <typename Call>
int64_t make_call_of(int64_t (*workspace_bytes)(const Call*), int64_t (*run)(const Call*), int byte) {
  Call call{};
  fill(call);
  fill_stack(byte);
  call.conv.workspace_bytes = workspace_bytes(&call);
  if (call.conv.workspace_bytes < 0) return call.conv.workspace_bytes;
  fill_stack(byte);
  return run(&call);
}

// Bytes of arguments that follow `byte` were never written: padding.
int64_t make_call(int byte) { return make_call_of(tconv_cuda_workspace_bytes, tconv_cuda_run, byte); }

}  // namespace machine_code
