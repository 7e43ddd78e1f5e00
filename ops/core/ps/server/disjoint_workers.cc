#include "core/ps/server/disjoint_workers.h"

#include <algorithm>

namespace tfdist::ps {

void DisjointWorkerCheck::AddShards(int worker, const std::vector<uint32_t>& shards) {
  for (uint32_t shard : shards) {
    if (shard >= workers_.size()) workers_.resize(shard + 1);
    workers_[shard].insert(worker);
  }
}

int DisjointWorkerCheck::FindDisjointWorker(int worker, const std::vector<uint32_t>& shards) {
  if (shards.empty() || active_.count(worker) > 0) return -1;
  int other = -1;
  for (int active : active_) {
    const bool shares_some = std::any_of(shards.begin(), shards.end(), [&](uint32_t shard) {
      return shard < workers_.size() && workers_[shard].count(active) > 0;
    });
    if (shares_some) {
      other = -1;
      break;
    }
    other = active;
  }
  active_.insert(worker);
  return other;
}

}  // namespace tfdist::ps
