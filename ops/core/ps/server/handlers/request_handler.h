// Carries out the requests of a server's workers.
//
// Each group of requests has a handler of its own; all share a ServerState:
//
//   - SetupHandler: workers that open a connection or leave; variables and optimizers
//   - StepHandler: pulls, pushes, and other values
//   - TableHandler: tables of rows
//   - Recovery: no requests, but snapshots and the redo log
#ifndef TFDIST_OPS_CORE_PS_SERVER_HANDLERS_REQUEST_HANDLER_H_
#define TFDIST_OPS_CORE_PS_SERVER_HANDLERS_REQUEST_HANDLER_H_

#include <cstdint>
#include <new>
#include <optional>
#include <string>
#include <vector>

#include "core/ps/server/handlers/recovery.h"
#include "core/ps/server/handlers/server_state.h"
#include "core/ps/server/handlers/setup_handler.h"
#include "core/ps/server/handlers/step_handler.h"
#include "core/ps/server/handlers/table_handler.h"
#include "core/ps/server/request.h"

namespace tfdist::ps {

// Any thread may call it.
class RequestHandler {
 public:
  RequestHandler(const ServerOptions& options, uint64_t incarnation, Store* store,
                 ReplyChannel* replies)
      : state_(options, incarnation, store, replies),
        steps_(&state_),
        setup_(&state_, &steps_),
        tables_(&state_),
        recovery_(&state_, &steps_) {}

  // Carries out a request. Returns the answer, or nothing if the ReplyChannel delivers it later.
  std::optional<Answer> Execute(ClientContext* client, ClientRequest request);
  // The rank of a new connection whose peer has named `rank`; -1 if there is no room for it.
  int Seat(int rank);
  // A connection has ended.
  void EndConnection(const ClientContext& client, const std::string& why);

  // One thread calls CheckTime at NextDeadline.
  void CheckTime(TimePoint now);
  TimePoint NextDeadline() { return state_.NextDeadline(); }

  Recovery& recovery() { return recovery_; }
  Events& events() { return state_.events; }
  TaskPositions& tasks() { return state_.tasks; }
  std::vector<TraceEvent> trace() const { return steps_.trace(); }
  // Sets waits[worker * workers + other]: whether the worker's step waits for the other one's.
  void Waits(bool* waits) const;
  // Without the counts of the connections.
  ServerStats stats() const;

 private:
  std::optional<Answer> Dispatch(ClientContext* client, ClientRequest* request);
  bool IsCurrent(const ClientContext& client) const;
  Answer RefuseForMemory(const ClientContext& client, const ClientRequest& request,
                         const std::bad_alloc& error) const;

  ServerState state_;
  StepHandler steps_;
  SetupHandler setup_;
  TableHandler tables_;
  Recovery recovery_;
};

}  // namespace tfdist::ps

#endif  // TFDIST_OPS_CORE_PS_SERVER_HANDLERS_REQUEST_HANDLER_H_
