#include "core/ps/client/faces/commits.h"

#include <memory>
#include <utility>

namespace tfdist::ps {

void Commits::Resolve(ResolveRequest resolve, Done done) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    resolve_ = resolve;
    unit_ = {resolve.next, false};
  }
  state_->submit(std::make_shared<ResolveOperation>(std::move(resolve), state_->options.servers,
                                                    std::move(done)));
}

void Commits::BeginUnit(uint64_t number) {
  const std::lock_guard<std::mutex> lock(mutex_);
  unit_.unit.number = number;
  unit_.pushed = false;
}

void Commits::Commit(CommitOperation::Done done) {
  CommitRequest commit;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    commit = unit_;
    committed_ = commit;
  }
  Send(commit, std::move(done));
}

void Commits::RepeatCommit(CommitOperation::Done done) {
  std::optional<CommitRequest> commit;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    commit = committed_;
  }
  if (!commit) return done(Status(), CommitOutcome());
  // Lost commits are counted.
  commit->pushed = false;
  Send(*commit, std::move(done));
}

ResolveRequest Commits::resolve() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return resolve_;
}

UnitOfWork Commits::BeginPush() {
  const std::lock_guard<std::mutex> lock(mutex_);
  unit_.pushed = true;
  return unit_.unit;
}

void Commits::Send(const CommitRequest& commit, CommitOperation::Done done) {
  state_->submit(std::make_shared<CommitOperation>(
      commit, state_->options.servers,
      [this, done = std::move(done)](const Status& status, const CommitOutcome& outcome) {
        if (status.ok() && outcome.lost) {
          state_->counters.Count([](ClientStats& stats) { ++stats.dropped_pushes; });
        }
        done(status, outcome);
      }));
}

}  // namespace tfdist::ps
