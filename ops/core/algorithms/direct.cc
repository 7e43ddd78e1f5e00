#include "core/algorithms/direct.h"

namespace tfdist {
namespace {

size_t Bytes(const std::vector<size_t>& bounds, int block) {
  return bounds[block + 1] - bounds[block];
}

}  // namespace

Plan DirectGather(int rank, int size, int root, const std::vector<size_t>& bounds) {
  Plan plan;
  plan.steps = size > 1 ? 1 : 0;
  if (rank != root) {
    plan.Send(0, root, {Memory::kInput, 0}, Bytes(bounds, rank));
    return plan;
  }
  for (int peer = 0; peer < size; ++peer) {
    if (peer == root) continue;
    plan.Receive(0, peer, {Memory::kOutput, bounds[peer]}, Bytes(bounds, peer));
  }
  return plan;
}

Plan DirectScatter(int rank, int size, int root, const std::vector<size_t>& bounds) {
  Plan plan;
  plan.steps = size > 1 ? 1 : 0;
  if (rank != root) {
    plan.Receive(0, root, {Memory::kOutput, 0}, Bytes(bounds, rank));
    return plan;
  }
  for (int peer = 0; peer < size; ++peer) {
    if (peer == root) continue;
    plan.Send(0, peer, {Memory::kInput, bounds[peer]}, Bytes(bounds, peer));
  }
  return plan;
}

Plan DirectAllToAll(int rank, int size, const std::vector<size_t>& send_bounds,
                    const std::vector<size_t>& receive_bounds) {
  Plan plan;
  plan.steps = size > 1 ? 1 : 0;
  for (int i = 1; i < size; ++i) {
    const int to = (rank + i) % size, from = (rank + size - i) % size;
    plan.Send(0, to, {Memory::kInput, send_bounds[to]}, Bytes(send_bounds, to));
    plan.Receive(0, from, {Memory::kOutput, receive_bounds[from]}, Bytes(receive_bounds, from));
  }
  return plan;
}

Plan DirectReduceScatter(int rank, int size, const std::vector<size_t>& bounds) {
  Plan plan;
  plan.steps = size > 1 ? 1 : 0;
  Span sum = {Memory::kInput, bounds[rank]};
  for (int i = 1; i < size; ++i) {
    const int peer = (rank + i) % size;
    plan.Send(0, peer, {Memory::kInput, bounds[peer]}, Bytes(bounds, peer));
    plan.Combine(0, peer, sum, {Memory::kOutput, 0}, Bytes(bounds, rank),
                 i == size - 1 ? Finish::kYes : Finish::kNo);
    sum = {Memory::kOutput, 0};
  }
  return plan;
}

}  // namespace tfdist
