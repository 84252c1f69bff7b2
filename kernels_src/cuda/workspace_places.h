// Places in a workspace, one behind the other: the same walk gives its size and the addresses.
#pragma once

#include "../common.h"

namespace tconv {
namespace cuda {

class WorkspacePlaces {
 public:
  // workspace null: only the size is asked for.
  explicit WorkspacePlaces(void* workspace) : base_(static_cast<char*>(workspace)) {}

  template <typename T>
  T* reserve(int64_t count) {
    constexpr int64_t kAlignment = 256;
    char* const place = base_ == nullptr ? nullptr : base_ + bytes_;
    bytes_ += (count * static_cast<int64_t>(sizeof(T)) + kAlignment - 1) / kAlignment * kAlignment;
    return reinterpret_cast<T*>(place);
  }
  int64_t bytes() const { return bytes_; }

 private:
  char* base_;
  int64_t bytes_ = 0;
};

}  // namespace cuda
}  // namespace tconv
