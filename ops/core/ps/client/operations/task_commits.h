// Which records of data tasks the pushes of a worker train.
//
// The input pipeline adds the batches of a stream in their order, as it makes them. The training
// says before its steps that they use the next batches, one each. The push that ends a step takes
// its batch. So validation, or a step on other data, takes none. Thread-safe.
#ifndef TFDIST_OPS_CORE_PS_CLIENT_OPERATIONS_TASK_COMMITS_H_
#define TFDIST_OPS_CORE_PS_CLIENT_OPERATIONS_TASK_COMMITS_H_

#include <cstdint>
#include <deque>
#include <map>
#include <mutex>
#include <set>
#include <vector>

#include "core/ps/protocol/message.h"

namespace tfdist::ps {

class TaskCommits {
 public:
  void Add(uint64_t stream, std::vector<TaskCommit> batch);
  // The stream has ended.
  void Forget(uint64_t stream);
  // The next `steps` steps use the next batches of the stream; steps left from a former call use
  // none.
  void BeginSteps(uint64_t stream, uint64_t steps);

  // The batch of the step that ends; empty without one. `lost`: whether the worker has lost a task
  // of it, so that its values must not be sent.
  std::vector<TaskCommit> Take(bool* lost);
  // The server has refused a push of these records.
  void Refuse(const std::vector<TaskCommit>& batch);
  // Refused and unsent batches since the last call, and their leases.
  uint64_t TakeRefused(std::vector<uint64_t>* leases);

 private:
  std::mutex mutex_;  // guards the rest
  std::map<uint64_t, std::deque<std::vector<TaskCommit>>> streams_;
  uint64_t stream_ = 0, steps_ = 0;  // of the last BeginSteps
  std::set<uint64_t> lost_;          // leases
  std::vector<uint64_t> new_lost_;   // since the last TakeRefused
  uint64_t refused_ = 0;             // the same
};

}  // namespace tfdist::ps

#endif  // TFDIST_OPS_CORE_PS_CLIENT_OPERATIONS_TASK_COMMITS_H_
