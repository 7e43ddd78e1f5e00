#include "core/ps/client/operations/task_commits.h"

#include <algorithm>
#include <utility>

namespace tfdist::ps {

void TaskCommits::Add(uint64_t stream, std::vector<TaskCommit> batch) {
  const std::lock_guard<std::mutex> lock(mutex_);
  streams_[stream].push_back(std::move(batch));
}

void TaskCommits::Forget(uint64_t stream) {
  const std::lock_guard<std::mutex> lock(mutex_);
  streams_.erase(stream);
}

void TaskCommits::BeginSteps(uint64_t stream, uint64_t steps) {
  const std::lock_guard<std::mutex> lock(mutex_);
  stream_ = stream;
  steps_ = steps;
}

std::vector<TaskCommit> TaskCommits::Take(bool* lost) {
  const std::lock_guard<std::mutex> lock(mutex_);
  *lost = false;
  if (steps_ == 0) return {};
  --steps_;
  const auto found = streams_.find(stream_);
  if (found == streams_.end() || found->second.empty()) return {};
  std::vector<TaskCommit> batch = std::move(found->second.front());
  found->second.pop_front();
  *lost = std::any_of(batch.begin(), batch.end(),
                      [this](const TaskCommit& commit) { return lost_.count(commit.lease) > 0; });
  if (*lost) ++refused_;
  return batch;
}

void TaskCommits::Refuse(const std::vector<TaskCommit>& batch) {
  const std::lock_guard<std::mutex> lock(mutex_);
  ++refused_;
  // The tasks of the batch that the worker still owns have a gap now: it must give them back.
  for (const TaskCommit& commit : batch) {
    if (lost_.insert(commit.lease).second) new_lost_.push_back(commit.lease);
  }
}

uint64_t TaskCommits::TakeRefused(std::vector<uint64_t>* leases) {
  const std::lock_guard<std::mutex> lock(mutex_);
  *leases = std::exchange(new_lost_, {});
  return std::exchange(refused_, 0);
}

}  // namespace tfdist::ps
