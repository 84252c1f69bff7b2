// Tensor operands of the Hopper convolution: what follows them is applied where outputs are stored, so that reads of
// them are as wide as those stores.
#pragma once

#include "conv_transpose_hopper_args.cuh"

namespace tconv {
namespace cuda {
namespace hopper {

// Two outputs of each of a lane's channels, in its warp's buffer: where the first goes in memory, how far behind the
// second lies there and in the buffer, and which of the two exist. plane: from channel to channel in memory.
template <typename Storage>
struct StagedOutputs {
  // Channels whose operands are under way together. The accumulators leave no registers for more.
  static constexpr int kAtOnce = 2;

  const Storage* to;
  int64_t to_second, plane;
  uint32_t read_at, second_bytes;
  bool first, second;

  // Applies the rest of the chain to `rounds` of them, every `step`th channel of the warp's from its `channel` on.
  __device__ __forceinline__ void join(const HopperArgs<Storage>& args, const TileCursor& at, int warp_channel,
                                       int channel, int rounds, int step) const {
    const int of_group = args.plan.out_channels_per_group, left = of_group - warp_channel - channel;
    const int of_all = at.group * of_group + warp_channel + channel;
#pragma unroll 1
    for (int begin = 0; begin < rounds; begin += kAtOnce) {
      Storage operands[kMaxChannelVectors][2 * kAtOnce];
#pragma unroll
      for (int i = 0; i < 2 * kAtOnce; ++i) {
        const int c = (begin + i / 2) * step;
        if (begin + i / 2 >= rounds || !exists(c, i % 2, left)) continue;
#pragma unroll
        for (int k = 0; k < kMaxChannelVectors; ++k)
          if (Epilogue::reads(k))
            operands[k][i] = args.epilogue.channel_vectors[k][to - args.epilogue.out + c * plane + i % 2 * to_second];
      }
#pragma unroll
      for (int i = 0; i < 2 * kAtOnce; ++i) {
        const int c = (begin + i / 2) * step;
        if (begin + i / 2 >= rounds || !exists(c, i % 2, left)) continue;
        const uint32_t staged = read_at + c * (kStorePitch * 4) + i % 2 * second_bytes;
        float value;
        asm volatile("ld.shared.f32 %0, [%1];" : "=f"(value) : "r"(staged));
        value = Epilogue::join<float, Storage>(value, args.epilogue, of_all + c, operands, i);
        asm volatile("st.shared.f32 [%0], %1;" ::"r"(staged), "f"(value) : "memory");
      }
    }
  }

 private:
  __device__ __forceinline__ bool exists(int channel, int which, int left) const {
    return channel < left && (which == 0 ? first : second);
  }
};

}  // namespace hopper
}  // namespace cuda
}  // namespace tconv
