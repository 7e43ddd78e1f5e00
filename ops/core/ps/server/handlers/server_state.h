// The state that the request handlers of a server share: the workers, their schedule, the store.
#ifndef TFDIST_OPS_CORE_PS_SERVER_HANDLERS_SERVER_STATE_H_
#define TFDIST_OPS_CORE_PS_SERVER_HANDLERS_SERVER_STATE_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "core/ps/server/disjoint_workers.h"
#include "core/ps/server/elastic_schedule.h"
#include "core/ps/server/events.h"
#include "core/ps/server/handlers/reply_channel.h"
#include "core/ps/server/reader_seats.h"
#include "core/ps/server/reducer.h"
#include "core/ps/server/request.h"
#include "core/ps/server/schedule.h"
#include "core/ps/server/server.h"
#include "core/ps/server/task_positions.h"
#include "core/ps/store/redo_log.h"
#include "core/ps/store/store.h"

namespace tfdist::ps {

// One rank of the job.
struct WorkerState {
  // Held while one of the worker's requests is carried out; taken before all other locks.
  std::mutex busy;

  // The rest is guarded by ServerState::mutex.
  std::optional<uint64_t> process;
  uint64_t session = 0;   // its newest connection; 0: none
  uint64_t sequence = 0;  // of its last push
  bool dropped = false;   // whether that push came too late
  bool refused = false;   // whether it has trained records of a task that the worker had lost
  // The last push whose rows were applied, and its process. The redo log may be ahead of the
  // snapshot, which everything else was restored from.
  uint64_t rows_process = 0, rows_sequence = 0;
  uint64_t edit_process = 0, edit_sequence = 0;          // the same for edits of rows
  uint64_t exchange_process = 0, exchange_sequence = 0;  // the last exchange, and its process
  bool came = false;                                     // has connected since this server started
  bool present = false;                                  // its arrival was the last event about it
};

struct ServerState {
  ServerState(const ServerOptions& server_options, uint64_t server_incarnation, Store* server_store,
              ReplyChannel* reply_channel);

  bool sync() const { return options.schedule.mode == Mode::kSync; }
  bool elastic() const { return sync() && options.schedule.elastic; }
  WorkerState& WorkerOf(const ClientContext& client) const { return *workers[client.worker]; }

  // An error that names the server and the worker.
  Answer Refuse(const ClientContext& client, uint64_t id, const Status& status) const;
  // Fails while pushes and edits are refused because the redo log cannot record them.
  Status CheckLog() const;
  void AddEvent(Server::Event::Kind kind, int worker, const std::string& text);
  // Adds a line for the log, unless memory is short.
  void Warn(const std::string& text);

  // When CheckTime is due next.
  TimePoint NextDeadline();
  // Wakes the timer if it is set for a time after `deadline`.
  void Arm(TimePoint deadline);

  const ServerOptions options;
  const uint64_t incarnation;
  Store* const store;
  ReplyChannel* const replies;
  Events events;
  RedoLog log;
  TaskPositions tasks;
  Reducer reducer;
  std::vector<std::unique_ptr<WorkerState>> workers;
  ReaderSeats seats;  // of a read-only server

  mutable std::mutex mutex;  // guards the rest, and most of WorkerState
  Schedule schedule;
  ElasticSchedule elastic_schedule;
  DisjointWorkerCheck disjoint_workers;

 private:
  // The time that the timer is set for.
  std::atomic<TimePoint::rep> armed_{TimePoint::max().time_since_epoch().count()};
};

}  // namespace tfdist::ps

#endif  // TFDIST_OPS_CORE_PS_SERVER_HANDLERS_SERVER_STATE_H_
