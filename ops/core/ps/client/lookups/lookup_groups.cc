#include "core/ps/client/lookups/lookup_groups.h"

#include <algorithm>
#include <iterator>

namespace tfdist::ps {
namespace {

Status LookupCancelled() {
  return Status(StatusCode::kCancelled, "a lookup was cancelled: its step failed or was stopped");
}

}  // namespace

void LookupGroups::SetSize(int64_t group, int level, size_t size) {
  const std::lock_guard<std::mutex> lock(mutex_);
  sizes_[{group, level}] = size;
}

void LookupGroups::Add(const GroupKey& key, const MemberPtr& member,
                       std::vector<TableLookup> lookups, bool training, ps::Done done) {
  std::vector<MemberPtr> complete;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    member->lookups = std::move(lookups);
    member->done = std::move(done);
    const auto size = sizes_.find({key.group, key.level});
    if (closed_ || member->cancelled) {
      member->cancelled = true;
    } else if (size == sizes_.end() || size->second <= 1) {
      complete.push_back(member);
    } else {
      const auto group = waiting_.try_emplace(key).first;
      group->second.push_back(member);
      member->waits = &group->first;
      if (group->second.size() < size->second) return;
      complete = std::move(group->second);
      for (const MemberPtr& each : complete) each->waits = nullptr;
      waiting_.erase(group);
    }
  }
  if (complete.empty()) return member->done(LookupCancelled());
  // Sorted by table, not by time of arrival: the messages of all steps are equal.
  std::vector<TableLookup> all;
  for (const MemberPtr& each : complete) {
    std::move(each->lookups.begin(), each->lookups.end(), std::back_inserter(all));
  }
  std::stable_sort(all.begin(), all.end(),
                   [](const TableLookup& a, const TableLookup& b) { return a.table < b.table; });
  send_(std::move(all), training, [complete = std::move(complete)](const Status& status) {
    for (const MemberPtr& each : complete) std::exchange(each->done, nullptr)(status);
  });
}

void LookupGroups::Cancel(const MemberPtr& member) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    member->cancelled = true;
    if (member->waits == nullptr) return;
    const auto group = waiting_.find(*std::exchange(member->waits, nullptr));
    std::vector<MemberPtr>& members = group->second;
    members.erase(std::find(members.begin(), members.end(), member));
    if (members.empty()) waiting_.erase(group);
  }
  std::exchange(member->done, nullptr)(LookupCancelled());
}

void LookupGroups::Close() {
  std::vector<MemberPtr> members;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    closed_ = true;
    for (const auto& [key, group] : waiting_) {
      members.insert(members.end(), group.begin(), group.end());
    }
  }
  for (const MemberPtr& member : members) Cancel(member);
}

}  // namespace tfdist::ps
