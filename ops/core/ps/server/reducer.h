// Adds up tensors over the active workers of a job.
//
// The executions of one key have rising sequence numbers. A worker that comes with a later one does
// not come with an earlier one of the same key any more, and is not waited for there.
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

  // Has the worker connect again, and ask again for what it waits for.
  using Disconnect = std::function<void(uint64_t session)>;

  Reducer(int workers, IsActive is_active, Patience patience, Deliver deliver,
          Disconnect disconnect);

  // A contribution. It is answered by `deliver` when all have come, at once with an error if it
  // does not fit the others.
  void Add(uint64_t session, int worker, uint64_t number, const ReduceRequest& request,
           std::vector<BlockPtr> tensors);
  // Fewer workers are active.
  void Check();
  // A worker is active again, and has its whole time.
  void Returned(int worker);
  // Its process has ended: it asks for nothing again, and another one counts anew.
  void ProcessEnded(int worker);
  // Nobody is there to be answered.
  void Gone(uint64_t session);

  // Sets waits[worker * workers + other] where `worker` waits for a sum to which `other` has to
  // contribute yet.
  void AddWaits(bool* waits) const;
  // Active workers for whom others have waited for too long.
  std::vector<int> Late(TimePoint now) const;
  TimePoint NextDeadline() const;

 private:
  struct Waiting {
    uint64_t session;
    int worker;
    uint64_t number;
  };
  struct Sum {
    uint64_t key = 0, sequence = 0;
    std::vector<DType> dtypes;
    std::vector<uint64_t> elements;
    std::vector<BlockPtr> tensors;
    int first = 0;  // the worker that came first
    std::set<int> contributors;
    std::vector<Waiting> waiting;
    TimePoint since{};
    bool finished = false;
  };
  using Sums = std::list<Sum>;  // oldest first
  struct Key {
    std::vector<uint64_t> latest;      // by worker: the sequence number it came with last
    std::optional<uint64_t> finished;  // the last one of which all had come
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
  mutable std::mutex mutex_;  // held while asking is_active_ and patience_; guards the rest
  Sums sums_;
  std::unordered_map<uint64_t, Key> keys_;
  std::vector<uint64_t> latest_;  // by worker, of any key
  std::vector<TimePoint> returned_;
};

}  // namespace tfdist::ps

#endif  // TFDIST_OPS_CORE_PS_SERVER_REDUCER_H_
