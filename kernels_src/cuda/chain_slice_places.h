// The batch in slices, and where each one's tensors lie while its gradients are formed: in what the input's gradient
// has not been written of yet, and in a spare workspace, much smaller than the tensors. A step's peak of memory is then
// hardly more than what its caller holds.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace tconv {
namespace cuda {

struct SlicesConfig {
  static constexpr int64_t kAlignment = 256;
  // The spare workspace: as much as the whole batch takes, but at most so many bytes, or this share of the input's
  // gradient.
  static constexpr int64_t kSpareBytes = int64_t{96} << 20, kSpareShare = 20;
};

// Bytes of an image: of its input's gradient; of the convolution's output, and of both operands as they are packed.
struct SliceBytes {
  int64_t grad_x, value, x, planes;

  int64_t all() const { return value + x + planes + 3 * SlicesConfig::kAlignment; }

  int64_t spare(int64_t batch) const {
    using Config = SlicesConfig;
    const int64_t most = std::max(Config::kSpareBytes, batch * grad_x / Config::kSpareShare);
    return std::max(std::min(batch * all(), most), all());
  }
};

// From the beginning of the input's gradient, or of the spare workspace.
struct SlicePlace {
  bool spare;
  int64_t at;
};

struct Slice {
  int64_t first, count;  // images
  SlicePlace value, x, planes;
};

// A run of free bytes.
struct FreeBytes {
  bool spare;
  int64_t at, end;

  bool take(int64_t bytes, SlicePlace* place) {
    const int64_t begin = (at + SlicesConfig::kAlignment - 1) / SlicesConfig::kAlignment * SlicesConfig::kAlignment;
    if (begin + bytes > end) return false;
    *place = {spare, begin};
    at = begin + bytes;
    return true;
  }
};

// The slice's own part of the input's gradient is written last: what is read until then lies elsewhere, packed pixels
// of x do not.
inline bool place_slice(const SliceBytes& image, int64_t batch, int64_t spare, Slice* slice) {
  const int64_t end = (slice->first + slice->count) * image.grad_x;
  FreeBytes own = {false, slice->first * image.grad_x, end}, behind = {false, end, batch * image.grad_x};
  FreeBytes workspace = {true, 0, spare};
  const auto place = [&](int64_t bytes, SlicePlace* to) {
    return behind.take(slice->count * bytes, to) || workspace.take(slice->count * bytes, to);
  };
  return (own.take(slice->count * image.x, &slice->x) || place(image.x, &slice->x)) &&
         place(image.value, &slice->value) && place(image.planes, &slice->planes);
}

// As few as possible: found from the last one back, which has the least room.
// None where an image finds no place. No slice has more than `most`.
inline std::vector<Slice> slices_of(const SliceBytes& image, int64_t batch, int64_t most) {
  const int64_t spare = image.spare(batch);
  std::vector<Slice> slices;
  for (int64_t end = batch; end > 0; end = slices.back().first) {
    Slice slice = {0, std::min(end, most), {}, {}, {}};
    const auto fits = [&](int64_t count) {
      slice.first = end - count, slice.count = count;
      return place_slice(image, batch, spare, &slice);
    };
    while (slice.count > 0 && !fits(slice.count)) --slice.count;
    if (slice.count <= 0) return {};
    slices.push_back(slice);
  }
  std::reverse(slices.begin(), slices.end());
  return slices;
}

}  // namespace cuda
}  // namespace tconv
