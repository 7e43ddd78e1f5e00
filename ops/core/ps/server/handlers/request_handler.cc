#include "core/ps/server/handlers/request_handler.h"

#include <stdexcept>
#include <utility>
#include <variant>

namespace tfdist::ps {
namespace {

struct Dispatcher {
  ClientContext* client;
  ClientRequest* request;
  SetupHandler* setup;
  StepHandler* steps;
  TableHandler* tables;

  using Result = std::optional<Answer>;

  Result operator()(const OpenRequest& open) const {
    return setup->HandleOpen(client, request->id, open);
  }
  Result operator()(const CreateRequest& create) const {
    return setup->HandleCreate(*client, create, *request);
  }
  Result operator()(const BindRequest& bind) const {
    return setup->HandleBind(*client, request->id, bind);
  }
  Result operator()(const LeaveRequest&) const { return setup->HandleLeave(*client, request->id); }
  Result operator()(const PullRequest& pull) const {
    return steps->HandlePull(*client, request->id, pull);
  }
  Result operator()(const PushRequest& push) const {
    return steps->HandlePush(*client, push, request);
  }
  Result operator()(const SetRequest& set) const { return steps->HandleSet(*client, set, request); }
  Result operator()(const ExchangeRequest& exchange) const {
    return steps->HandleExchange(*client, exchange, request);
  }
  Result operator()(const ReduceRequest& reduce) const {
    steps->HandleReduce(*client, reduce, request);
    return std::nullopt;
  }
  Result operator()(const ResolveRequest& resolve) const {
    return steps->HandleResolve(*client, request->id, resolve);
  }
  Result operator()(const CommitRequest& commit) const {
    return steps->HandleCommit(*client, request->id, commit);
  }
  Result operator()(const TableRequest& create) const {
    return tables->HandleCreate(*client, request->id, create);
  }
  Result operator()(const LookupRequest& lookup) const {
    return tables->HandleLookup(*client, lookup, request);
  }
  Result operator()(const ScanRowsRequest& scan) const {
    return tables->HandleScan(*client, scan, *request);
  }
  Result operator()(const EditRowsRequest& edit) const {
    return tables->HandleEdit(*client, edit, *request);
  }
  Result operator()(const FindRowsRequest& find) const {
    return tables->HandleFind(*client, find, *request);
  }
};

// Whether a request only reads.
struct Reads {
  bool operator()(const LookupRequest& lookup) const { return !lookup.training; }
  bool operator()(const OpenRequest&) const { return true; }
  bool operator()(const TableRequest&) const { return true; }  // which then creates none
  bool operator()(const ScanRowsRequest&) const { return true; }
  bool operator()(const FindRowsRequest&) const { return true; }
  bool operator()(const LeaveRequest&) const { return true; }
  template <typename Other>
  bool operator()(const Other&) const {
    return false;
  }
};

}  // namespace

int RequestHandler::Seat(int rank) {
  if (!state_.options.read_only) return rank;
  const int seat = state_.seats.Take();
  if (seat < 0) {
    state_.Warn(StrCat("a reader is turned away: there are ", state_.options.schedule.workers,
                       " already, which is the limit"));
  }
  return seat;
}

void RequestHandler::EndConnection(const ClientContext& client, const std::string& why) {
  setup_.EndConnection(client, why);
  if (state_.options.read_only) state_.seats.Free(client.worker);
}

std::optional<Answer> RequestHandler::Execute(ClientContext* client, ClientRequest request) {
  const std::lock_guard<std::mutex> busy(state_.WorkerOf(*client).busy);
  if (!std::holds_alternative<OpenRequest>(request.body) && !IsCurrent(*client)) {
    return std::nullopt;
  }
  if (state_.options.read_only && !std::visit(Reads(), request.body)) {
    return state_.Refuse(*client, request.id,
                         Status(StatusCode::kFailedPrecondition,
                                "expected a request that only reads, since it serves a snapshot, "
                                "received a change"));
  }
  if (!request.refusal.ok()) return state_.Refuse(*client, request.id, request.refusal);
  try {
    return Dispatch(client, &request);
  } catch (const std::bad_alloc& error) {
    return RefuseForMemory(*client, request, error);
  } catch (const std::length_error&) {  // more than a container can hold
    return RefuseForMemory(*client, request, std::bad_alloc());
  }
}

std::optional<Answer> RequestHandler::Dispatch(ClientContext* client, ClientRequest* request) {
  return std::visit(Dispatcher{client, request, &setup_, &steps_, &tables_}, request->body);
}

bool RequestHandler::IsCurrent(const ClientContext& client) const {
  const std::lock_guard<std::mutex> lock(state_.mutex);
  return state_.WorkerOf(client).session == client.session;
}

Answer RequestHandler::RefuseForMemory(const ClientContext& client, const ClientRequest& request,
                                       const std::bad_alloc& error) const {
  state_.store->memory().Reclaim();  // the answer needs memory too
  const auto sharing = state_.store->Share();
  return state_.Refuse(client, request.id, OutOfMemory(request, *state_.store, error));
}

void RequestHandler::CheckTime(TimePoint now) {
  std::vector<std::string> lines;
  {
    const auto sharing = state_.store->Share();
    std::unique_lock<std::mutex> lock(state_.mutex);
    lines = state_.schedule.CheckTime(now);
    steps_.Advance(&lock);
  }
  for (const std::string& line : lines) state_.AddEvent(Server::Event::Kind::kLog, -1, line);
  if (!lines.empty()) state_.reducer.Check();
  for (const int worker : state_.reducer.Late(now)) {
    state_.AddEvent(Server::Event::Kind::kLog, -1,
                    StrCat(state_.options.schedule.NameOf(worker),
                           " is dropped: others have waited for it too long to add up"));
    setup_.Drop(worker);
  }
}

void RequestHandler::Waits(bool* waits) const {
  const int workers = state_.options.schedule.workers;
  {
    const std::lock_guard<std::mutex> lock(state_.mutex);
    for (int i = 0; i < workers * workers; ++i) {
      waits[i] = state_.schedule.WaitsFor(i / workers, i % workers);
    }
  }
  state_.reducer.AddWaits(waits);
}

ServerStats RequestHandler::stats() const {
  ServerStats stats;
  stats.shards = state_.store->shard_count();
  stats.value_bytes = state_.store->value_bytes();
  stats.log_bytes = state_.log.bytes();
  stats.log_failed = state_.log.has_lost() ? 1 : 0;
  stats.memory_held = state_.store->memory().held();
  stats.memory_budget = state_.store->memory().limit();
  const std::lock_guard<std::mutex> lock(state_.mutex);
  steps_.AddStats(&stats);
  stats.edits = tables_.edits();
  return stats;
}

}  // namespace tfdist::ps
