#include "core/algorithms/dissemination.h"

namespace tfdist {

Plan DisseminationBarrier(int rank, int size) {
  Plan plan;
  plan.steps = CeilLog2(size);
  // A rank sends the token that it received, so each step waits for the signals of all earlier
  // steps.
  const Span token = {Memory::kOutput, 0};
  for (int step = 0; step < plan.steps; ++step) {
    const int distance = 1 << step;
    plan.Send(step, (rank + distance) % size, token, 1);
    plan.Receive(step, (rank + size - distance) % size, token, 1);
  }
  return plan;
}

}  // namespace tfdist
