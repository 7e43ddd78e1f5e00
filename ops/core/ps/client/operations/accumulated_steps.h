// The steps that a worker has made since its last push, if it pushes every n_push steps and fetches
// every n_fetch steps. This is Downpour SGD (Dean et al., "Large scale distributed deep networks",
// 2012).
//
//     n_push = 2, n_fetch = 4
//     step    1      2      3      4      5
//           fetch                        fetch
//                   push          push
//
// Gradients of a parameter are added up. Of its values only the last ones matter: their change
// since the last push is sent. Not thread-safe.
#ifndef TFDIST_OPS_CORE_PS_CLIENT_OPERATIONS_ACCUMULATED_STEPS_H_
#define TFDIST_OPS_CORE_PS_CLIENT_OPERATIONS_ACCUMULATED_STEPS_H_

#include <map>
#include <utility>
#include <vector>

#include "core/base/block.h"
#include "core/ps/client/operations/control_operations.h"
#include "core/ps/client/operations/parameter_table.h"
#include "core/ps/client/operations/push_operation.h"
#include "core/ps/protocol/message.h"

namespace tfdist::ps {

// The contents of a push.
struct StepContents {
  std::vector<std::pair<StepValues, Gradient>> gradients;
  std::vector<std::pair<StepValues, RowGradient>> row_gradients;
  std::vector<Value> values;        // of all parameters, at the end of the step
  std::vector<TaskCommit> commits;  // of the records that it has trained
  bool has_lost = false;            // some of these records belong to others by now
};

class AccumulatedSteps {
 public:
  AccumulatedSteps(const ParameterTable* table, BlockPool* pool) : table_(table), pool_(pool) {}

  // The gradients of a parameter have the learning rate and the number of the last of its steps.
  void Add(StepContents step);
  // Since the last Take.
  int count() const { return count_; }
  // One gradient for each parameter and kind; the commits of a task are one range.
  StepContents Take();

 private:
  struct Sum {
    StepValues step;
    Memory values;
    bool owned = false;  // else the memory belongs to the only gradient
  };
  struct Rows {
    StepValues step;
    std::vector<Gradient> gradients;
  };

  void AddDense(const StepValues& step, const Gradient& gradient);
  Gradient Joined(std::vector<Gradient> gradients) const;

  const ParameterTable* const table_;
  BlockPool* const pool_;
  int count_ = 0;
  std::map<int, Sum> sums_;       // by parameter
  std::map<int, Rows> rows_;      // by parameter
  std::map<int, Memory> values_;  // by parameter
  StepContents rest_;             // without those
};

}  // namespace tfdist::ps

#endif  // TFDIST_OPS_CORE_PS_CLIENT_OPERATIONS_ACCUMULATED_STEPS_H_
