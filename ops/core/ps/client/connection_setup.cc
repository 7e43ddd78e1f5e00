#include "core/ps/client/connection_setup.h"

#include <map>
#include <string>

namespace tfdist::ps {
namespace {

// Shards by name. Several parameters may share a name, and then a value.
using Namesakes = std::map<std::string, std::vector<ShardRef>>;

// Finds the newest whole value of one of the shards.
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

// Asks the server for its ids of the shards. With `with_values`, creates the shards whose value is
// known. The shards that the server has are removed from `shards`.
Status FindOrCreate(Handshake* handshake, bool with_values, ParameterTable* table,
                    Namesakes* shards) {
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
    for (const ShardRef& ref : found->second) table->SetShardId(ref, reply.shards[i]);
    shards->erase(found);
  }
  return Status();
}

}  // namespace

Status ConnectionSetup::Run(const OpenRequest& open, const std::vector<BoundOptimizer>& optimizers,
                            const ResolveRequest& resolve, ServerView* view) {
  if (Status s = Open(open, view); !s.ok()) return s;
  if (Status s = RestoreGeneration(resolve); !s.ok()) return s;
  if (Status s = RestoreParameters(); !s.ok()) return s;
  if (Status s = RestoreOptimizers(optimizers); !s.ok()) return s;
  return RestoreTables();
}

Status ConnectionSetup::Open(const OpenRequest& open, ServerView* view) {
  OpenReply reply;
  if (Status s = handshake_->Ask(MessageType::kOpen, open, {}, &reply); !s.ok()) return s;
  if (reply.incarnation != view->incarnation) parameters_->ForgetVersions(server_);
  view->incarnation = reply.incarnation;
  view->opening_clock = reply.clock;
  if (view->step_incarnation == 0) {
    view->step_incarnation = reply.incarnation;
    view->step_clock = reply.clock;
  }
  return Status();
}

Status ConnectionSetup::RestoreParameters() {
  Namesakes shards;
  for (const ShardRef& ref : parameters_->CreatedOn(server_)) {
    shards[parameters_->spec(ref.parameter).shards[ref.shard].name].push_back(ref);
  }
  for (const bool with_values : {false, true}) {
    if (Status s = FindOrCreate(handshake_, with_values, parameters_, &shards); !s.ok()) return s;
  }
  // The others are lost: operations on them will fail.
  for (const auto& [name, refs] : shards) {
    for (const ShardRef& ref : refs) parameters_->SetShardId(ref, kNoShard);
  }
  return Status();
}

Status ConnectionSetup::RestoreOptimizers(const std::vector<BoundOptimizer>& optimizers) {
  for (const BoundOptimizer& optimizer : optimizers) {
    BindRequest request;
    request.config = optimizer.config;
    for (const BoundParameter& binding : optimizer.parameters) {
      // A parameter that lacks a shard is left out: its gradients will fail.
      if (!AddToRequest(*parameters_, binding, server_, &request).ok()) continue;
    }
    if (request.entries.empty()) continue;
    if (Status s = handshake_->Tell(MessageType::kBind, Encode(request)); !s.ok()) return s;
  }
  return Status();
}

Status ConnectionSetup::RestoreGeneration(const ResolveRequest& resolve) {
  if (resolve.next.generation == 0) return Status();
  // A server that knows a later generation refuses it. The worker finds that out from the others.
  ResolveReply reply;
  return handshake_->Ask(MessageType::kResolve, resolve, {}, &reply);
}

Status ConnectionSetup::RestoreTables() {
  std::vector<int> tables;
  const TableRequest request = tables_->RequestForAll(server_, &tables);
  if (tables.empty()) return Status();
  TableReply reply;
  if (Status s = handshake_->Ask(MessageType::kTable, request, {}, &reply); !s.ok()) return s;
  if (reply.tables.size() != tables.size()) {
    return Status(
        StatusCode::kInternal,
        StrCat("expected ", tables.size(), " numbers of tables, received ", reply.tables.size()));
  }
  for (size_t i = 0; i < tables.size(); ++i) {
    tables_->SetTableId(server_, tables[i], reply.tables[i]);
  }
  return Status();
}

}  // namespace tfdist::ps
