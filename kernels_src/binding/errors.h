// What the operator refuses. std::runtime_error arrives in Python as RuntimeError, std::invalid_argument as ValueError.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>

namespace tconv {
namespace binding {

inline std::string text_of(const std::string& value) { return value; }
inline std::string text_of(const char* value) { return value; }
inline std::string text_of(int64_t value) { return std::to_string(value); }

template <typename... Parts>
std::string joined(const Parts&... parts) {
  std::string text;
  ((text += text_of(parts)), ...);
  return text;
}

template <typename... Parts>
[[noreturn]] void refuse(const Parts&... parts) {
  throw std::runtime_error(joined("conv_transpose2d: ", parts...));
}

// Where PyTorch raises ValueError.
template <typename... Parts>
[[noreturn]] void refuse_value(const Parts&... parts) {
  throw std::invalid_argument(joined(parts...));
}

// "(1, 2)", and "(5,)" as Python writes it.
inline std::string tuple_text(const int64_t* values, size_t count) {
  std::string text = "(";
  for (size_t i = 0; i < count; ++i) text += (i ? ", " : "") + std::to_string(values[i]);
  return text + (count == 1 ? ",)" : ")");
}

struct Pair {
  int64_t h, w;

  int64_t smallest() const { return h < w ? h : w; }
  int64_t operator[](int axis) const { return axis == 0 ? h : w; }
};

inline std::string text_of(const Pair& pair) {
  const int64_t values[] = {pair.h, pair.w};
  return tuple_text(values, 2);
}

}  // namespace binding
}  // namespace tconv
