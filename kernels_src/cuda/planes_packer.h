// Takes g's place where it is not in memory: what the weight gradient's launches ask for at the places where they would
// read it.
#pragma once

#include "../common.h"

namespace tconv {
namespace cuda {

struct GradientState;
struct PackedGoes;

struct PlanesPacker {
  // The largest magnitude of a sample of g.
  virtual int64_t sample(unsigned* largest) const = 0;
  // Planes of images [first, first + count), scaled and guarded where there is a state.
  virtual int64_t pack(const PackedGoes& goes, int64_t first, int count, void* workspace,
                       GradientState* state) const = 0;
  // g itself, where call.grad says, should it be read: where the guard is raised (null: there is none), or a weight's
  // gradient is not finite.
  virtual int64_t materialise(const int* guard) const = 0;

 protected:
  ~PlanesPacker() = default;
};

}  // namespace cuda
}  // namespace tconv
