// The weights of a layer of row pairs (row_pairs.h), dense: [row of an input pair and channel][row of an output pair
// and channel][rows][columns]. Of volumes the channels are those of all depth taps (depth_walk.h). One thread a weight.
#pragma once

#include "../call.h"
#include "../row_pairs.h"
#include "check.h"

namespace tconv {
namespace cuda {

struct RowPairsWeightsConfig {
  static constexpr int kThreads = 256;
};

template <typename Storage>
struct RowPairsWeightsArgs {
  const Storage* weight;
  Storage* to;
  RowPairs pairs;
  int rows, padding_h;               // of the layer of pairs
  int kernel_h, kernel_w, padded_h;  // of the other, and its padding
  int tap_channels, count;           // channels of one depth tap; weights in all
  int kernel_depth, kernel_first, kernel_step;
};

template <typename Storage>
__global__ void __launch_bounds__(RowPairsWeightsConfig::kThreads)
    pair_rows_of_weights_kernel(const __grid_constant__ RowPairsWeightsArgs<Storage> args) {
  const int nth = blockIdx.x * RowPairsWeightsConfig::kThreads + threadIdx.x;
  if (nth >= args.count) return;
  int rest = nth;
  const auto next_digit = [&rest](int radix) {
    const int quotient = rest / radix, digit = rest - quotient * radix;
    rest = quotient;
    return digit;
  };
  const int column = next_digit(args.kernel_w), row = next_digit(args.rows), out = next_digit(2 * args.pairs.out);
  const int second_out = out >= args.pairs.out, second_in = rest >= args.pairs.in;
  const int out_channel = out - second_out * args.pairs.out, in_channel = rest - second_in * args.pairs.in;
  const int kernel_row = 2 * (row - args.padding_h) + second_out - second_in + args.padded_h + args.pairs.before;
  Storage value = static_cast<Storage>(0.0f);
  if (out_channel < args.pairs.channels && kernel_row >= 0 && kernel_row < args.kernel_h) {
    const int tap = in_channel / args.tap_channels, of_tap = in_channel - tap * args.tap_channels;
    const int slice = args.kernel_first - tap * args.kernel_step;
    value =
        args.weight[(((static_cast<int64_t>(of_tap) * args.pairs.channels + out_channel) * args.kernel_depth + slice) *
                         args.kernel_h +
                     kernel_row) *
                        args.kernel_w +
                    column];
  }
  args.to[nth] = value;
}

template <typename Storage>
int64_t launch_row_pairs_weights(const ConvCall& call, const RowPairsLayer& made, Storage* to) {
  const ConvTransposeLayer &p = call.layer, &of_pairs = made.layer;
  RowPairsWeightsArgs<Storage> args{};
  args.weight = static_cast<const Storage*>(call.weight), args.to = to;
  args.pairs = made.pairs;
  args.rows = static_cast<int>(of_pairs.kernel_h), args.padding_h = static_cast<int>(of_pairs.padding_h);
  args.kernel_h = static_cast<int>(p.kernel_h), args.kernel_w = static_cast<int>(p.kernel_w);
  args.padded_h = static_cast<int>(p.padding_h);
  args.count = static_cast<int>(made.weights());
  args.tap_channels = made.pairs.in, args.kernel_depth = 1;
#ifdef TCONV_WALKS_DEPTH
  if (call.depth.walks()) {
    args.tap_channels = static_cast<int>(made.pairs.in / call.depth.tap_count());
    args.kernel_depth = static_cast<int>(call.depth.kernel_depth);
    args.kernel_first = static_cast<int>(call.depth.kernel_first);
    args.kernel_step = static_cast<int>(call.depth.kernel_step);
  }
#endif
  constexpr int kThreads = RowPairsWeightsConfig::kThreads;
  return launch_kernel(pair_rows_of_weights_kernel<Storage>,
                       dim3(static_cast<unsigned>((args.count + kThreads - 1) / kThreads)), dim3(kThreads), 0,
                       call.stream, args);
}

}  // namespace cuda
}  // namespace tconv
