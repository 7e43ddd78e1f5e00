#include "core/algorithms/tree.h"

namespace tfdist {

Plan TreeBroadcast(int rank, int size, int root, size_t bytes) {
  Plan plan;
  plan.steps = CeilLog2(size);
  const Span buffer = {Memory::kOutput, 0};
  const int relative = (rank - root + size) % size;
  const auto step = [&plan](int bit) { return plan.steps - 1 - CeilLog2(bit); };
  int lowest_bit = 1;
  while (lowest_bit < size && (relative & lowest_bit) == 0) lowest_bit <<= 1;
  if (relative != 0) {
    plan.Receive(step(lowest_bit), (relative - lowest_bit + root) % size, buffer, bytes);
  }
  for (int bit = lowest_bit >> 1; bit > 0; bit >>= 1) {
    if (relative + bit < size) plan.Send(step(bit), (relative + bit + root) % size, buffer, bytes);
  }
  return plan;
}

Plan TreeReduce(int rank, int size, int root, size_t bytes) {
  Plan plan;
  plan.steps = CeilLog2(size);
  const int relative = (rank - root + size) % size;
  const Span into = {relative == 0 ? Memory::kOutput : Memory::kWork, 0};
  Span partial = {Memory::kInput, 0};
  int bit = 1;
  for (int step = 0; bit < size && (relative & bit) == 0; bit <<= 1, ++step) {
    if (relative + bit >= size) continue;
    const bool last = relative == 0 && 2 * bit >= size;
    plan.Combine(step, (relative + bit + root) % size, partial, into, bytes,
                 last ? Finish::kYes : Finish::kNo);
    partial = into;
  }
  if (relative == 0) return plan;
  if (partial.memory == Memory::kWork) plan.work_bytes = bytes;
  plan.Send(CeilLog2(bit), (relative - bit + root) % size, partial, bytes);
  return plan;
}

}  // namespace tfdist
