// How many records of each data task the pushes of workers have trained.
//
// The master of the data tasks runs in the process of one server, and opens a lease for the worker
// that gets a task. A push names the lease and the records that it has trained. It is applied only
// if they follow the last trained record of the task, and the lease is open; applying it and moving
// the position is one change. So once the master has closed a lease, its position is final: another
// worker continues from there, and no record is trained twice or left out.
//
//   master: Open(7, "a")      Close(7) -> 20    Open(8, "a") -> 20
//   pushes:     7: 0-10  7: 10-20     7: 20-30 (refused)     8: 20-30
//
// In a synchronous job a push is collected, and applied when its step closes. Its positions are
// final as soon as it is collected, but saved only once it is applied. A server that is killed
// between has lost the push, and its records are dealt out again.
//
// Positions have the names of tasks, which outlive leases: they are in snapshots and in the redo
// log. Thread-safe.
#ifndef TFDIST_OPS_CORE_PS_SERVER_TASK_POSITIONS_H_
#define TFDIST_OPS_CORE_PS_SERVER_TASK_POSITIONS_H_

#include <condition_variable>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "core/ps/protocol/message.h"
#include "core/ps/store/redo_log.h"

namespace tfdist::ps {

class TaskPositions {
 public:
  // The leases that a push names, from the check until the push is applied or has failed.
  class Claim {
   public:
    Claim() = default;
    Claim(Claim&& other) noexcept { *this = std::move(other); }
    Claim& operator=(Claim&& other) noexcept;
    ~Claim() { Release(); }

    bool granted() const { return granted_; }
    // Where the tasks will be, for the redo log.
    const std::vector<TaskPosition>& after() const { return after_; }
    // The push is applied.
    void Commit();
    // The push is collected; ApplyCollected follows. Needs no memory.
    void Collect();

   private:
    friend class TaskPositions;
    void Move(bool is_applied);
    void Release();

    TaskPositions* positions_ = nullptr;
    bool granted_ = false;
    std::vector<uint64_t> leases_;
    std::vector<TaskPosition> after_;
  };

  // The master's calls. Open: a lease of a task of which at least `trained` records are trained;
  // returns how many are.
  uint64_t Open(uint64_t lease, const std::string& task, uint64_t trained);
  // Records that were trained without a push that says so. Returns the position.
  uint64_t Advance(uint64_t lease, uint64_t trained);
  // 0 for a lease that is not open, which later calls and pushes refuse. Waits for a push of the
  // lease that is being applied. With `forgets` the task's position is not needed any more.
  uint64_t Close(uint64_t lease, bool forgets);
  // Forgets the tasks whose names are from `first` to `last`, without `last`.
  void Forget(const std::string& first, const std::string& last);

  // Claims the leases of a push; not granted if one is not open, or its records do not follow.
  Claim Begin(const std::vector<TaskCommit>& commits);

  // The collected pushes are applied. Returns the positions that this has moved. Throws
  // std::bad_alloc; the next call then does the rest.
  std::vector<TaskPosition> ApplyCollected();

  // Of all tasks, for a snapshot; not while pushes are applied.
  std::vector<TaskPosition> Save() const;
  // Positions of a snapshot or of the redo log; they never go back.
  void Restore(const std::vector<TaskPosition>& positions);

 private:
  struct Position {
    void AdvanceTo(uint64_t records) {
      if (records > trained) trained = applied = records;
    }

    uint64_t trained = 0;
    uint64_t applied = 0;  // less, if pushes are collected
  };
  using Positions = std::map<std::string, Position>;
  struct Lease {
    Positions::iterator task;
    bool busy = false;  // a push of it is being applied
  };

  bool HasLease(Positions::const_iterator task) const;  // under the mutex

  mutable std::mutex mutex_;  // guards the rest
  std::condition_variable released_;
  Positions positions_;
  // Tasks with collected pushes, by name: the master may forget a task meanwhile.
  std::vector<std::string> collected_;
  size_t claimed_ = 0;  // leases of claims: `collected_` has room for them
  std::unordered_map<uint64_t, Lease> leases_;
};

}  // namespace tfdist::ps

#endif  // TFDIST_OPS_CORE_PS_SERVER_TASK_POSITIONS_H_
