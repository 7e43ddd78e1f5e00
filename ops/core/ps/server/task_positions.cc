#include "core/ps/server/task_positions.h"

#include <algorithm>
#include <utility>

namespace tfdist::ps {

TaskPositions::Claim& TaskPositions::Claim::operator=(Claim&& other) noexcept {
  Release();
  positions_ = std::exchange(other.positions_, nullptr);
  granted_ = other.granted_;
  leases_ = std::move(other.leases_);
  after_ = std::move(other.after_);
  return *this;
}

void TaskPositions::Claim::Commit() { Move(/*is_applied=*/true); }

void TaskPositions::Claim::Collect() { Move(/*is_applied=*/false); }

void TaskPositions::Claim::Move(bool is_applied) {
  if (positions_ == nullptr) return;
  {
    const std::lock_guard<std::mutex> lock(positions_->mutex_);
    for (size_t i = 0; i < leases_.size(); ++i) {
      const Positions::iterator task = positions_->leases_.at(leases_[i]).task;
      task->second.trained = after_[i].trained;
      if (is_applied) {
        task->second.applied = after_[i].trained;
      } else {
        positions_->collected_.push_back(std::move(after_[i].task));
      }
    }
  }
  Release();
}

void TaskPositions::Claim::Release() {
  if (positions_ == nullptr) return;
  {
    const std::lock_guard<std::mutex> lock(positions_->mutex_);
    for (const uint64_t lease : leases_) positions_->leases_.at(lease).busy = false;
    positions_->claimed_ -= leases_.size();
  }
  positions_->released_.notify_all();
  positions_ = nullptr;
}

uint64_t TaskPositions::Open(uint64_t lease, const std::string& task, uint64_t trained) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = positions_.try_emplace(task).first;
  found->second.AdvanceTo(trained);
  leases_[lease].task = found;
  return found->second.trained;
}

uint64_t TaskPositions::Advance(uint64_t lease, uint64_t trained) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = leases_.find(lease);
  if (found == leases_.end()) return 0;
  Position& position = found->second.task->second;
  position.AdvanceTo(trained);
  return position.trained;
}

uint64_t TaskPositions::Close(uint64_t lease, bool forgets) {
  std::unique_lock<std::mutex> lock(mutex_);
  auto found = leases_.find(lease);
  // Found again after each wait: the master may open other leases meanwhile.
  while (found != leases_.end() && found->second.busy) {
    released_.wait(lock);
    found = leases_.find(lease);
  }
  if (found == leases_.end()) return 0;
  const Positions::iterator task = found->second.task;
  const uint64_t trained = task->second.trained;
  leases_.erase(found);
  if (forgets && task->second.applied == trained && !HasLease(task)) positions_.erase(task);
  return trained;
}

void TaskPositions::Forget(const std::string& first, const std::string& last) {
  const std::lock_guard<std::mutex> lock(mutex_);
  auto next = positions_.lower_bound(first);
  while (next != positions_.end() && next->first < last) {
    const bool is_needed = next->second.applied < next->second.trained || HasLease(next);
    next = is_needed ? std::next(next) : positions_.erase(next);
  }
}

bool TaskPositions::HasLease(Positions::const_iterator task) const {
  return std::any_of(leases_.begin(), leases_.end(),
                     [&](const auto& lease) { return lease.second.task == task; });
}

TaskPositions::Claim TaskPositions::Begin(const std::vector<TaskCommit>& commits) {
  Claim claim;
  const std::lock_guard<std::mutex> lock(mutex_);
  for (const TaskCommit& commit : commits) {
    const auto found = leases_.find(commit.lease);
    if (found == leases_.end() || found->second.busy) return claim;
    if (found->second.task->second.trained != commit.from || commit.upto < commit.from) {
      return claim;
    }
    claim.leases_.push_back(commit.lease);
    claim.after_.push_back({found->second.task->first, commit.upto});
  }
  collected_.reserve(collected_.size() + claimed_ + claim.leases_.size());
  claimed_ += claim.leases_.size();
  for (const uint64_t lease : claim.leases_) leases_.at(lease).busy = true;
  claim.positions_ = this;
  claim.granted_ = true;
  return claim;
}

std::vector<TaskPosition> TaskPositions::ApplyCollected() {
  const std::lock_guard<std::mutex> lock(mutex_);
  std::vector<TaskPosition> applied;
  for (const std::string& task : collected_) {
    const auto found = positions_.find(task);
    if (found != positions_.end()) applied.push_back({task, found->second.trained});
  }
  for (const TaskPosition& each : applied)
    positions_.find(each.task)->second.applied = each.trained;
  collected_.clear();
  return applied;
}

std::vector<TaskPosition> TaskPositions::Save() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  std::vector<TaskPosition> saved;
  saved.reserve(positions_.size());
  for (const auto& [task, position] : positions_) saved.push_back({task, position.applied});
  return saved;
}

void TaskPositions::Restore(const std::vector<TaskPosition>& positions) {
  const std::lock_guard<std::mutex> lock(mutex_);
  for (const TaskPosition& saved : positions) {
    positions_[saved.task].AdvanceTo(saved.trained);
  }
}

}  // namespace tfdist::ps
