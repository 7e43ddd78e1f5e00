#include "core/ps/client/operations/parameter_table.h"

#include <utility>

namespace tfdist::ps {
namespace {

Status InvalidParameter(const ParameterSpec& spec, const std::string& what) {
  return Status(StatusCode::kInvalidArgument, StrCat("parameter '", spec.name, "': ", what));
}

}  // namespace

void Parameter::SetPulled(Memory value) {
  pulled = std::move(value);
  for (ShardState& shard : shards) {
    shard.version = 0;
    shard.whole = true;
  }
}

Status ParameterTable::Add(ParameterSpec spec, int servers, int* id) {
  if (spec.dtype < DType::kFloat16 || spec.dtype > DType::kInt64) {
    return InvalidParameter(spec, StrCat("expected a number's dtype, received ", int(spec.dtype)));
  }
  if (spec.elements > kMaxPayloadBytes / ByteSize(spec.dtype)) {
    return InvalidParameter(spec, StrCat("expected at most ", kMaxPayloadBytes, " bytes, received ",
                                         spec.elements, " elements"));
  }
  if (spec.shards.empty()) return InvalidParameter(spec, "expected at least one shard");
  uint64_t next = 0;
  for (const ShardSpec& shard : spec.shards) {
    if (shard.server < 0 || shard.server >= servers) {
      return InvalidParameter(
          spec, StrCat("expected servers from 0 to ", servers - 1, ", received ", shard.server,
                       " for shard '", shard.name, "'"));
    }
    if (shard.first != next || shard.count > spec.elements - next) {
      return InvalidParameter(spec, StrCat("expected shards in order, without gaps, received [",
                                           shard.first, ", ", shard.first, " + ", shard.count,
                                           ") at ", next, " of ", spec.elements, " elements"));
    }
    next += shard.count;
  }
  if (next != spec.elements) {
    return InvalidParameter(
        spec, StrCat("expected shards of ", spec.elements, " elements, received ", next));
  }
  auto parameter = std::make_unique<Parameter>();
  parameter->shards.resize(spec.shards.size());
  parameter->spec = std::move(spec);
  const std::lock_guard<std::mutex> lock(mutex_);
  *id = static_cast<int>(parameters_.size());
  parameters_.push_back(std::move(parameter));
  return Status();
}

bool ParameterTable::Has(int id) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return id >= 0 && id < static_cast<int>(parameters_.size());
}

const ParameterSpec& ParameterTable::spec(int id) const {
  static const ParameterSpec kUnknown;
  if (!Has(id)) return kUnknown;
  return With(id, [](const Parameter& parameter) -> const auto& { return parameter.spec; });
}

std::vector<ShardRef> ParameterTable::CreatedOn(int server) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  std::vector<ShardRef> found;
  for (size_t id = 0; id < parameters_.size(); ++id) {
    const Parameter& parameter = *parameters_[id];
    for (size_t i = 0; i < parameter.shards.size(); ++i) {
      if (parameter.spec.shards[i].server == server && parameter.shards[i].created) {
        found.push_back({static_cast<int>(id), static_cast<int>(i)});
      }
    }
  }
  return found;
}

void ParameterTable::ForgetVersions(int server) {
  const std::lock_guard<std::mutex> lock(mutex_);
  for (const auto& parameter : parameters_) {
    for (size_t i = 0; i < parameter->shards.size(); ++i) {
      if (parameter->spec.shards[i].server == server) parameter->shards[i].version = 0;
    }
  }
}

void ParameterTable::SetShardId(const ShardRef& shard, uint32_t id) {
  const std::lock_guard<std::mutex> lock(mutex_);
  ShardState& state = parameters_[shard.parameter]->shards[shard.shard];
  state.id = id;
  if (id != kNoShard) state.created = true;
}

Status ParameterTable::FindShardId(const ShardRef& shard, uint32_t* id) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  const Parameter& parameter = *parameters_[shard.parameter];
  const ShardState& state = parameter.shards[shard.shard];
  *id = state.id;
  if (state.id != kNoShard) return Status();
  const ShardSpec& spec = parameter.spec.shards[shard.shard];
  return Status(StatusCode::kFailedPrecondition,
                state.created ? StrCat("ps ", spec.server, " has come back without '", spec.name,
                                       "', and this worker has no whole value of it")
                              : StrCat("parameter '", parameter.spec.name,
                                       "' has not been created on ps ", spec.server));
}

}  // namespace tfdist::ps
