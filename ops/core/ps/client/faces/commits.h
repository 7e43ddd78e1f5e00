// The commits of a worker: its units of work in an elastic job, and its records of data tasks.
#ifndef TFDIST_OPS_CORE_PS_CLIENT_FACES_COMMITS_H_
#define TFDIST_OPS_CORE_PS_CLIENT_FACES_COMMITS_H_

#include <cstdint>
#include <mutex>
#include <optional>

#include "core/ps/client/faces/shared.h"
#include "core/ps/client/operations/elastic_operations.h"
#include "core/ps/client/operations/task_commits.h"

namespace tfdist::ps {

class Commits {
 public:
  explicit Commits(ClientState* state) : state_(state) {}

  // The records of data tasks that pushes commit.
  TaskCommits& tasks() { return tasks_; }

  // In an elastic job; see server/elastic_schedule.h.

  // Tells all servers, also later connected ones, the members of a generation. Later pushes belong
  // to it. Fails with kFailedPrecondition if a server knows a later one.
  void Resolve(ResolveRequest resolve, Done done);
  // Later pushes are of this unit of work.
  void BeginUnit(uint64_t number);
  // Tells the servers that this worker has done the unit.
  void Commit(CommitOperation::Done done);
  // Repeats the last commit, whose outcome may have changed; ends at once if there was none.
  void RepeatCommit(CommitOperation::Done done);

  // Of this generation, for a server that is connected.
  ResolveRequest resolve() const;
  // The unit of a push that begins.
  UnitOfWork BeginPush();

 private:
  void Send(const CommitRequest& commit, CommitOperation::Done done);

  ClientState* const state_;
  TaskCommits tasks_;
  mutable std::mutex mutex_;                // guards the rest
  ResolveRequest resolve_;                  // of this generation
  CommitRequest unit_;                      // of this worker's unit of work
  std::optional<CommitRequest> committed_;  // the last one
};

}  // namespace tfdist::ps

#endif  // TFDIST_OPS_CORE_PS_CLIENT_FACES_COMMITS_H_
