#include "core/ps/client/operations/setup_operations.h"

#include <utility>

namespace tfdist::ps {

CreateOperation::CreateOperation(ParameterTable* table, int parameter, const Memory* value,
                                 Done done)
    : PlainOperation(Kind::kOther,
                     StrCat("the creation of parameter '", table->spec(parameter).name, "'"),
                     std::move(done)),
      table_(table),
      spec_(table->spec(parameter)),
      parameter_(parameter),
      has_value_(value != nullptr) {
  const std::vector<ShardState> states =
      table->With(parameter, [](const Parameter& known) { return known.shards; });
  for (size_t i = 0; i < spec_.shards.size(); ++i) {
    const ShardSpec& shard = spec_.shards[i];
    if (has_value_ && states[i].number != kNoShard) continue;
    Request& request = To(shard.server, MessageType::kCreate);
    shards_.resize(std::max<size_t>(shards_.size(), shard.server + 1));
    shards_[shard.server].push_back(static_cast<int>(i));
    if (has_value_) {
      Append(&request, value->data + spec_.OffsetOf(shard), spec_.BytesOf(shard), value->owner);
    }
  }
}

Status CreateOperation::Meta(const Request& request, const ServerView&, std::string* meta) {
  CreateRequest message;
  for (const int i : shards_[request.server]) {
    const ShardSpec& shard = spec_.shards[i];
    message.entries.push_back({shard.name, spec_.dtype, shard.count, has_value_});
  }
  *meta = Encode(message);
  return Status();
}

Status CreateOperation::OnAnswer(const Request& request, ServerView*, std::string_view meta,
                                 uint64_t payload_bytes, std::vector<iovec>*) {
  const std::vector<int>& shards = shards_[request.server];
  CreateReply reply;
  if (Status s = Decode(meta, &reply); !s.ok()) return s;
  if (reply.shards.size() != shards.size() || payload_bytes != 0) {
    return Status(
        StatusCode::kInvalidArgument,
        StrCat("expected ", shards.size(), " numbers of shards, received ", reply.shards.size()));
  }
  for (size_t i = 0; i < shards.size(); ++i) {
    if (reply.shards[i] != kNoShard) {
      table_->Number({parameter_, shards[i]}, reply.shards[i]);
    } else if (has_value_) {
      return Status(StatusCode::kInvalidArgument, "a shard was not created");
    }
  }
  return Status();
}

Status CheckBindings(const ParameterTable& table, const std::vector<BoundParameter>& bindings) {
  for (const BoundParameter& binding : bindings) {
    if (!table.Has(binding.parameter)) {
      return Status(
          StatusCode::kInvalidArgument,
          StrCat("an optimizer of parameter ", binding.parameter, ", which was not added"));
    }
    const std::vector<ShardSpec>& shards = table.spec(binding.parameter).shards;
    for (const int slot : binding.slots) {
      const std::vector<ShardSpec>& others = table.spec(slot).shards;
      bool alike = shards.size() == others.size();
      for (size_t i = 0; alike && i < shards.size(); ++i) {
        alike = shards[i].server == others[i].server && shards[i].count == others[i].count;
      }
      if (alike) continue;
      return Status(StatusCode::kInvalidArgument,
                    StrCat("parameter '", table.spec(binding.parameter).name,
                           "': expected its slot to be split and placed like it, received '",
                           table.spec(slot).name, "'"));
    }
  }
  return Status();
}

Status AddToRequest(const ParameterTable& table, const BoundParameter& binding, int server,
                    BindRequest* request) {
  const std::vector<ShardSpec>& shards = table.spec(binding.parameter).shards;
  for (size_t i = 0; i < shards.size(); ++i) {
    if (shards[i].server != server) continue;
    const int shard = static_cast<int>(i);
    BindRequest::Entry entry;
    entry.weight_decay = binding.weight_decay;
    Status status = table.NumberOf({binding.parameter, shard}, &entry.shard);
    for (const int slot : binding.slots) {
      entry.slots.emplace_back();
      if (status.ok()) status = table.NumberOf({slot, shard}, &entry.slots.back());
    }
    if (!status.ok()) return status;
    request->entries.push_back(std::move(entry));
  }
  return Status();
}

BindOperation::BindOperation(ParameterTable* table, const OptimizerConfig& config,
                             std::vector<BoundParameter> bindings, Done done)
    : PlainOperation(Kind::kOther, StrCat("an optimizer of ", bindings.size(), " parameters"),
                     std::move(done)),
      table_(table),
      config_(config),
      bindings_(std::move(bindings)) {
  for (const BoundParameter& binding : bindings_) {
    for (const ShardSpec& shard : table_->spec(binding.parameter).shards) {
      To(shard.server, MessageType::kBind);
    }
  }
}

Status BindOperation::Meta(const Request& request, const ServerView&, std::string* meta) {
  BindRequest message;
  message.config = config_;
  for (const BoundParameter& binding : bindings_) {
    if (Status s = AddToRequest(*table_, binding, request.server, &message); !s.ok()) return s;
  }
  *meta = Encode(message);
  return Status();
}

LeaveOperation::LeaveOperation(int servers, Done done)
    : PlainOperation(Kind::kLeave, "a farewell", std::move(done)) {
  for (int server = 0; server < servers; ++server) To(server, MessageType::kLeave);
}

}  // namespace tfdist::ps
