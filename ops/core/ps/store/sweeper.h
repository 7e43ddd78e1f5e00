// A thread that evicts rows of tables by age and norm at intervals.
#ifndef TFDIST_OPS_CORE_PS_STORE_SWEEPER_H_
#define TFDIST_OPS_CORE_PS_STORE_SWEEPER_H_

#include <condition_variable>
#include <map>
#include <mutex>
#include <thread>

#include "core/base/clock.h"
#include "core/ps/store/store.h"

namespace tfdist::ps {

// The seconds between two sweeps of a table: a quarter of ttl_seconds, but at least one second and
// at most one minute. 0: the table needs no sweeps.
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
  std::map<const Table*, TimePoint> due_;  // next sweeps; used by the thread alone
};

}  // namespace tfdist::ps

#endif  // TFDIST_OPS_CORE_PS_STORE_SWEEPER_H_
