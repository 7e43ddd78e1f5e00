#include "core/ps/server/handlers/server_state.h"

#include <algorithm>
#include <new>
#include <utility>

namespace tfdist::ps {

ServerState::ServerState(const ServerOptions& server_options, uint64_t server_incarnation,
                         Store* server_store, ReplyChannel* reply_channel)
    : options(server_options),
      incarnation(server_incarnation),
      store(server_store),
      replies(reply_channel),
      log([this](const Status& failure) {
        AddEvent(Server::Event::Kind::kLog, -1,
                 StrCat(failure.message(), "; until a snapshot is written, ",
                        options.refuse_unlogged ? "pushes are refused"
                                                : "changes of rows are lost with this process"));
      }),
      reducer(
          options.schedule.workers,
          [this](int worker) {
            const std::lock_guard<std::mutex> lock(mutex);
            return schedule.is_active(worker);
          },
          [this](int worker) {
            const std::lock_guard<std::mutex> lock(mutex);
            return DurationOf(workers[worker]->came ? options.schedule.worker_timeout_seconds
                                                    : options.schedule.start_timeout_seconds);
          },
          [this](uint64_t session, Answer answer) { replies->Deliver(session, std::move(answer)); },
          [this](uint64_t session) { replies->Disconnect(session); }),
      seats(options.schedule.workers),
      schedule(options.schedule, Clock::now()),
      elastic_schedule(options.schedule.workers) {
  for (int i = 0; i < options.schedule.workers; ++i) {
    workers.push_back(std::make_unique<WorkerState>());
  }
}

Answer ServerState::Refuse(const ClientContext& client, uint64_t id, const Status& status) const {
  return ErrorAnswer(
      id, Status(status.code(),
                 StrCat("parameter server ", options.index, ", asked by ",
                        options.schedule.NameOf(client.worker), ": ", status.message())));
}

Status ServerState::CheckLog() const {
  if (!options.refuse_unlogged || !log.has_lost()) return Status();
  return Status(StatusCode::kFailedPrecondition,
                "a push, while nothing keeps its changes (durability='refuse'): the log of "
                "rows cannot be written, as the server's own messages say; pushes are taken again "
                "once a snapshot is written");
}

void ServerState::AddEvent(Server::Event::Kind kind, int worker, const std::string& text) {
  events.Add({kind, worker, text});
}

void ServerState::Warn(const std::string& text) {
  try {
    AddEvent(Server::Event::Kind::kLog, -1, text);
  } catch (const std::bad_alloc&) {  // the log lacks a line
  }
}

TimePoint ServerState::NextDeadline() {
  // A request that arrives during the computation wakes the timer again.
  armed_ = TimePoint::max().time_since_epoch().count();
  TimePoint next = reducer.NextDeadline();
  {
    const std::lock_guard<std::mutex> lock(mutex);
    next = std::min(next, schedule.NextDeadline());
  }
  armed_ = next.time_since_epoch().count();
  return next;
}

void ServerState::Arm(TimePoint deadline) {
  if (deadline.time_since_epoch().count() < armed_) replies->WakeTimer();
}

}  // namespace tfdist::ps
