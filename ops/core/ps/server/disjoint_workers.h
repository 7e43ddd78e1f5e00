// Notices a worker that trains alone.
//
// Names say which variable is the same in all workers. A worker that makes its variables in another
// order than the others gives them other names, and would train without the others, and without a
// word.
#ifndef TFDIST_OPS_CORE_PS_SERVER_DISJOINT_WORKERS_H_
#define TFDIST_OPS_CORE_PS_SERVER_DISJOINT_WORKERS_H_

#include <cstdint>
#include <set>
#include <vector>

namespace tfdist::ps {

class DisjointWorkerCheck {
 public:
  // A worker has made these shards its own.
  void Knows(int worker, const std::vector<uint32_t>& shards);
  // A worker updates these shards. Returns a worker that has also updated some, if nobody who has
  // knows any of these; -1 otherwise, and whenever this is not the worker's first update.
  int FindDisjointWorker(int worker, const std::vector<uint32_t>& shards);

 private:
  std::vector<std::set<int>> workers_;  // by shard
  std::set<int> active_;                // that have updated something
};

}  // namespace tfdist::ps

#endif  // TFDIST_OPS_CORE_PS_SERVER_DISJOINT_WORKERS_H_
