// When a push is applied and when a pull is answered. Pure bookkeeping: no memory, no network.
//
//   - async: at once, both.
//   - sync: contributions to step c are collected; the step closes when `num_aggregate` of the
//     active workers have pushed (Chen et al. 2016, "Revisiting distributed synchronous SGD"). A
//     worker that has contributed to c pulls again when c has closed; a contribution to a closed
//     step is dropped.
//   - ssp: a worker's clock counts its pushes. A worker pulls at clock c when the slowest active
//     worker's clock is at least c - staleness (Ho et al. 2013).
//
// All workers of the job count as active from its start, until they leave or are dropped: those
// that others have waited for longer than `worker_timeout` are, and those that never came after
// `start_timeout`. A dropped worker that comes again is active again.
#ifndef TFDIST_OPS_CORE_PS_SERVER_SCHEDULE_H_
#define TFDIST_OPS_CORE_PS_SERVER_SCHEDULE_H_

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "core/net/socket.h"

namespace tfdist::ps {

enum class Mode : uint8_t { kAsync = 1, kSync = 2, kSsp = 3 };

struct ScheduleOptions {
  Mode mode = Mode::kAsync;
  int workers = 1;        // of the job: ranks 0 to workers - 1
  int num_aggregate = 1;  // sync
  int staleness = 0;      // ssp
  double worker_timeout_seconds = 60;
  double start_timeout_seconds = 300;
  bool has_chief = false;  // rank 0 is not worker 0

  // What messages call a rank, as TF_CONFIG does.
  std::string NameOf(int rank) const {
    if (has_chief && rank == 0) return "chief";
    return StrCat("worker ", rank - (has_chief ? 1 : 0));
  }
};

inline Clock::duration Seconds(double seconds) {
  constexpr double kForever = 1e9;  // more would not fit into a time point
  return std::chrono::duration_cast<Clock::duration>(
      std::chrono::duration<double>(std::min(seconds, kForever)));
}

class Schedule {
 public:
  enum class Verdict {
    kApply,     // at once
    kCollect,   // add to the open step
    kDropLate,  // its step has closed
  };

  Schedule(const ScheduleOptions& options, TimePoint now);

  // Workers are numbered 0 to workers - 1 everywhere. After Join, Leave, Push and CheckTime a step
  // may be complete, and pulls may be allowed, that were not.

  // A worker's process has attached; a pull that it waited for before is gone. A new process of the
  // same rank starts where the others are.
  void Join(int worker, bool new_process);
  // The worker has finished its program: nobody waits for it any more.
  void Leave(int worker);
  // The connection of a waiting worker has broken: it does not wait any more.
  void StopWaiting(int worker);

  // A push computed on what was pulled at `clock`. After kCollect ask StepIsComplete. A worker that
  // pushes twice for one step is one contribution.
  Verdict Push(int worker, uint64_t clock);
  bool StepIsComplete() const;
  int contributions() const;
  // Opens the next step.
  void CloseStep();

  // Whether this worker's pull may be answered now. If not, it is waited for from now on.
  bool MayPull(int worker, TimePoint now);
  // The same for a pull outside of a step, which sees what the worker itself has pushed.
  bool MayRead(int worker, TimePoint now);

  // Drops the workers whose time is over. Returns lines for the log about these, and about those
  // that have come back.
  std::vector<std::string> CheckTime(TimePoint now);
  // When CheckTime is due next; TimePoint::max() if nobody waits.
  TimePoint NextDeadline() const;

  // Whether `worker` waits for an answer that it gets only after `other` has gone on.
  bool WaitsFor(int worker, int other) const { return WaitsFor(workers_[worker], workers_[other]); }

  bool is_active(int worker) const { return workers_[worker].active; }
  uint64_t clock() const;               // closed steps; without sync those that all have pushed
  uint64_t clock_of(int worker) const;  // ssp: pushes; otherwise accepted pushes
  uint64_t slowest_clock() const;       // smallest clock_of an active worker
  uint64_t dropped_pushes() const;      // late ones
  uint64_t dropped_pushes_of(int worker) const;
  // ssp: the most steps any worker was ahead of the slowest when it was let go.
  uint64_t largest_lead() const;

  // All that has to survive a restart of the server, and back. Contributions to the open step do
  // not: it begins again.
  std::vector<uint64_t> Save() const;
  void Restore(const std::vector<uint64_t>& saved);

 private:
  struct Worker {
    bool active = true;
    bool joined = false;       // some process of it has attached
    bool came = false;         // has pulled, since this server started
    bool contributed = false;  // sync: to the open step
    bool waiting = false;
    TimePoint waiting_since{};
    TimePoint active_since{};  // or came
    uint64_t clock = 0;
    uint64_t dropped_pushes = 0;
  };

  bool sync() const { return options_.mode == Mode::kSync; }
  // Whether `waiting` cannot go on for want of `other`.
  bool WaitsFor(const Worker& waiting, const Worker& other) const;
  // When `other` has kept others waiting for too long; TimePoint::max() if it does not.
  TimePoint Deadline(const Worker& other) const;
  void Activate(int worker, TimePoint now);
  void UpdateSlowest();

  ScheduleOptions options_;
  uint64_t staleness_;
  std::vector<Worker> workers_;
  uint64_t clock_ = 0;    // sync: the open step
  uint64_t slowest_ = 0;  // of the active workers, or of the last ones that were
  int contributions_ = 0;
  uint64_t dropped_pushes_ = 0;
  uint64_t largest_lead_ = 0;
  std::vector<std::string> news_;  // not told yet
  TimePoint news_since_{};
};

}  // namespace tfdist::ps

#endif  // TFDIST_OPS_CORE_PS_SERVER_SCHEDULE_H_
