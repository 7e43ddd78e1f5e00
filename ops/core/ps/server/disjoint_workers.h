// Detects a worker that shares no variable with the others.
//
// Workers share variables by name. A worker that creates its variables in another order than the
// others gives them other names. It would train alone, without an error.
#ifndef TFDIST_OPS_CORE_PS_SERVER_DISJOINT_WORKERS_H_
#define TFDIST_OPS_CORE_PS_SERVER_DISJOINT_WORKERS_H_

#include <cstdint>
#include <set>
#include <vector>

namespace tfdist::ps {

class DisjointWorkerCheck {
 public:
  // The worker has created these shards, or found them created.
  void AddShards(int worker, const std::vector<uint32_t>& shards);
  // The worker updates these shards. On its first update: an active worker if none of the active
  // workers shares any of them, else -1. On later updates: -1.
  int FindDisjointWorker(int worker, const std::vector<uint32_t>& shards);

 private:
  std::vector<std::set<int>> workers_;  // by shard
  std::set<int> active_;                // have updated shards
};

}  // namespace tfdist::ps

#endif  // TFDIST_OPS_CORE_PS_SERVER_DISJOINT_WORKERS_H_
