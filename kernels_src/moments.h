// Running moments of a set of values, combined without cancellation.
// Source: Chan, Golub, LeVeque, "Updating formulae and a pairwise algorithm for computing sample variances", 1979.
#pragma once

#include "common.h"

namespace tconv {

// What a convolution tile says of one channel's outputs (after the epilogue): count, mean, sum of squared
// deviations from that mean. Layout in memory: [batch][num_partials][out_channels].
struct alignas(16) Moments {  // one load
  float count, mean, m2;
};

struct MomentsF64 {
  double count = 0, mean = 0, m2 = 0;

  TCONV_HD void combine(double other_count, double other_mean, double other_m2) {
    if (other_count == 0) return;
    const double total = count + other_count;
    const double delta = other_mean - mean;
    mean += delta * (other_count / total);
    m2 += other_m2 + delta * delta * (count * other_count / total);
    count = total;
  }
};

}  // namespace tconv
