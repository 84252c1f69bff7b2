// What BatchNorm keeps between calls, moved towards a batch's statistics as PyTorch does.
#pragma once

#include "call.h"
#include "moments.h"

namespace tconv {

// One channel; T is the type in which they are kept. A batch of one value has no unbiased variance: PyTorch refuses it.
template <typename T>
TCONV_HD void update_running_statistics(const RunningStatistics& running, int64_t channel, const MomentsF64& batch) {
  if (running.mean == nullptr) return;
  const double factor =
      running.num_batches != nullptr ? 1.0 / static_cast<double>(*running.num_batches) : running.momentum;
  T& mean = static_cast<T*>(running.mean)[channel];
  T& var = static_cast<T*>(running.var)[channel];
  mean = static_cast<T>(mean + factor * (batch.mean - mean));
  var = static_cast<T>(var + factor * (batch.m2 / (batch.count - 1) - var));
}

}  // namespace tconv
