// Lookups of one step that travel together: the layers of a model ask one by one, and each waits
// until all that belong to its group have asked.
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
#include "core/ps/client/operations/lookup_operation.h"

namespace tfdist::ps {

// One execution of a group. The first two say which lookups belong to it, the others tell its
// executions apart.
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

  // What waits for the others of its group. Made before it is added, so that it can be cancelled
  // at any time.
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

  // How many lookups are in each execution of a group. One whose size is not known does not wait.
  void SetSize(int64_t group, int level, size_t size);
  // All of a group are of one kind, `training` or not.
  void Add(const GroupKey& key, const MemberPtr& member, std::vector<TableLookup> lookups,
           bool training, ps::Done done);
  // The member does not wait any more, and will not.
  void Cancel(const MemberPtr& member);
  // Nobody waits any more, and nobody will.
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
