#include "core/algorithms/ring.h"

#include <numeric>

namespace tfdist {
namespace {

class Segments {
 public:
  explicit Segments(const std::vector<size_t>& bounds)
      : bounds_(bounds), count_(static_cast<int>(bounds.size()) - 1) {}
  // `segment` may be any integer; it is taken modulo the number of segments.
  size_t begin(int segment) const { return bounds_[Wrap(segment)]; }
  size_t bytes(int segment) const { return bounds_[Wrap(segment) + 1] - bounds_[Wrap(segment)]; }

 private:
  int Wrap(int segment) const { return (segment % count_ + count_) % count_; }

  const std::vector<size_t>& bounds_;
  const int count_;
};

std::vector<int> AllRanks(int size) {
  std::vector<int> ranks(size);
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

}  // namespace

void AddRingAllReduce(int step, int position, const std::vector<int>& members, Memory own,
                      const std::vector<size_t>& bounds, Plan* plan) {
  const int size = static_cast<int>(members.size());
  const int left = members[(position + size - 1) % size], right = members[(position + 1) % size];
  const Segments segments(bounds);
  for (int s = 0; s < size - 1; ++s) {
    const int sent = position - s, received = sent - 1;
    const Span from = {s == 0 ? own : Memory::kOutput, segments.begin(sent)};
    plan->Send(step + s, right, from, segments.bytes(sent));
    plan->Combine(step + s, left, {own, segments.begin(received)},
                  {Memory::kOutput, segments.begin(received)}, segments.bytes(received),
                  s == size - 2 ? Finish::kYes : Finish::kNo);
  }
  step += size - 1;
  for (int s = 0; s < size - 1; ++s) {
    const int sent = position + 1 - s, received = sent - 1;
    plan->Send(step + s, right, {Memory::kOutput, segments.begin(sent)}, segments.bytes(sent));
    plan->Receive(step + s, left, {Memory::kOutput, segments.begin(received)},
                  segments.bytes(received));
  }
}

Plan RingAllReduce(int rank, int size, const std::vector<size_t>& bounds) {
  Plan plan;
  plan.steps = 2 * (size - 1);
  AddRingAllReduce(0, rank, AllRanks(size), Memory::kInput, bounds, &plan);
  return plan;
}

Plan RingReduceScatter(int rank, int size, const std::vector<size_t>& bounds) {
  Plan plan;
  plan.steps = size - 1;
  plan.work_bytes = bounds.back();
  const Segments segments(bounds);
  for (int s = 0; s < size - 1; ++s) {
    const int sent = rank - s - 1, received = sent - 1;
    const bool last = s == size - 2;
    const Span into =
        last ? Span{Memory::kOutput, 0} : Span{Memory::kWork, segments.begin(received)};
    plan.Send(s, (rank + 1) % size, {s == 0 ? Memory::kInput : Memory::kWork, segments.begin(sent)},
              segments.bytes(sent));
    plan.Combine(s, (rank + size - 1) % size, {Memory::kInput, segments.begin(received)}, into,
                 segments.bytes(received), last ? Finish::kYes : Finish::kNo);
  }
  return plan;
}

Plan RingAllGather(int rank, int size, const std::vector<size_t>& bounds) {
  Plan plan;
  plan.steps = size - 1;
  const Segments segments(bounds);
  for (int s = 0; s < size - 1; ++s) {
    const int sent = rank - s, received = sent - 1;
    plan.Send(s, (rank + 1) % size, {Memory::kOutput, segments.begin(sent)}, segments.bytes(sent));
    plan.Receive(s, (rank + size - 1) % size, {Memory::kOutput, segments.begin(received)},
                 segments.bytes(received));
  }
  return plan;
}

}  // namespace tfdist
