// The steps of training: pulls and pushes; and values that are set or added up outside of them.
#ifndef TFDIST_OPS_CORE_PS_SERVER_HANDLERS_STEP_HANDLER_H_
#define TFDIST_OPS_CORE_PS_SERVER_HANDLERS_STEP_HANDLER_H_

#include <atomic>
#include <cstdint>
#include <list>
#include <mutex>
#include <optional>
#include <vector>

#include "core/ps/server/events.h"
#include "core/ps/server/handlers/server_state.h"
#include "core/ps/server/request.h"
#include "core/ps/store/step_sums.h"
#include "core/ps/store/update.h"

namespace tfdist::ps {

class StepHandler {
 public:
  // The owner of ServerState::mutex.
  using Lock = std::unique_lock<std::mutex>;

  explicit StepHandler(ServerState* state)
      : state_(*state),
        updater_(state->options, state->store, &state->log),
        sums_(state->options.schedule.workers, &updater_, state->store, &state->log),
        trace_(state->options.trace_events) {}

  // No answer yet if the schedule holds the pull back: it is parked.
  std::optional<Answer> HandlePull(const ClientContext& client, uint64_t id,
                                   const PullRequest& pull);
  Answer HandlePush(const ClientContext& client, const PushRequest& push, ClientRequest* request);
  Answer HandleResolve(const ClientContext& client, uint64_t id, const ResolveRequest& resolve);
  Answer HandleCommit(const ClientContext& client, uint64_t id, const CommitRequest& commit);
  Answer HandleSet(const ClientContext& client, const SetRequest& set, ClientRequest* request);
  Answer HandleExchange(const ClientContext& client, const ExchangeRequest& exchange,
                        ClientRequest* request);
  // The reducer answers.
  void HandleReduce(const ClientContext& client, const ReduceRequest& reduce,
                    ClientRequest* request);

  // With ServerState::mutex:

  uint64_t ClockFor(int worker) const;
  // Forgets the worker's parked pulls.
  void CancelPulls(int worker);
  void AddStats(ServerStats* stats) const;
  uint64_t pushes() const { return pushes_; }
  // Closes the open step if it is complete, and answers the parked pulls that the schedule allows
  // now. Under Store::Share too. May release the lock.
  void Advance(Lock* lock);

  std::vector<TraceEvent> trace() const { return trace_.Copy(); }

 private:
  struct Parked {
    ClientContext client;
    uint64_t id;
    PullRequest pull;
    uint64_t clock = 0;  // once the pull may be answered
  };

  // The shards' values, in a synchronous job all of one clock.
  Answer Gather(const ClientContext& client, uint64_t id, const PullRequest& pull, uint64_t clock);
  void CloseIfComplete();
  // Applies the open step, to which `contributions` workers have contributed, and opens the next.
  void Close(int contributions);
  // Whether the push belongs to the open step, or begins it.
  bool MayCollect(int worker, const PushRequest& push);
  void ReleasePulls(Lock* lock);
  // Warns on a worker's first push if no other worker has its shards.
  void CheckDisjoint(int worker, const PushRequest& push);

  ServerState& state_;
  Updater updater_;
  StepSums sums_;
  Trace trace_;
  std::atomic<uint64_t> pulls_{0};

  // Guarded by ServerState::mutex.
  int collecting_ = 0;             // contributions that are not in the sums yet
  bool step_is_of_tasks_ = false;  // a contribution to the open step has trained data tasks
  std::list<Parked> parked_;
  uint64_t pushes_ = 0, foreign_pushes_ = 0, repeated_pushes_ = 0, refused_pushes_ = 0;
  uint64_t assignments_ = 0;
};

}  // namespace tfdist::ps

#endif  // TFDIST_OPS_CORE_PS_SERVER_HANDLERS_STEP_HANDLER_H_
