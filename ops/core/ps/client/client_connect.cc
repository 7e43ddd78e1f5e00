// How a client comes to terms with a server: one that it has never met, one that it has lost, or
// one that was started again and may have lost everything.
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "core/ps/client/client.h"
#include "core/ps/client/handshake.h"

namespace tfdist::ps {
namespace {

// Shards by name. More than one parameter may stand for the same values.
using Namesakes = std::map<std::string, std::vector<ShardRef>>;

// The newest whole value that is known of one of the shards.
bool FindValue(const ParameterTable& table, const std::vector<ShardRef>& shards, Memory* values,
               iovec* piece) {
  bool found = false;
  uint64_t newest = 0;
  for (const ShardRef& ref : shards) {
    table.With(ref.parameter, [&](const Parameter& known) {
      const uint64_t version = known.shards[ref.shard].version;
      if (!known.HasWhole(ref.shard) || (found && version <= newest)) return;
      found = true;
      newest = version;
      *values = known.pulled;
      const ShardSpec& shard = known.spec.shards[ref.shard];
      *piece = {known.pulled.data + known.spec.OffsetOf(shard), known.spec.BytesOf(shard)};
    });
  }
  return found;
}

// Asks the server for its numbers of the shards, `with_values` to create those of which there is
// one. Those that it has then are taken out of `shards`.
Status Number(Handshake* handshake, bool with_values, ParameterTable* table, Namesakes* shards) {
  CreateRequest request;
  std::vector<iovec> payload;
  std::vector<Memory> held;
  for (const auto& [name, refs] : *shards) {
    const ParameterSpec& spec = table->spec(refs.front().parameter);
    const uint64_t elements = spec.shards[refs.front().shard].count;
    if (with_values && elements > 0) {
      held.emplace_back();
      payload.push_back({nullptr, 0});
      if (!FindValue(*table, refs, &held.back(), &payload.back())) {
        payload.pop_back();
        continue;
      }
    }
    request.entries.push_back({name, spec.dtype, elements, with_values});
  }
  if (request.entries.empty()) return Status();
  CreateReply reply;
  if (Status s = handshake->Ask(MessageType::kCreate, request, payload, &reply); !s.ok()) return s;
  if (reply.shards.size() != request.entries.size()) {
    return Status(StatusCode::kInternal,
                  StrCat("expected ", request.entries.size(), " numbers of shards, received ",
                         reply.shards.size()));
  }
  for (size_t i = 0; i < reply.shards.size(); ++i) {
    if (reply.shards[i] == kNoShard) continue;
    const auto found = shards->find(request.entries[i].name);
    for (const ShardRef& ref : found->second) table->Number(ref, reply.shards[i]);
    shards->erase(found);
  }
  return Status();
}

}  // namespace

Status Client::Connect(int server, const std::string& address, const Key& key, uint64_t generation,
                       double timeout_seconds) {
  if (server < 0 || server >= options_.servers) {
    return Status(
        StatusCode::kInvalidArgument,
        StrCat("expected a server from 0 to ", options_.servers - 1, ", received ", server));
  }
  const std::lock_guard<std::mutex> lock(connecting_[server]);
  // From here to Adopt nobody else talks to the server, and what is known of it does not change.
  ServerView view;
  if (Status s = thread_->Disconnect(server, &view); !s.ok()) return s;
  Handshake handshake(Clock::now() + std::chrono::duration_cast<Clock::duration>(
                                         std::chrono::duration<double>(timeout_seconds)));
  const bool again = view.incarnation != 0;
  Hello hello;
  hello.generation = generation;
  hello.rank = static_cast<uint32_t>(options_.worker);
  Status status = handshake.Begin(address, options_.lend, key, hello);
  if (status.ok()) status = Introduce(server, &handshake, &view);
  if (status.ok()) status = Restore(server, &handshake);
  if (status.ok()) status = BindAgain(server, &handshake);
  if (status.ok()) status = RestoreTables(server, &handshake);
  Lending lending;
  if (status.ok()) status = handshake.AgreeToLend(&lending);
  if (!status.ok()) {
    return Status(status.code(),
                  StrCat("cannot connect to ps ", server, " (", address, "): ", status.message()));
  }
  status = thread_->Adopt(server, handshake.TakeSocket(), std::move(lending), view);
  if (!status.ok()) return status;
  if (again) {
    const std::lock_guard<std::mutex> stats_lock(mutex_);
    ++stats_.reconnections;
  }
  return Status();
}

Status Client::Introduce(int server, Handshake* handshake, ServerView* view) {
  OpenReply reply;
  const OpenRequest open{options_.process, pushes_};
  if (Status s = handshake->Ask(MessageType::kOpen, open, {}, &reply); !s.ok()) return s;
  if (reply.incarnation != view->incarnation) table_.ForgetVersions(server);
  view->incarnation = reply.incarnation;
  view->opening_clock = reply.clock;
  if (view->step_incarnation == 0) {
    view->step_incarnation = reply.incarnation;
    view->step_clock = reply.clock;
  }
  return Status();
}

// Finds what was created before, and creates what the server has lost from what was pulled last.
Status Client::Restore(int server, Handshake* handshake) {
  Namesakes shards;
  for (const ShardRef& ref : table_.CreatedOn(server)) {
    shards[table_.spec(ref.parameter).shards[ref.shard].name].push_back(ref);
  }
  for (const bool with_values : {false, true}) {
    if (Status s = Number(handshake, with_values, &table_, &shards); !s.ok()) return s;
  }
  // Who needs one of these will fail.
  for (const auto& [name, refs] : shards) {
    for (const ShardRef& ref : refs) table_.Number(ref, kNoShard);
  }
  return Status();
}

Status Client::BindAgain(int server, Handshake* handshake) {
  std::vector<Bound> bound;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    bound = bound_;
  }
  for (const Bound& one : bound) {
    BindRequest request;
    request.config = one.config;
    for (const Binding& binding : one.bindings) {
      // What lacks a shard is left out: its gradients will fail.
      if (!AddToRequest(table_, binding, server, &request).ok()) continue;
    }
    if (request.entries.empty()) continue;
    if (Status s = handshake->Tell(MessageType::kBind, Encode(request)); !s.ok()) return s;
  }
  return Status();
}

// Their rows are the servers' alone: what a server has lost begins anew.
Status Client::RestoreTables(int server, Handshake* handshake) {
  std::vector<int> tables;
  const TableRequest request = directory_.RequestForAll(server, &tables);
  if (tables.empty()) return Status();
  TableReply reply;
  if (Status s = handshake->Ask(MessageType::kTable, request, {}, &reply); !s.ok()) return s;
  if (reply.tables.size() != tables.size()) {
    return Status(
        StatusCode::kInternal,
        StrCat("expected ", tables.size(), " numbers of tables, received ", reply.tables.size()));
  }
  for (size_t i = 0; i < tables.size(); ++i) directory_.Number(server, tables[i], reply.tables[i]);
  return Status();
}

}  // namespace tfdist::ps
