#include "core/algorithms/plan.h"

#include <algorithm>

namespace tfdist {

void Plan::Send(int step, int peer, Span from, size_t bytes) {
  Add({Transfer::Kind::kSend, static_cast<uint16_t>(step), peer, bytes, from, {}});
}

void Plan::Receive(int step, int peer, Span into, size_t bytes) {
  Add({Transfer::Kind::kReceive, static_cast<uint16_t>(step), peer, bytes, into, {}});
}

void Plan::Combine(int step, int peer, Span own, Span into, size_t bytes, Finish finish,
                   Operands operands) {
  Add({Transfer::Kind::kCombine, static_cast<uint16_t>(step), peer, bytes, into, own, operands,
       finish});
}

void Plan::AddPeer(int peer) {
  if (std::find(peers.begin(), peers.end(), peer) == peers.end()) peers.push_back(peer);
}

void Plan::Add(Transfer transfer) {
  AddPeer(transfer.peer);
  if (transfer.bytes > 0) transfers.push_back(transfer);
}

std::vector<size_t> EvenBounds(size_t count, size_t width, int parts) {
  std::vector<size_t> bounds;
  for (int i = 0; i <= parts; ++i) bounds.push_back(count * i / parts * width);
  return bounds;
}

std::vector<size_t> Bounds(const std::vector<uint64_t>& bytes) {
  std::vector<size_t> bounds = {0};
  for (const uint64_t part : bytes) bounds.push_back(bounds.back() + part);
  return bounds;
}

int CeilLog2(int n) {
  int log = 0;
  while (1 << log < n) ++log;
  return log;
}

int LargestPower(int n) {
  int power = 1;
  while (2 * power <= n) power *= 2;
  return power;
}

}  // namespace tfdist
