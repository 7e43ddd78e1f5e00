#include "core/algorithms/recursive_doubling.h"

namespace tfdist {

Plan RecursiveDoubling(int rank, int size, size_t bytes) {
  const int power = LargestPower(size), extra = size - power, doublings = CeilLog2(power);
  Plan plan;
  plan.steps = doublings + (extra > 0 ? 2 : 0);
  const Span input = {Memory::kInput, 0}, output = {Memory::kOutput, 0};
  if (rank >= power) {
    plan.Send(0, rank - power, input, bytes);
    plan.Receive(plan.steps - 1, rank - power, output, bytes);
    return plan;
  }

  // Every partial result has memory of its own: the previous one may still be in a send queue.
  const int combines = doublings + (rank < extra ? 1 : 0);
  plan.work_bytes = combines > 1 ? (combines - 1) * bytes : 0;
  Span partial = input;
  int combined = 0;
  const auto combine = [&](int step, int peer) {
    const bool last = ++combined == combines;
    const Span into = last ? output : Span{Memory::kWork, (combined - 1) * bytes};
    plan.Combine(step, peer, partial, into, bytes, last ? Finish::kYes : Finish::kNo,
                 peer < rank ? Operands::kReceivedFirst : Operands::kOwnFirst);
    partial = into;
  };

  int step = 0;
  if (extra > 0) {
    if (rank < extra) combine(step, rank + power);
    ++step;
  }
  for (int bit = 1; bit < power; bit <<= 1, ++step) {
    plan.Send(step, rank ^ bit, partial, bytes);
    combine(step, rank ^ bit);
  }
  if (rank < extra) plan.Send(step, rank + power, output, bytes);
  return plan;
}

}  // namespace tfdist
