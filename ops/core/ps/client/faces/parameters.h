// A worker's access to the parameters of the servers: pull, push, wait (ps-lite's three verbs).
//
// It keeps the last pulled value of each parameter, and computes the changes of a step from it.
#ifndef TFDIST_OPS_CORE_PS_CLIENT_FACES_PARAMETERS_H_
#define TFDIST_OPS_CORE_PS_CLIENT_FACES_PARAMETERS_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <mutex>
#include <vector>

#include "core/ps/client/faces/commits.h"
#include "core/ps/client/faces/shared.h"
#include "core/ps/client/lookups/lookups.h"
#include "core/ps/client/operations/accumulated_steps.h"
#include "core/ps/client/operations/control_operations.h"
#include "core/ps/client/operations/push_operation.h"
#include "core/ps/optimizers/optimizer.h"

namespace tfdist::ps {

class Parameters {
 public:
  using Binding = BoundParameter;

  // Pushes take records and units of `commits`, and end the step of `lookups`.
  Parameters(ClientState* state, Commits* commits, Lookups* lookups);

  Status Add(ParameterSpec spec, int* id);
  // Does not change; without elements for an unknown id.
  const ParameterSpec& spec(int id) const { return state_->parameters.spec(id); }

  // Creates the parameter on its servers, with `value`, where it does not exist. Until the first
  // pull, `value` counts as the last pulled value.
  void Create(int parameter, Memory value, Done done);

  // From now on the servers update these parameters by pushed gradients. Their slots are parameters
  // too, placed like them. All must have been created. Done when all servers have confirmed it.
  void Bind(const OptimizerConfig& config, std::vector<Binding> bindings, Done done);
  // The optimizers that are bound, for a server that is connected.
  std::vector<BoundOptimizer> bound() const;

  // Leaves a parameter out of the pulls that begin a step: a slot, which only the servers use, or a
  // counter. Bind does so with slots.
  void Exclude(int parameter);
  bool IsExcluded(int parameter) const;

  // Brings the parameters up to date. For each parameter that has changed on its servers,
  // `allocate` returns memory for the new value, which may be the memory of `Pulled`. Unchanged
  // shards are copied into it. A pull that `begins_step` waits for the servers' schedule. When
  // done, `Pulled` is the new value. Pulls are carried out one after the other.
  using Allocate = std::function<Memory(int parameter)>;
  void Pull(std::vector<int> parameters, bool begins_step, Allocate allocate, Done done);
  // The last pulled value, or the one pushed or set since; without data if there is none.
  Memory Pulled(int parameter) const;
  // Hands over the last pulled value, so that its memory can be reused. The next pull fetches the
  // parameter, changed or not.
  Memory TakePulled(int parameter);

  // Keeps gradients for the next push. A pull that begins another step forgets them.
  void Stage(const StepValues& step, std::vector<Gradient> gradients);
  // The same for rows of a table; gradients of the same id are added up.
  void StageRows(const StepValues& step, RowGradient gradient);

  // Ends a step: sends the staged gradients, and those values of `now` that differ from the last
  // pulled ones, which they replace. Sends nothing if there is nothing to send. `done` is called
  // when the memory of the step is no longer needed, or is held by its owner; the next pull reports
  // a failure of the servers. No pull of these parameters may be under way. A program may push more
  // than once in a step; the push with `ends_step` commits the step's records of data tasks. With
  // `waits`, `done` is called when the servers have answered, and gets their failure. With n_push a
  // step that is not pushed yet is accumulated, and pushed before a value is fetched.
  void Push(std::vector<Value> now, Done done, bool ends_step = true, bool waits = false);
  // Pushes the accumulated steps. Fails as a push does before its values are sent.
  Status PushAccumulated();
  // How many pushes were sent.
  const std::atomic<uint64_t>& pushes() const { return pushes_; }

  // Replaces values outside of a step. The next pull fetches them. Done when the servers have them.
  void Set(std::vector<Value> values, Done done);

 private:
  void CreateMissing(int parameter, const Memory& value, const Done& done);
  bool accumulates() const { return state_->options.n_push > 1 || state_->options.n_fetch > 1; }
  // Sends a push. Whether `done` will be called with the servers' answers; else `status` is final.
  bool Send(StepContents step, const Done& done, bool waits, Status* status);
  Status FillPush(const StepContents& step, PushOperation* push);

  ClientState* const state_;
  Commits* const commits_;
  Lookups* const lookups_;
  std::atomic<uint64_t> pushes_{0};

  mutable std::mutex mutex_;           // guards the next ones
  StepContents staged_;                // of this step: its gradients
  bool in_step_ = false;               // it has pushed, and not ended
  bool fetch_due_ = true;              // the next step begins with a fetch
  int fetched_steps_ = 0;              // since the last fetch
  std::vector<BoundOptimizer> bound_;  // in the order of Bind

  std::mutex pushing_;            // is taken before mutex_
  AccumulatedSteps accumulated_;  // guarded by pushing_
};

}  // namespace tfdist::ps

#endif  // TFDIST_OPS_CORE_PS_CLIENT_FACES_PARAMETERS_H_
