// TCONV_KERNEL: the names of the kernels that can be forced.
#pragma once

#include <cstring>

#include "../common.h"
#include "errors.h"

// A pattern's own names, each {name, KernelChoice}.
#ifndef TCONV_MORE_KERNELS
#define TCONV_MORE_KERNELS
#endif

namespace tconv {
namespace binding {

struct KernelName {
  const char* name;
  int64_t choice;
};

constexpr KernelName kKernelNames[] = {{"auto", kAuto},       {"plain", kPlain},   {"portable", kPortable},
                                       {"hopper", kHopper},   {"direct", kDirect}, {"held", kHeld},
                                       {"avx2", kAtMostAvx2}, TCONV_MORE_KERNELS};

// null: auto.
inline int64_t kernel_choice(const char* name) {
  if (name == nullptr) return kAuto;
  std::string allowed;
  for (const KernelName& known : kKernelNames) {
    if (std::strcmp(name, known.name) == 0) return known.choice;
    allowed += joined(allowed.empty() ? "" : ", ", known.name);
  }
  refuse_value("TCONV_KERNEL must be one of ", allowed, ", got '", name, "'");
}

}  // namespace binding
}  // namespace tconv
