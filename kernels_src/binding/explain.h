// TCONV_EXPLAIN=1: which kernel a call takes and why no faster one, a line on standard error for each kind of call.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <string>
#include <unordered_set>

#include "errors.h"
#include "tensors.h"

namespace tconv {
namespace binding {

// The environment is read by the first call that works.
inline bool explains() {
  static const bool wanted = [] {
    const char* const value = std::getenv("TCONV_EXPLAIN");
    if (value == nullptr || std::strcmp(value, "0") == 0) return false;
    if (std::strcmp(value, "1") == 0) return true;
    refuse_value("TCONV_EXPLAIN must be 0 or 1, got '", value, "'");
  }();
  return wanted;
}

// The layer and how it is computed.
inline std::string signature(const ConvCall& call, const Device& device) {
  const ConvTransposeLayer& p = call.layer;
  const auto pair = [](const char* name, int64_t h, int64_t w) { return joined(", ", name, " ", h, "x", w); };
  std::string text = joined("input ", p.batch, "x", p.in_channels, "x", p.in_h, "x", p.in_w, ", output ",
                            p.out_channels, "x", p.out_h, "x", p.out_w);
  text += pair("kernel", p.kernel_h, p.kernel_w) + pair("stride", p.stride_h, p.stride_w) +
          pair("padding", p.padding_h, p.padding_w) + pair("dilation", p.dilation_h, p.dilation_w);
  text += joined(", groups ", p.groups, ", in ", dtype_name(torch_dtype(call.dtype)));
  if (call.dtype == kFloat32 && !device.is_cpu()) text += call.math == kMathTF32 ? " with TF32" : " without TF32";
  return joined(text, " on ", device.name());
}

inline std::string line_of(const ConvCall& call, const Device& device, const Explanation& told) {
  std::string text = joined("tconv: ", signature(call, device), ": ", told.kernel == nullptr ? "nothing" : told.kernel);
  if (*told.way != 0) text += joined(", ", told.way);
  const char* why = nullptr;
  for (int i = 0; i < told.num_ruled_out; ++i) {
    const Explanation::RuledOut& out = told.ruled_out[i];
    const bool ends = i + 1 == told.num_ruled_out || told.ruled_out[i + 1].why != out.why;
    text += joined(why == out.why ? " or " : "; not ", out.kernel);
    if (ends) text += joined(": ", out.why);
    why = out.why;
  }
  return text + "\n";
}

inline void tell(const ConvCall& call, const Device& device, const Explanation& told) {
  static std::mutex mutex;
  static std::unordered_set<std::string> known;
  const std::string line = line_of(call, device, told);
  const std::lock_guard<std::mutex> lock(mutex);
  if (known.insert(line).second) std::fputs(line.c_str(), stderr);
}

}  // namespace binding
}  // namespace tconv
