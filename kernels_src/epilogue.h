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
};

template <typename Storage>
inline EpilogueArgs<Storage> make_epilogue_args(const ConvCall& call) {
  EpilogueArgs<Storage> args;
  args.bias = static_cast<const Storage*>(call.bias);
  for (int i = 0; i < kMaxChannelVectors; ++i)
    args.channel_vectors[i] = static_cast<const Storage*>(call.channel_vectors[i]);
  return args;
}

}  // namespace tconv

#include "generated_epilogue.h"

namespace tconv {

#ifdef TCONV_JOINS_QUADS
// The only operand of the output's shape of a chain that has one.
inline const void* operand_of(const ConvCall& call) {
  for (int i = 0; i < kMaxChannelVectors; ++i)
    if (Epilogue::reads(i)) return call.channel_vectors[i];
  return nullptr;
}

#endif
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

}  // namespace tconv
