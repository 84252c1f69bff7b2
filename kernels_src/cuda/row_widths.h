// How the lanes of a warp share a row that they hold in registers: the choice of a kernel for it. Plain host C++.
#pragma once

#include "../tail_call.h"

namespace tconv {
namespace cuda {

// take(values that a lane loads at once, such vectors of a row that it holds): as types. A whole warp has one vector,
// two, four or eight a lane. aligned: rows begin at multiples of 16 bytes. kUnsupportedKernel where row_norm_fits says
// no, and for 2^31 rows or more.
template <typename S, typename Take>
int64_t with_row_widths(const TailCall& call, bool aligned, const Take& take) {
  constexpr int kVector = 16 / static_cast<int>(sizeof(S)), kLanes = 32;
  if (!row_norm_fits(call.row, sizeof(S), aligned) || call.plane % call.row != 0)
    return unsupported_tail(call, "registers do not hold a row, or a plane is no whole rows");
  if (call.batch * call.channels * (call.plane / call.row) > INT32_MAX)
    return unsupported_tail(call, "2^31 rows or more");
  const auto held = [&](auto vector) -> int64_t {
    using Vector = decltype(vector);
    const int64_t of_lane = (call.row + Vector::value * kLanes - 1) / (Vector::value * kLanes);
    if (of_lane <= 1) return take(vector, std::integral_constant<int, 1>{});
    if (of_lane <= 2) return take(vector, std::integral_constant<int, 2>{});
    if (of_lane <= 4) return take(vector, std::integral_constant<int, 4>{});
    if constexpr (Vector::value <= 4) return take(vector, std::integral_constant<int, 8>{});
    return kUnsupportedKernel;  // no row that fits
  };
  if (row_norm_in_vectors(call.row, sizeof(S), aligned)) return held(std::integral_constant<int, kVector>{});
  return held(std::integral_constant<int, 1>{});
}

// Of a kernel with this Config: 2^lane_bits lanes have a row; so many blocks, or fewer where there are no more rows.
template <typename Config>
struct RowBlocks {
  int lane_bits = 0;
  int64_t blocks;

  RowBlocks(const TailCall& call, int64_t processors) {
    while ((int64_t{Config::kHeld} << lane_bits) * Config::kVector < call.row) ++lane_bits;
    const int64_t rows = call.batch * call.channels * (call.plane / call.row);
    const int64_t of_block = int64_t{Config::kWarps} * (32 >> lane_bits) * Config::kRows;
    const int64_t needed = (rows + of_block - 1) / of_block, most = processors * Config::kBlocksPerProcessor;
    blocks = needed < most ? needed : most;
  }
};

}  // namespace cuda
}  // namespace tconv
