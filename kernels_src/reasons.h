// Why a kernel does not run a call, in words: what TCONV_EXPLAIN=1 and refusals say. Host only.
#pragma once

namespace tconv {
namespace reason {

// Of any kernel.
inline constexpr const char* kForced = "TCONV_KERNEL forces another kernel";
inline constexpr const char* kNoSuchKernel = "this device and pattern have no such kernel";
inline constexpr const char* kFP64 = "fp64 is computed by the plain kernel alone";
inline constexpr const char* kLongIndices = "a sample or its strides need 64-bit indices";

// Of kernels for tensor cores: the rule has the direct or the plain kernel take the call.
inline constexpr const char* kFewStrictProducts =
    "fewer than 5 products an output, which fp32 units add with less error";
inline constexpr const char* kFewGroupChannels =
    "groups of at most 8 input channels, which are answered in fp32, as by PyTorch";
inline constexpr const char* kFewProducts = "at most 2^20 products, for which one launch takes less time";
#ifdef TCONV_INTERLEAVES
inline constexpr const char* kFewProductsEach =
    "few products an output, in columns over two apart: storing them takes the time";
#ifdef TCONV_WALKS_DEPTH
inline constexpr const char* kHalfTiles = "groups of at most 8 input channels: half of a tile would be empty";
#endif
#endif
#ifdef TCONV_FEW_CHANNELS
inline constexpr const char* kFewDepthChannels = "volumes of few channels: storing the outputs takes the time";
#endif
inline constexpr const char* kMostlyPadding = "real products would fill less than 1/32 of a tensor-core tile";

// Of the Hopper kernel, and what holds or pools its outputs on the chip.
inline constexpr const char* kNotHopper = "the device's compute capability is not 9.0";
inline constexpr const char* kStrictFP32 = "fp32 with TF32 forbidden";
inline constexpr const char* kFewInputChannels = "fewer than 4 input channels a group";
inline constexpr const char* kFewChannels = "fewer than 16 input and 16 output channels a group";
inline constexpr const char* kColumnsApart = "slower where the stride is over two columns";
inline constexpr const char* kManyPhases = "more than 16 stride phases";
inline constexpr const char* kLongExtent = "an extent over 2^30";
inline constexpr const char* kNoTaps = "no output has a tap";
inline constexpr const char* kNoHopperTile = "no tile fits: shared memory or 32-bit lengths";
inline constexpr const char* kStridesOrGroups = "strides or groups";
inline constexpr const char* kOver64Channels = "more than 64 channels";
inline constexpr const char* kLongWeightRow = "a row of weights does not fit in shared memory";
inline constexpr const char* kLargeSample = "a sample's outputs do not fit the shared memory of all processors";
inline constexpr const char* kNoHeldTile = "no tile whose window and outputs fit in shared memory";
inline constexpr const char* kIdleProcessors = "most processors would have nothing to do";
inline constexpr const char* kNotAtOnce = "its blocks cannot all run at once";
inline constexpr const char* kComputedBefore = "the convolution's output was computed before";
inline constexpr const char* kOtherWindows = "pooling windows other than 2 x 2, side by side and unpadded";
inline constexpr const char* kNoWholeWindow = "no whole pooling window";

// Of the portable kernel.
inline constexpr const char* kNoTensorCores = "the device has no tensor cores for TF32 and bf16";
inline constexpr const char* kNoPortableTile = "no tile fits: shared memory or number of blocks";

// Of the direct kernel.
inline constexpr const char* kWideStride = "a stride over 8";
inline constexpr const char* kManyWeights =
    "the weights of a few output channels do not fit in half of the shared memory";
inline constexpr const char* kManyBlocks = "more than 2^31 blocks";
inline constexpr const char* kForFewChannels = "slower unless channels are few";

// On a CPU.
inline constexpr const char* kNoAvx512 = "the processor has no AVX-512 (F, DQ, BW, VL)";
inline constexpr const char* kNoAvx2 = "the processor has no AVX2 with FMA";
inline constexpr const char* kNonFiniteWeights =
    "a weight is infinite or NaN, which tiles would multiply by absent inputs' zeros";

}  // namespace reason
}  // namespace tconv
