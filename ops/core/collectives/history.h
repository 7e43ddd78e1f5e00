// The executions that have started on this rank or were cancelled before their start, and the
// signatures of the last ended ones.
#ifndef TFDIST_OPS_CORE_COLLECTIVES_HISTORY_H_
#define TFDIST_OPS_CORE_COLLECTIVES_HISTORY_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <set>
#include <unordered_map>
#include <utility>

#include "core/collectives/collective.h"

namespace tfdist {

class History {
 public:
  void MarkStarted(const CollectiveId& id) {
    Executions& executions = started_[id.key];
    if (id.sequence != executions.below) {
      executions.above.insert(id.sequence);
      return;
    }
    do {
      ++executions.below;
    } while (executions.above.erase(executions.below) > 0);
  }

  bool HasStarted(const CollectiveId& id) const {
    const auto found = started_.find(id.key);
    if (found == started_.end()) return false;
    return id.sequence < found->second.below || found->second.above.count(id.sequence) > 0;
  }

  void MarkCancelled(const CollectiveId& id) { cancelled_.insert(id); }
  // Whether it was cancelled before its start. Removes the mark.
  bool TakeCancelled(const CollectiveId& id) { return cancelled_.erase(id) > 0; }

  void MarkEnded(const CollectiveId& id, Signature signature) {
    constexpr size_t kMaxEnded = 1024;
    if (ended_.size() == kMaxEnded) ended_.pop_front();
    ended_.emplace_back(id, std::move(signature));
  }

  // The signature of an execution that ended recently, or null.
  const Signature* Ended(const CollectiveId& id) const {
    const auto found = std::find_if(ended_.rbegin(), ended_.rend(),
                                    [&id](const auto& entry) { return entry.first == id; });
    return found == ended_.rend() ? nullptr : &found->second;
  }

 private:
  // Sequences usually start in order, so `above` is nearly always empty.
  struct Executions {
    uint64_t below = 0;  // all sequences below this one have started
    std::set<uint64_t> above;
  };

  std::unordered_map<uint64_t, Executions> started_;
  std::set<CollectiveId> cancelled_;
  std::deque<std::pair<CollectiveId, Signature>> ended_;  // oldest first
};

}  // namespace tfdist

#endif  // TFDIST_OPS_CORE_COLLECTIVES_HISTORY_H_
