#include "core/algorithms/two_level.h"

#include <algorithm>

#include "core/algorithms/chain.h"
#include "core/algorithms/ring.h"

namespace tfdist {

Plan TwoLevelAllReduce(int rank, const std::vector<int>& hosts, const std::vector<size_t>& bounds) {
  const int host_count = *std::max_element(hosts.begin(), hosts.end()) + 1;
  const int host = hosts[rank];
  std::vector<std::vector<int>> members(host_count);
  for (int r = 0; r < static_cast<int>(hosts.size()); ++r) members[hosts[r]].push_back(r);
  std::vector<int> leaders;
  size_t longest = 0;
  for (const std::vector<int>& list : members) {
    leaders.push_back(list.front());
    longest = std::max(longest, list.size());
  }
  const std::vector<int>& local = members[host];
  const int position =
      static_cast<int>(std::find(local.begin(), local.end(), rank) - local.begin());
  const int local_steps = static_cast<int>(longest) - 1, ring_steps = 2 * (host_count - 1);

  Plan plan;
  plan.steps = 2 * local_steps + ring_steps;
  const bool finished = position == 0 && host_count == 1;
  const Span sum = AddChainReduce(0, position, local, Memory::kOutput,
                                  finished ? Finish::kYes : Finish::kNo, bounds.back(), &plan);
  if (position == 0) {
    AddRingAllReduce(local_steps, host, leaders, sum.memory, bounds, &plan);
  }
  AddChainBroadcast(local_steps + ring_steps, position, local, bounds.back(), &plan);
  return plan;
}

}  // namespace tfdist
