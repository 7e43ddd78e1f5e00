#include "core/ps/client/operations/value_operations.h"

#include <cstring>
#include <utility>

namespace tfdist::ps {
namespace {

constexpr int kExecutionBits = 24;  // of a sequence number; the others are the clock

}  // namespace

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
    if (Status s = table_->NumberOf(shard, &message.shards.back()); !s.ok()) return s;
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
  // A server that was restarted since the step began may have gone back in time.
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
  // Not in place yet: if the connection breaks, the tensors are sent again.
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

}  // namespace tfdist::ps
