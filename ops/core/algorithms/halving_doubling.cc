#include "core/algorithms/halving_doubling.h"

namespace tfdist {
namespace {

// Neighbouring segments.
struct Range {
  int begin, end;
};

}  // namespace

Plan HalvingDoubling(int rank, int size, const std::vector<size_t>& bounds) {
  const int power = LargestPower(size), extra = size - power, doublings = CeilLog2(power);
  const size_t bytes = bounds.back();
  const Span input = {Memory::kInput, 0}, output = {Memory::kOutput, 0};
  Plan plan;
  plan.steps = 2 * doublings + (extra > 0 ? 2 : 0);
  if (rank >= power) {
    plan.Send(0, rank - power, input, bytes);
    plan.Receive(plan.steps - 1, rank - power, output, bytes);
    return plan;
  }

  Memory partial = Memory::kInput;
  int step = 0;
  if (extra > 0) {
    if (rank < extra) {
      plan.Combine(step, rank + power, input, output, bytes);
      partial = Memory::kOutput;
    }
    ++step;
  }
  const auto begin = [&](const Range& range) { return bounds[range.begin]; };
  const auto length = [&](const Range& range) { return bounds[range.end] - bounds[range.begin]; };
  Range own = {0, power};
  std::vector<Range> sent;
  for (int bit = power / 2; bit > 0; bit /= 2, ++step) {
    const int peer = rank ^ bit;
    const Range lower = {own.begin, own.begin + bit}, upper = {own.begin + bit, own.end};
    own = peer < rank ? upper : lower;
    sent.push_back(peer < rank ? lower : upper);
    plan.Send(step, peer, {partial, begin(sent.back())}, length(sent.back()));
    plan.Combine(step, peer, {partial, begin(own)}, {Memory::kOutput, begin(own)}, length(own),
                 bit == 1 ? Finish::kYes : Finish::kNo,
                 peer < rank ? Operands::kReceivedFirst : Operands::kOwnFirst);
    partial = Memory::kOutput;
  }
  for (int bit = 1; bit < power; bit *= 2, ++step) {
    const Range missing = sent.back();
    sent.pop_back();
    plan.Send(step, rank ^ bit, {Memory::kOutput, begin(own)}, length(own));
    plan.Receive(step, rank ^ bit, {Memory::kOutput, begin(missing)}, length(missing));
    own = missing.begin < own.begin ? Range{missing.begin, own.end} : Range{own.begin, missing.end};
  }
  if (rank < extra) plan.Send(step, rank + power, output, bytes);
  return plan;
}

}  // namespace tfdist
