#include "core/algorithms/bruck.h"

#include <algorithm>

namespace tfdist {

Plan BruckAllGather(int rank, int size, const std::vector<size_t>& bounds) {
  Plan plan;
  plan.steps = CeilLog2(size);
  // Blocks `size` to 2 * size - 1 are blocks 0 to size - 1 again.
  const auto begin = [&](int block) {
    return block < size ? bounds[block] : bounds.back() + bounds[block - size];
  };
  for (int step = 0; step < plan.steps; ++step) {
    const int distance = 1 << step, blocks = std::min(distance, size - distance);
    const int below = (rank + size - distance) % size, above = rank + distance;
    plan.Send(step, below, {Memory::kOutput, begin(rank)}, begin(rank + blocks) - begin(rank));
    plan.Receive(step, above % size, {Memory::kOutput, begin(above)},
                 begin(above + blocks) - begin(above));
  }
  return plan;
}

}  // namespace tfdist
