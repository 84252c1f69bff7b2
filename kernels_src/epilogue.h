// What a kernel does with an accumulator before storing it. The generator writes `struct Epilogue`
// (generated_epilogue.h) from the element-wise operations that follow the convolution; the file of that
// name in this folder is the identity, for building kernels on their own.
#pragma once

#include "call.h"
#include "elementwise.h"

namespace tconv {

template <typename Storage>
struct EpilogueArgs {
  const Storage* bias;  // [out_channels] or null
  const Storage* channel_vectors[kMaxChannelVectors];
#ifdef TCONV_READS_TENSORS
  const Storage* out;  // the call's: where a value goes in it is where a tensor operand has its own
#endif
};

template <typename Storage>
inline EpilogueArgs<Storage> make_epilogue_args(const ConvCall& call) {
  EpilogueArgs<Storage> args;
  args.bias = static_cast<const Storage*>(call.bias);
  for (int i = 0; i < kMaxChannelVectors; ++i)
    args.channel_vectors[i] = static_cast<const Storage*>(call.channel_vectors[i]);
#ifdef TCONV_READS_TENSORS
  args.out = static_cast<const Storage*>(call.out);
#endif
  return args;
}

}  // namespace tconv

#include "generated_epilogue.h"

namespace tconv {

template <typename Acc, typename Storage>
TCONV_HD Acc channel_bias(const EpilogueArgs<Storage>& args, int64_t channel) {
  return args.bias != nullptr ? static_cast<Acc>(args.bias[channel]) : Acc(0);
}

// acc + bias, then the generated chain. Acc is float, or double for fp64 tensors.
template <typename Acc, typename Storage>
TCONV_HD Acc apply_epilogue(Acc acc, const EpilogueArgs<Storage>& args, int64_t channel) {
  if (args.bias != nullptr) acc += static_cast<Acc>(args.bias[channel]);
  return Epilogue::apply<Acc, Storage>(acc, args, channel);
}
#ifdef TCONV_READS_TENSORS

// The rest of the chain, from its first read of a tensor of the output's shape on: of a value that goes to `place`.
template <typename Acc, typename Storage>
TCONV_HD Acc join_tensors(Acc v, const EpilogueArgs<Storage>& args, int64_t channel, const Storage* place) {
  return Epilogue::join<Acc, Storage>(v, args, channel, args.channel_vectors, place - args.out);
}
#endif

}  // namespace tconv
