// Writes a tensor's values in the order in which planes hold them, with zeros behind each row where it has such
// (padded_rows.h).
#pragma once

#include "../padded_rows.h"
#include "fast_divisor.h"

namespace tconv {
namespace cuda {

template <typename Storage, int kVector = static_cast<int>(kRowVector)>
struct alignas(kVector * sizeof(Storage)) StorageVector {
  Storage values[kVector];
};

struct RowPadding {
  int64_t height, width;
  int zeros;  // behind each row; 0: rows follow each other
  FastDivisor by_width;
  FastDivisor64 rows;

  static RowPadding make(int64_t height, int64_t width, int64_t row_columns) {
    return {height, width, static_cast<int>(row_columns - width), FastDivisor::make(static_cast<uint32_t>(width)),
            FastDivisor64::make(static_cast<uint64_t>(width))};
  }
};

// Of values that follow each other in a plane, from its value `first` on. The tensor and each plane's values, where
// vectors are stored, begin at whole vectors.
template <typename Storage>
struct RowWriter {
  Storage* to;  // value 0, but for the zeros of rows that end on the way
  const RowPadding& padding;
  int column;  // of value 0

  __device__ __forceinline__ RowWriter(Storage* tensor, const RowPadding& of, int64_t plane, int64_t first)
      : to(tensor + plane * of.height * of.width + first), padding(of), column(0) {
    if (of.zeros == 0) return;
    const int64_t row = of.rows.quotient(first);
    column = static_cast<int>(first - row * of.width);
    to += (plane * of.height + row) * of.zeros;
  }

  __device__ __forceinline__ void store(int at, Storage value) const {
    Storage* place = to + at;
    if (padding.zeros > 0) {
      const int row = rows_before(at);
      place += row * padding.zeros;
      if (ends_row(at, row)) fill(place + 1);
    }
    *place = value;
  }

  // Of even columns two values are in one row.
  __device__ __forceinline__ void store(int at, const StorageVector<Storage>& vector) const {
    if (padding.zeros == 0) {
      *reinterpret_cast<StorageVector<Storage>*>(to + at) = vector;
    } else if (padding.zeros == 2) {
      using Pair = StorageVector<Storage, 2>;
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int row = rows_before(at + 2 * i);
        Storage* const place = to + at + 2 * i + row * 2;
        *reinterpret_cast<Pair*>(place) = {vector.values[2 * i], vector.values[2 * i + 1]};
        if (ends_row(at + 2 * i + 1, row)) *reinterpret_cast<Pair*>(place + 2) = Pair{};
      }
    } else {
#pragma unroll
      for (int k = 0; k < kRowVector; ++k) store(at + k, vector.values[k]);
    }
  }

 private:
  __device__ __forceinline__ int rows_before(int at) const {
    return static_cast<int>(padding.by_width.quotient(column + at));
  }

  __device__ __forceinline__ bool ends_row(int at, int row) const {
    return column + at + 1 == (row + 1) * static_cast<int>(padding.width);
  }

  __device__ __forceinline__ void fill(Storage* place) const {
    for (int i = 0; i < padding.zeros; ++i) place[i] = static_cast<Storage>(0.0f);
  }
};

}  // namespace cuda
}  // namespace tconv
