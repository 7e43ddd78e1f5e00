// Decides when a push is applied and when a pull is answered. Bookkeeping only: no values, no
// network.
//
//   - async: both at once.
//   - sync: contributions to step c are collected; the step closes when `num_aggregate` of the
//     active workers have pushed (Chen et al. 2016, "Revisiting distributed synchronous SGD"). A
//     worker that has contributed to c may pull again when c has closed; a contribution to a closed
//     step is dropped.
//     In an elastic job ElasticSchedule decides instead. Pulls do not wait then, and no worker is
//     dropped or waited for.
//   - ssp: a worker's clock counts its pushes. A worker may pull at clock c when the slowest active
//     worker's clock is at least c - staleness (Ho et al. 2013).
//
// All workers of the job count as active from its start, until they leave or are dropped. A worker
// is dropped when others have waited for it longer than `worker_timeout`, or than `start_timeout`
// if it has never pulled. A dropped worker that pulls again is active again.
#ifndef TFDIST_OPS_CORE_PS_SERVER_SCHEDULE_H_
#define TFDIST_OPS_CORE_PS_SERVER_SCHEDULE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "core/base/clock.h"
#include "core/base/status.h"

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
  bool elastic = false;    // sync: the members decide about steps, see elastic_schedule.h

  // The name of a rank in messages, as in TF_CONFIG.
  std::string NameOf(int rank) const {
    if (has_chief && rank == 0) return "chief";
    return StrCat("worker ", rank - (has_chief ? 1 : 0));
  }
};

class Schedule {
 public:
  enum class Verdict {
    kApply,     // at once
    kCollect,   // add to the open step
    kDropLate,  // its step has closed
  };

  Schedule(const ScheduleOptions& options, TimePoint now);

  // Workers have the ranks 0 to workers - 1 everywhere. Join, Leave, Push and CheckTime may
  // complete a step, or allow pulls that were held back.

  // A worker has connected; its earlier pulls are void. A new process of the same rank takes the
  // clock of the slowest other active worker.
  void Join(int worker, bool new_process);
  // The worker has finished its program: no other worker waits for it.
  void Leave(int worker);
  // The connection of the worker has broken: its pull does not wait any more.
  void StopWaiting(int worker);

  // A push that was computed from the values of `clock`. After kCollect, see StepIsComplete. Two
  // pushes of one worker for the same step are one contribution.
  Verdict Push(int worker, uint64_t clock);
  bool StepIsComplete() const;
  int contributions() const;
  // Opens the next step.
  void CloseStep();
  // Opens the same step again.
  void DropStep();

  // Whether the worker's pull may be answered now. If not, the worker waits from now on.
  bool MayPull(int worker, TimePoint now);
  // The same for a pull outside of a step, whose answer contains the worker's own pushes.
  bool MayRead(int worker, TimePoint now);

  // Drops the workers whose time is over. Returns lines for the log about workers that were dropped
  // or have come back.
  std::vector<std::string> CheckTime(TimePoint now);
  // When CheckTime is due next; TimePoint::max() if no worker waits.
  TimePoint NextDeadline() const;

  // Whether `worker` waits for an answer that depends on the next push of `other`.
  bool WaitsFor(int worker, int other) const { return WaitsFor(workers_[worker], workers_[other]); }

  bool is_active(int worker) const { return workers_[worker].active; }
  uint64_t clock() const;               // sync: closed steps; otherwise slowest_clock
  uint64_t clock_of(int worker) const;  // ssp: pushes; otherwise accepted pushes
  uint64_t slowest_clock() const;       // smallest clock_of an active worker
  uint64_t dropped_pushes() const;      // late ones
  uint64_t dropped_pushes_of(int worker) const;
  // ssp: the largest number of steps that a worker was ahead of the slowest at a pull.
  uint64_t largest_lead() const;

  // The state that survives a restart of the server. Contributions to the open step do not: the
  // step starts again.
  std::vector<uint64_t> Save() const;
  void Restore(const std::vector<uint64_t>& saved);

 private:
  struct Worker {
    bool active = true;
    bool joined = false;       // a process of it has connected
    bool came = false;         // has pulled since this server started
    bool contributed = false;  // sync: to the open step
    bool waiting = false;
    TimePoint waiting_since{};
    TimePoint active_since{};  // or first pulled
    uint64_t clock = 0;
    uint64_t dropped_pushes = 0;
  };

  bool sync() const { return options_.mode == Mode::kSync; }
  bool elastic() const { return sync() && options_.elastic; }
  // Whether `waiting` waits for the next push of `other`.
  bool WaitsFor(const Worker& waiting, const Worker& other) const;
  // When `other` will have kept others waiting too long; TimePoint::max() if none waits for it.
  TimePoint Deadline(const Worker& other) const;
  void Activate(int worker, TimePoint now);
  void UpdateSlowest();

  ScheduleOptions options_;
  uint64_t staleness_;
  std::vector<Worker> workers_;
  uint64_t clock_ = 0;    // sync: the open step
  uint64_t slowest_ = 0;  // of the active workers, or of the last active ones
  int contributions_ = 0;
  uint64_t dropped_pushes_ = 0;
  uint64_t largest_lead_ = 0;
  std::vector<std::string> news_;  // not yet returned by CheckTime
  TimePoint news_since_{};
};

}  // namespace tfdist::ps

#endif  // TFDIST_OPS_CORE_PS_SERVER_SCHEDULE_H_
