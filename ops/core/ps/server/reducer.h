// Adds up tensors over the active workers of a job.
//
// The executions of one key have rising sequence numbers. A worker that contributes to an execution
// will not contribute to an earlier one of the same key, which then does not wait for it.
#ifndef TFDIST_OPS_CORE_PS_SERVER_REDUCER_H_
#define TFDIST_OPS_CORE_PS_SERVER_REDUCER_H_

#include <cstdint>
#include <functional>
#include <list>
#include <mutex>
#include <optional>
#include <set>
#include <unordered_map>
#include <utility>
#include <vector>

#include "core/ps/server/request.h"
#include "core/ps/server/schedule.h"

namespace tfdist::ps {

class Reducer {
 public:
  // Whether the schedule counts a worker as active, and how long the others wait for it.
  using IsActive = std::function<bool(int worker)>;
  using Patience = std::function<Clock::duration(int worker)>;
  using Deliver = std::function<void(uint64_t session, Answer answer)>;
  // Makes the worker connect again and repeat its unanswered requests.
  using Disconnect = std::function<void(uint64_t session)>;

  Reducer(int workers, IsActive is_active, Patience patience, Deliver deliver,
          Disconnect disconnect);

  // A contribution. `deliver` answers it when all workers have contributed, or at once with an
  // error if it does not match the others.
  void Add(uint64_t session, int worker, uint64_t id, const ReduceRequest& request,
           std::vector<BlockPtr> tensors);
  // Finishes the sums that wait for no other worker. To be called when fewer workers are active.
  void Check();
  // A worker is active again: the time that others wait for it starts from now.
  void Reactivate(int worker);
  // The worker's process has ended: it repeats no request, and the next process starts its own
  // sequence.
  void EndProcess(int worker);
  // The session has ended: no answers are delivered to it.
  void EndSession(uint64_t session);

  // Sets waits[worker * workers + other] where `worker` waits for a sum that lacks the contribution
  // of `other`.
  void AddWaits(bool* waits) const;
  // Active workers that others have waited for too long.
  std::vector<int> Late(TimePoint now) const;
  TimePoint NextDeadline() const;

 private:
  struct Waiting {
    uint64_t session;
    int worker;
    uint64_t id;  // of the request
  };
  struct Sum {
    uint64_t key = 0, sequence = 0;
    std::vector<DType> dtypes;
    std::vector<uint64_t> elements;
    std::vector<BlockPtr> tensors;
    int first = 0;  // the first contributor
    std::set<int> contributors;
    std::vector<Waiting> waiting;
    TimePoint since{};
    bool finished = false;
  };
  using Sums = std::list<Sum>;  // oldest first
  struct Key {
    std::vector<uint64_t> latest;      // by worker: its last sequence number
    std::optional<uint64_t> finished;  // the last finished execution
  };

  Sums::iterator Find(uint64_t key, uint64_t sequence);
  Status Compare(const Sum& sum, int worker, const ReduceRequest& request) const;
  bool IsMissing(const Sum& sum, int worker) const;
  void FinishComplete();
  void Finish(Sum* sum);
  void Forget();

  const int workers_;
  const IsActive is_active_;
  const Patience patience_;
  const Deliver deliver_;
  const Disconnect disconnect_;
  mutable std::mutex mutex_;  // held during is_active_ and patience_; guards the rest
  Sums sums_;
  std::unordered_map<uint64_t, Key> keys_;
  std::vector<uint64_t> latest_;  // by worker, over all keys
  std::vector<TimePoint> returned_;
};

}  // namespace tfdist::ps

#endif  // TFDIST_OPS_CORE_PS_SERVER_REDUCER_H_
