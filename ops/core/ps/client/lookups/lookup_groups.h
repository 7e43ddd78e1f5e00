// Batches the lookups of one step: each layer of a model makes its own, which waits until all
// lookups of its group have been made.
#ifndef TFDIST_OPS_CORE_PS_CLIENT_LOOKUPS_LOOKUP_GROUPS_H_
#define TFDIST_OPS_CORE_PS_CLIENT_LOOKUPS_LOOKUP_GROUPS_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <tuple>
#include <utility>
#include <vector>

#include "core/base/status.h"
#include "core/ps/client/lookups/lookup_operation.h"

namespace tfdist::ps {

// One execution of a group. `group` and `level` identify the group, the others its execution.
struct GroupKey {
  int64_t group = 0;
  int level = 0;
  int64_t step = 0;
  uint64_t frame = 0;
  int64_t iteration = 0;

  bool operator<(const GroupKey& other) const {
    return std::tie(group, level, step, frame, iteration) <
           std::tie(other.group, other.level, other.step, other.frame, other.iteration);
  }
};

// Any thread may call it.
class LookupGroups {
 public:
  using Send = std::function<void(std::vector<TableLookup>, bool training, ps::Done)>;

  // A lookup that waits for the others of its group. Created before it is added, so that it can be
  // cancelled at any time.
  class Member {
   private:
    friend class LookupGroups;
    bool cancelled = false;
    const GroupKey* waits = nullptr;
    std::vector<TableLookup> lookups;
    ps::Done done;
  };
  using MemberPtr = std::shared_ptr<Member>;

  explicit LookupGroups(Send send) : send_(std::move(send)) {}

  // The number of lookups in each execution of a group. Lookups of a group without a size do not
  // wait.
  void SetSize(int64_t group, int level, size_t size);
  // `training` is the same for all members of a group.
  void Add(const GroupKey& key, const MemberPtr& member, std::vector<TableLookup> lookups,
           bool training, ps::Done done);
  // Ends the member's wait. If it is added later, it fails.
  void Cancel(const MemberPtr& member);
  // Ends all waits. Later members fail.
  void Close();

 private:
  const Send send_;
  std::mutex mutex_;
  std::map<std::pair<int64_t, int>, size_t> sizes_;
  std::map<GroupKey, std::vector<MemberPtr>> waiting_;
  bool closed_ = false;
};

}  // namespace tfdist::ps

#endif  // TFDIST_OPS_CORE_PS_CLIENT_LOOKUPS_LOOKUP_GROUPS_H_
