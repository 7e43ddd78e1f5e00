// What a server does about requests, whichever of its threads they come to.
#ifndef TFDIST_OPS_CORE_PS_SERVER_SERVICE_H_
#define TFDIST_OPS_CORE_PS_SERVER_SERVICE_H_

#include <atomic>
#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <string>
#include <vector>

#include "core/ps/server/disjoint_workers.h"
#include "core/ps/server/events.h"
#include "core/ps/server/reducer.h"
#include "core/ps/server/request.h"
#include "core/ps/server/schedule.h"
#include "core/ps/server/session.h"
#include "core/ps/store/step_sums.h"
#include "core/ps/store/store.h"
#include "core/ps/store/update.h"

namespace tfdist::ps {

// The connections, for what has to be done by the threads that own them. Any thread may call these.
class Outlet {
 public:
  virtual ~Outlet() = default;
  // Nothing happens if the session has ended.
  virtual void Deliver(uint64_t session, Answer answer) = 0;
  virtual void Disconnect(uint64_t session) = 0;
  // NextDeadline is sooner than it was.
  virtual void WakeTimer() = 0;
};

class Service {
 public:
  Service(const ServerOptions& options, uint64_t incarnation, Store* store, Outlet* outlet);

  // Carries out a request. The answer, or nothing if it comes later through the outlet.
  std::optional<Answer> Execute(Caller* caller, Incoming request);
  // A connection has ended.
  void Gone(const Caller& caller, const std::string& why);

  // One thread does what is due, and sleeps until something is.
  void CheckTime(TimePoint now);
  TimePoint NextDeadline();

  ServerSnapshot Freeze(bool changed_rows_only, const std::string& log_path);
  // Before anybody else comes.
  Status Restore(const ServerSnapshot& image);
  Status ReplayLog(const std::string& path, uint64_t* records, uint64_t* left_out);
  void BeginLog(const std::string& path) { log_.Begin(path); }
  void Saved() { log_.Saved(); }

  // Whether a worker's step waits for another one's.
  void Waits(bool* waits) const;

  Events& events() { return events_; }
  std::vector<TraceEvent> trace() const { return trace_.Copy(); }
  // What the service knows of it.
  ServerStats stats() const;

 private:
  struct Worker {
    std::mutex busy;  // while one of its requests is carried out; taken before all other locks
    // Guarded by schedule_mutex_, as all of the schedule's.
    std::optional<uint64_t> process;
    uint64_t session = 0;   // its newest connection; 0: it has none
    uint64_t sequence = 0;  // of its last push
    bool dropped = false;   // that came too late
    // The last push whose rows were applied, and by which process. The log of rows may be ahead of
    // the snapshot that everything else came from.
    uint64_t rows_process = 0, rows_sequence = 0;
    uint64_t edit_process = 0, edit_sequence = 0;  // the same of edits of rows
    bool came = false;                             // since this server has started
    bool present = false;  // its coming was told, and not its leaving or its loss
    bool left = false;
  };
  struct Parked {
    Caller caller;
    uint64_t number;
    PullRequest pull;
    uint64_t clock = 0;  // once it may be answered
  };
  using Lock = std::unique_lock<std::mutex>;

  bool sync() const { return options_.schedule.mode == Mode::kSync; }
  bool IsCurrent(const Caller& caller);
  Answer Refuse(const Caller& caller, uint64_t number, const Status& status) const;
  Answer RefuseForMemory(const Caller& caller, const Incoming& request,
                         const std::bad_alloc& error) const;

  std::optional<Answer> Do(Caller* caller, uint64_t number, const OpenRequest& open, Incoming*);
  std::optional<Answer> Do(Caller* caller, uint64_t number, const CreateRequest& create,
                           Incoming* request);
  std::optional<Answer> Do(Caller* caller, uint64_t number, const BindRequest& bind, Incoming*);
  std::optional<Answer> Do(Caller* caller, uint64_t number, const PullRequest& pull, Incoming*);
  std::optional<Answer> Do(Caller* caller, uint64_t number, const PushRequest& push,
                           Incoming* request);
  std::optional<Answer> Do(Caller* caller, uint64_t number, const SetRequest& set,
                           Incoming* request);
  std::optional<Answer> Do(Caller* caller, uint64_t number, const ReduceRequest& reduce,
                           Incoming* request);
  std::optional<Answer> Do(Caller* caller, uint64_t number, const TableRequest& tables, Incoming*);
  std::optional<Answer> Do(Caller* caller, uint64_t number, const LookupRequest& lookup,
                           Incoming* request);
  std::optional<Answer> Do(Caller* caller, uint64_t number, const ScanRowsRequest& dump, Incoming*);
  std::optional<Answer> Do(Caller* caller, uint64_t number, const EditRowsRequest& edit,
                           Incoming* request);
  std::optional<Answer> Do(Caller* caller, uint64_t number, const FindRowsRequest& find,
                           Incoming* request);
  std::optional<Answer> Do(Caller* caller, uint64_t number, const LeaveRequest&, Incoming*);

  // With the schedule's lock, and all but the first under Store::Share.
  uint64_t ClockFor(int worker) const;
  void CloseIfComplete();
  // Answers the pulls that may be answered now. The lock may be given back.
  void Release(Lock* lock);
  // The shards' values. Those of a synchronous job are all of one clock.
  Answer Gather(const Caller& caller, uint64_t number, const PullRequest& pull, uint64_t clock);

  // Nobody waits for the worker any more.
  void Drop(int worker);
  // What it pulled last is not needed any more.
  void ForgetPulled(int worker);
  // Rows that were restored are of this time.
  void ResumeFrom(double time);
  uint64_t pushes() const;
  std::vector<uint64_t> SaveProgress() const;
  Status RestoreProgress(const std::vector<uint64_t>& progress);
  // With the schedule's lock.
  void WarnOfStranger(int worker, const PushRequest& push);
  // Fails while pushes are to be refused because the log does not keep them.
  Status CheckLog() const;
  void Tell(Server::Event::Kind kind, int worker, const std::string& text);
  // A line for the log, if there is memory for it.
  void Warn(const std::string& text);
  // The timer has to go off at `deadline`, if not before.
  void Arm(TimePoint deadline);

  const ServerOptions options_;
  const uint64_t incarnation_;
  Store* const store_;
  Outlet* const outlet_;
  RedoLog log_;
  Updater updater_;
  StepSums sums_;
  Reducer reducer_;
  Events events_;
  Trace trace_;
  std::vector<std::unique_ptr<Worker>> workers_;

  mutable std::mutex schedule_mutex_;  // guards the rest, and what Worker says
  Schedule schedule_;
  int collecting_ = 0;  // contributions that are not in the sums yet
  std::list<Parked> parked_;
  DisjointWorkerCheck acquaintance_;
  uint64_t pushes_ = 0, foreign_pushes_ = 0, repeated_pushes_ = 0, edits_ = 0;

  bool knows_time_ = false;  // before the start
  std::atomic<uint64_t> pulls_{0};
  std::atomic<TimePoint::rep> armed_{TimePoint::max().time_since_epoch().count()};
};

}  // namespace tfdist::ps

#endif  // TFDIST_OPS_CORE_PS_SERVER_SERVICE_H_
