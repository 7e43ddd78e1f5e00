#include "core/ps/server/handlers/setup_handler.h"

#include <algorithm>
#include <mutex>
#include <utility>
#include <vector>

namespace tfdist::ps {

std::optional<Answer> SetupHandler::HandleOpen(ClientContext* client, uint64_t id,
                                               const OpenRequest& open) {
  const int rank = client->worker;
  WorkerState& worker = state_.WorkerOf(*client);
  uint64_t former = 0;
  bool new_process = false;
  OpenReply reply{state_.incarnation, 0};
  {
    const auto sharing = state_.store->Share();
    std::unique_lock<std::mutex> lock(state_.mutex);
    if (worker.session > client->session) {  // a connection that was made later came first
      state_.replies->Disconnect(client->session);
      return std::nullopt;
    }
    former = std::exchange(worker.session, client->session);
    steps_.CancelPulls(rank);
    new_process = worker.process != open.process;
    if (new_process) {
      worker.process = open.process;
      worker.sequence = 0;
      worker.dropped = worker.refused = false;
    }
    if (worker.rows_process != open.process) {
      worker.rows_process = open.process;
      worker.rows_sequence = 0;
    }
    if (worker.edit_process != open.process) {
      worker.edit_process = open.process;
      worker.edit_sequence = 0;
    }
    worker.came = true;
    if (new_process || !worker.present) state_.AddEvent(Server::Event::Kind::kCame, rank, "");
    worker.present = true;
    state_.schedule.Join(rank, new_process);
    reply.clock = steps_.ClockFor(rank);
    steps_.Advance(&lock);
    if (new_process) ForgetPulled(rank);
  }
  if (new_process) state_.reducer.EndProcess(rank);
  if (former != 0) state_.replies->Disconnect(former);
  client->opened = true;
  return OkAnswer(id, reply);
}

Answer SetupHandler::HandleCreate(const ClientContext& client, const CreateRequest& create,
                                  const ClientRequest& request) {
  CreateReply reply;
  const Status status = state_.store->Create(create, request.payload, &reply);
  if (!status.ok()) return state_.Refuse(client, request.id, status);
  std::vector<uint32_t> created = reply.shards;
  created.erase(std::remove(created.begin(), created.end(), kNoShard), created.end());
  const std::lock_guard<std::mutex> lock(state_.mutex);
  state_.disjoint_workers.AddShards(client.worker, created);
  return OkAnswer(request.id, reply);
}

Answer SetupHandler::HandleBind(const ClientContext& client, uint64_t id, const BindRequest& bind) {
  std::string replaced;
  const Status status = state_.store->Bind(bind, &replaced);
  if (!status.ok()) return state_.Refuse(client, id, status);
  if (!replaced.empty()) {
    state_.AddEvent(
        Server::Event::Kind::kLog, -1,
        StrCat(state_.options.schedule.NameOf(client.worker), " has replaced the optimizer of ",
               replaced, ": all workers should train with the same one"));
  }
  return OkAnswer(id);
}

Answer SetupHandler::HandleLeave(const ClientContext& client, uint64_t id) {
  const int rank = client.worker;
  {
    const std::lock_guard<std::mutex> lock(state_.mutex);
    state_.WorkerOf(client).present = false;
    steps_.CancelPulls(rank);
  }
  Drop(rank);
  state_.reducer.EndProcess(rank);
  state_.AddEvent(Server::Event::Kind::kLeft, rank, "");
  return OkAnswer(id);
}

void SetupHandler::Drop(int worker) {
  {
    const auto sharing = state_.store->Share();
    std::unique_lock<std::mutex> lock(state_.mutex);
    state_.schedule.Leave(worker);
    steps_.Advance(&lock);
    ForgetPulled(worker);
  }
  state_.reducer.Check();
}

void SetupHandler::ForgetPulled(int worker) {
  if (state_.options.compensation == Compensation::kNone) return;
  for (uint32_t id = 0; Shard* shard = state_.store->Find(id); ++id) {
    const std::lock_guard<std::mutex> lock(shard->mutex);
    shard->seen[worker] = {};
  }
}

void SetupHandler::EndConnection(const ClientContext& client, const std::string& why) {
  if (!client.opened) return;
  state_.reducer.EndSession(client.session);
  WorkerState& worker = state_.WorkerOf(client);
  const std::lock_guard<std::mutex> lock(state_.mutex);
  if (worker.session != client.session) return;
  worker.session = 0;
  steps_.CancelPulls(client.worker);
  state_.schedule.StopWaiting(client.worker);
  if (!worker.present) return;
  worker.present = false;
  state_.AddEvent(Server::Event::Kind::kLost, client.worker, why);
}

}  // namespace tfdist::ps
