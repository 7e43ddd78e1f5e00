#include "core/ps/client/operations/control_operations.h"

#include <cstring>
#include <utility>

namespace tfdist::ps {
namespace {

constexpr int kExecutionBits = 24;  // of a reduction's sequence number; the clock has the others

}  // namespace

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
    if (has_value_ && states[i].id != kNoShard) continue;
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
      table_->SetShardId({parameter_, shards[i]}, reply.shards[i]);
    } else if (has_value_) {
      return Status(StatusCode::kInvalidArgument, "a shard was not created");
    }
  }
  return Status();
}

CreateTableOperation::CreateTableOperation(TableDirectory* directory, int table, Done done)
    : PlainOperation(Kind::kOther, StrCat("the creation of table '", directory->name(table), "'"),
                     std::move(done)),
      directory_(directory),
      table_(table) {
  for (int server = 0; server < directory->servers(); ++server) To(server, MessageType::kTable);
}

Status CreateTableOperation::Meta(const Request&, const ServerView&, std::string* meta) {
  *meta = Encode(directory_->RequestFor(table_));
  return Status();
}

Status CreateTableOperation::OnAnswer(const Request& request, ServerView*, std::string_view meta,
                                      uint64_t payload_bytes, std::vector<iovec>*) {
  TableReply reply;
  if (Status s = Decode(meta, &reply); !s.ok()) return s;
  if (reply.tables.size() != 1 || payload_bytes != 0) {
    return Status(StatusCode::kInvalidArgument, "expected the number of one table");
  }
  directory_->SetTableId(request.server, table_, reply.tables[0]);
  return Status();
}

Status CheckBindings(const ParameterTable& table, const std::vector<BoundParameter>& parameters) {
  for (const BoundParameter& binding : parameters) {
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
    Status status = table.FindShardId({binding.parameter, shard}, &entry.shard);
    for (const int slot : binding.slots) {
      entry.slots.emplace_back();
      if (status.ok()) status = table.FindShardId({slot, shard}, &entry.slots.back());
    }
    if (!status.ok()) return status;
    request->entries.push_back(std::move(entry));
  }
  return Status();
}

BindOperation::BindOperation(ParameterTable* table, BoundOptimizer optimizer, Done done)
    : PlainOperation(Kind::kOther,
                     StrCat("an optimizer of ", optimizer.parameters.size(), " parameters"),
                     std::move(done)),
      table_(table),
      optimizer_(std::move(optimizer)) {
  for (const BoundParameter& binding : optimizer_.parameters) {
    for (const ShardSpec& shard : table_->spec(binding.parameter).shards) {
      To(shard.server, MessageType::kBind);
    }
  }
}

Status BindOperation::Meta(const Request& request, const ServerView&, std::string* meta) {
  BindRequest message;
  message.config = optimizer_.config;
  for (const BoundParameter& binding : optimizer_.parameters) {
    if (Status s = AddToRequest(*table_, binding, request.server, &message); !s.ok()) return s;
  }
  *meta = Encode(message);
  return Status();
}

SetOperation::SetOperation(ParameterTable* table, const std::vector<Value>& values, Done done)
    : PlainOperation(Kind::kOther, StrCat("new values of ", values.size(), " parameters"),
                     std::move(done)),
      table_(table) {
  for (const Value& value : values) {
    const ParameterSpec& spec = table->spec(value.parameter);
    for (size_t i = 0; i < spec.shards.size(); ++i) {
      const ShardSpec& shard = spec.shards[i];
      Append(&To(shard.server, MessageType::kSet), value.now.data + spec.OffsetOf(shard),
             spec.BytesOf(shard), value.now.owner);
      shards_.resize(std::max<size_t>(shards_.size(), shard.server + 1));
      shards_[shard.server].push_back({value.parameter, static_cast<int>(i)});
    }
  }
}

Status SetOperation::Meta(const Request& request, const ServerView&, std::string* meta) {
  SetRequest message;
  for (const ShardRef& shard : shards_[request.server]) {
    message.shards.emplace_back();
    if (Status s = table_->FindShardId(shard, &message.shards.back()); !s.ok()) return s;
  }
  *meta = Encode(message);
  return Status();
}

ReduceOperation::ReduceOperation(uint64_t key, std::vector<Tensor> tensors, int server,
                                 BlockPool* pool, ReduceCounts* counts, Done done)
    : PlainOperation(Kind::kOther, StrCat("a reduction of ", tensors.size(), " tensors"),
                     std::move(done)),
      key_(key),
      tensors_(std::move(tensors)),
      pool_(pool),
      counts_(counts) {
  Request& request = To(server, MessageType::kReduce);
  for (const Tensor& tensor : tensors_) {
    Append(&request, tensor.values.data, tensor.bytes(), tensor.values.owner);
    bytes_ += tensor.bytes();
  }
}

Status ReduceOperation::Meta(const Request&, const ServerView& view, std::string* meta) {
  if (execution_ == 0) {
    ReduceCount& count = (*counts_)[key_];
    if (std::exchange(count.steps, view.steps) != view.steps) count.executions = 0;
    execution_ = ++count.executions;
  }
  // A server that has restarted since the step began may have gone back to an earlier clock.
  const uint64_t clock =
      view.step_incarnation == view.incarnation ? view.step_clock : view.opening_clock;
  ReduceRequest message;
  message.key = key_;
  message.sequence = (clock << kExecutionBits) + execution_;
  for (const Tensor& tensor : tensors_) {
    message.dtypes.push_back(tensor.dtype);
    message.elements.push_back(tensor.elements);
  }
  *meta = Encode(message);
  return Status();
}

Status ReduceOperation::OnAnswer(const Request&, ServerView*, std::string_view meta,
                                 uint64_t payload_bytes, std::vector<iovec>* target) {
  if (!meta.empty() || payload_bytes != bytes_) {
    return Status(StatusCode::kInvalidArgument,
                  StrCat("expected sums of ", bytes_, " bytes, received ", payload_bytes));
  }
  // Not received in place: if the connection breaks, the tensors are sent again.
  sum_ = pool_->Allocate(bytes_);
  if (bytes_ > 0) target->push_back({sum_->data(), bytes_});
  return Status();
}

Status ReduceOperation::OnPayload(const Request&) {
  const char* from = sum_->data();
  for (const Tensor& tensor : tensors_) {
    if (tensor.bytes() > 0) std::memcpy(tensor.values.data, from, tensor.bytes());
    from += tensor.bytes();
  }
  return Status();
}

LeaveOperation::LeaveOperation(int servers, Done done)
    : PlainOperation(Kind::kLeave, "a farewell", std::move(done)) {
  for (int server = 0; server < servers; ++server) To(server, MessageType::kLeave);
}

}  // namespace tfdist::ps
