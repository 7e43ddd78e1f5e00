#include "core/algorithms/chain.h"

namespace tfdist {
namespace {

std::vector<int> RanksFrom(int root, int size) {
  std::vector<int> ranks;
  for (int i = 0; i < size; ++i) ranks.push_back((root + i) % size);
  return ranks;
}

}  // namespace

void AddChainBroadcast(int step, int position, const std::vector<int>& members, size_t bytes,
                       Plan* plan) {
  const Span buffer = {Memory::kOutput, 0};
  if (position > 0) plan->Receive(step + position - 1, members[position - 1], buffer, bytes);
  if (position + 1 < static_cast<int>(members.size())) {
    plan->Send(step + position, members[position + 1], buffer, bytes);
  }
}

Span AddChainReduce(int step, int position, const std::vector<int>& members, Memory into,
                    Finish finish, size_t bytes, Plan* plan) {
  const int last = static_cast<int>(members.size()) - 1;
  Span sum = {Memory::kInput, 0};
  if (position < last) {
    plan->Combine(step + last - position - 1, members[position + 1], sum, {into, 0}, bytes, finish);
    sum = {into, 0};
  }
  if (position > 0) plan->Send(step + last - position, members[position - 1], sum, bytes);
  return sum;
}

Plan ChainBroadcast(int rank, int size, int root, size_t bytes) {
  Plan plan;
  plan.steps = size - 1;
  AddChainBroadcast(0, (rank - root + size) % size, RanksFrom(root, size), bytes, &plan);
  return plan;
}

Plan ChainReduce(int rank, int size, int root, size_t bytes) {
  Plan plan;
  plan.steps = size - 1;
  const bool is_root = rank == root;
  const Span sum = AddChainReduce(0, (rank - root + size) % size, RanksFrom(root, size),
                                  is_root ? Memory::kOutput : Memory::kWork,
                                  is_root ? Finish::kYes : Finish::kNo, bytes, &plan);
  if (sum.memory == Memory::kWork) plan.work_bytes = bytes;
  return plan;
}

}  // namespace tfdist
