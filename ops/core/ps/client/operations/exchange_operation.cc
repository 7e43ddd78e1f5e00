#include "core/ps/client/operations/exchange_operation.h"

#include <algorithm>
#include <utility>

namespace tfdist::ps {

ExchangeOperation::ExchangeOperation(ParameterTable* table, const std::vector<Value>& values,
                                     const std::vector<Memory>& moves, double alpha,
                                     uint64_t* exchanges, Done done)
    : PlainOperation(Kind::kEdit, StrCat("an exchange of ", values.size(), " parameters"),
                     std::move(done)),
      table_(table),
      alpha_(alpha),
      exchanges_(exchanges),
      owners_(moves) {
  for (size_t i = 0; i < values.size(); ++i) {
    const ParameterSpec& spec = table->spec(values[i].parameter);
    Mention(spec.name);
    for (size_t j = 0; j < spec.shards.size(); ++j) {
      const ShardSpec& shard = spec.shards[j];
      const size_t offset = spec.OffsetOf(shard), bytes = spec.BytesOf(shard);
      Append(&To(shard.server, MessageType::kExchange), values[i].now.data + offset, bytes,
             values[i].now.owner);
      parts_.resize(std::max<size_t>(parts_.size(), shard.server + 1));
      Part& part = parts_[shard.server];
      part.shards.push_back({values[i].parameter, static_cast<int>(j)});
      if (bytes > 0) part.moves.push_back({moves[i].data + offset, bytes});
      part.bytes += bytes;
    }
  }
}

Status ExchangeOperation::Meta(const Request& request, const ServerView&, std::string* meta) {
  if (sequence_ == 0) sequence_ = ++*exchanges_;
  ExchangeRequest message;
  message.sequence = sequence_;
  message.alpha = alpha_;
  for (const ShardRef& shard : parts_[request.server].shards) {
    message.shards.emplace_back();
    if (Status s = table_->FindShardId(shard, &message.shards.back()); !s.ok()) return s;
  }
  *meta = Encode(message);
  return Status();
}

Status ExchangeOperation::OnAnswer(const Request& request, ServerView*, std::string_view meta,
                                   uint64_t payload_bytes, std::vector<iovec>* target) {
  const Part& part = parts_[request.server];
  if (!meta.empty() || payload_bytes != part.bytes) {
    return Status(StatusCode::kInvalidArgument, StrCat("expected differences of ", part.bytes,
                                                       " bytes, received ", payload_bytes));
  }
  // In place: after a broken connection all of it arrives again.
  target->insert(target->end(), part.moves.begin(), part.moves.end());
  return Status();
}

}  // namespace tfdist::ps
