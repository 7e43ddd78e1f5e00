// Evicts rows of tables by age and norm, from time to time, in a thread of its own.
#ifndef TFDIST_OPS_CORE_PS_STORE_SWEEPER_H_
#define TFDIST_OPS_CORE_PS_STORE_SWEEPER_H_

#include <condition_variable>
#include <map>
#include <mutex>
#include <thread>

#include "core/net/socket.h"
#include "core/ps/store/store.h"

namespace tfdist::ps {

// Seconds between two sweeps of a table: a quarter of how long it keeps unused rows, from one
// second to a minute. 0: it needs none.
double SweepSeconds(const TableConfig& config);

class Sweeper {
 public:
  explicit Sweeper(const Store* store) : store_(store) {}
  ~Sweeper() { Stop(); }

  void Start();
  void Stop();

 private:
  void Run();
  void SweepDue();

  const Store* const store_;
  std::thread thread_;
  std::mutex mutex_;
  std::condition_variable stopping_;
  bool stop_ = false;                      // guarded by mutex_
  std::map<const Table*, TimePoint> due_;  // the thread's
};

}  // namespace tfdist::ps

#endif  // TFDIST_OPS_CORE_PS_STORE_SWEEPER_H_
