#include "core/ps/client/operations/push_operation.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "core/math/cast16.h"
#include "core/math/unique_ids.h"
#include "core/ps/table/ids_by_server.h"

namespace tfdist::ps {
namespace {

constexpr size_t kMaxSteps = 256;  // of one message
constexpr int kTaskServer = 0;     // has the master of the data tasks

Status InvalidPush(const ParameterSpec& spec, const std::string& what) {
  return Status(StatusCode::kInvalidArgument,
                StrCat("a push of parameter '", spec.name, "': ", what));
}

template <typename T>
void SubtractPlain(void* out, const void* now, const void* then, size_t count) {
  auto* o = static_cast<T*>(out);
  const auto* a = static_cast<const T*>(now);
  const auto* b = static_cast<const T*>(then);
  for (size_t i = 0; i < count; ++i) o[i] = a[i] - b[i];
}

// now + (-then): the sign is the first bit of both formats, and Add rounds.
void SubtractHalf(DType dtype, void* out, const void* now, const void* then, size_t count) {
  auto* negative = static_cast<uint16_t*>(out);
  const auto* bits = static_cast<const uint16_t*>(then);
  for (size_t i = 0; i < count; ++i) negative[i] = bits[i] ^ uint16_t { 0x8000 };
  Add(dtype, out, out, now, count);
}

// The change of a step: out[i] = now[i] - then[i]. 16-bit floats are subtracted in float32 and
// rounded to nearest even; integers wrap.
void ComputeDelta(DType dtype, void* out, const void* now, const void* then, size_t count) {
  switch (dtype) {
    case DType::kFloat16:
    case DType::kBFloat16:
      return SubtractHalf(dtype, out, now, then, count);
    case DType::kFloat32:
      return SubtractPlain<float>(out, now, then, count);
    case DType::kFloat64:
      return SubtractPlain<double>(out, now, then, count);
    case DType::kInt32:
      return SubtractPlain<uint32_t>(out, now, then, count);
    case DType::kInt64:
      return SubtractPlain<uint64_t>(out, now, then, count);
    default:
      std::abort();  // no parameter has another type
  }
}

// The mean number of adjacent rows from which rows are sent without a copy.
constexpr size_t kDirectSendRun = 8;

// One gradient per id: the given one if the id occurs once, else a sum, whose memory this owns.
class SummedRows {
 public:
  SummedRows(const std::vector<const RowGradient*>& gradients, size_t width, BlockPool* pool)
      : width_(width) {
    for (const RowGradient* gradient : gradients) {
      unique_.Add(gradient->ids.data(), gradient->ids.size());
      owners_.push_back(gradient->values.owner);
    }
    rows_.resize(unique_.ids().size());
    std::vector<bool> repeats(rows_.size());
    size_t first = 0, repeated = 0;
    for (const uint32_t index : unique_.indices()) {
      if (index == first) {
        ++first;
      } else if (!repeats[index]) {
        repeats[index] = true;
        ++repeated;
      }
    }
    BlockPtr sums = pool->AllocateAtLeast(repeated * width * sizeof(float));
    auto* next_sum = reinterpret_cast<float*>(sums->data());
    owners_.push_back(std::move(sums));
    const uint32_t* index = unique_.indices().data();
    for (const RowGradient* gradient : gradients) {
      const auto* values = reinterpret_cast<const float*>(gradient->values.data);
      for (size_t i = 0; i < gradient->ids.size(); ++i, ++index, values += width) {
        const float*& row = rows_[*index];
        if (row != nullptr) {
          auto* const sum = const_cast<float*>(row);
          for (size_t j = 0; j < width; ++j) sum[j] += values[j];
        } else if (repeats[*index]) {
          std::copy_n(values, width, next_sum);
          row = next_sum;
          next_sum += width;
        } else {
          row = values;
        }
      }
    }
  }

  const std::vector<int64_t>& ids() const { return unique_.ids(); }
  const float* row(uint32_t index) const { return rows_[index]; }
  // Whether row `index` is adjacent in memory to row `before`.
  bool Follows(uint32_t before, uint32_t index) const {
    return rows_[index] == rows_[before] + width_;
  }

 private:
  const size_t width_;
  UniqueIds unique_;
  std::vector<const float*> rows_;
  std::vector<std::shared_ptr<void>> owners_;
};

}  // namespace

PushOperation::PushOperation(ParameterTable* table, const TableDirectory* directory,
                             BlockPool* pool, std::atomic<uint64_t>* pushes, Done done)
    : Operation(Kind::kPush, "a push"),
      table_(table),
      directory_(directory),
      pool_(pool),
      pushes_(pushes),
      done_(std::move(done)),
      parts_(directory->servers()) {
  for (int server = 0; server < directory->servers(); ++server) To(server, MessageType::kPush);
}

Status PushOperation::AddGradient(const StepValues& step, const Gradient& gradient) {
  const ParameterSpec& spec = table_->spec(gradient.parameter);
  if (spec.shards.empty()) {
    return Status(StatusCode::kInvalidArgument,
                  StrCat("a gradient of parameter ", gradient.parameter, ", which was not added"));
  }
  uint8_t index = 0;
  if (Status s = StepIndex(step, &index); !s.ok()) return s;
  Mention(spec.name);
  if (gradient.width > 0) return AddRows(gradient, index);
  if (gradient.values.data == nullptr && spec.elements > 0) {
    return InvalidPush(spec, "its gradient has no values");
  }
  for (size_t i = 0; i < spec.shards.size(); ++i) {
    const ShardSpec& shard = spec.shards[i];
    PushRequest::Entry entry;
    entry.kind = UpdateKind::kGradient;
    entry.step = index;
    Add({gradient.parameter, static_cast<int>(i)}, entry);
    AddPayload(shard.server, gradient.values.data + spec.OffsetOf(shard), spec.BytesOf(shard),
               gradient.values.owner);
  }
  return Status();
}

Status PushOperation::AddRows(const Gradient& gradient, uint8_t step) {
  const ParameterSpec& spec = table_->spec(gradient.parameter);
  const uint64_t width = gradient.width;
  for (const ShardSpec& shard : spec.shards) {
    if (shard.first % width == 0 && shard.count % width == 0) continue;
    return InvalidPush(spec, StrCat("rows of ", width, " elements do not fit its shard of ",
                                    shard.count, " elements from ", shard.first));
  }
  for (const int64_t row : gradient.rows) {
    if (row >= 0 && static_cast<uint64_t>(row) < spec.elements / width) continue;
    return InvalidPush(spec, StrCat("expected rows from 0 to ", spec.elements / width,
                                    " less 1, received row ", row));
  }
  for (size_t i = 0; i < spec.shards.size(); ++i) {
    const ShardSpec& shard = spec.shards[i];
    PushRequest::Entry entry;
    entry.kind = UpdateKind::kRows;
    entry.step = step;
    entry.width = width;
    entry.rows = gradient.rows.size();
    if (spec.shards.size() == 1) {
      auto rows = std::make_shared<std::vector<int64_t>>(gradient.rows);
      AddPayload(shard.server, rows->data(), rows->size() * sizeof(int64_t), rows);
      AddPayload(shard.server, gradient.values.data, rows->size() * width * ByteSize(spec.dtype),
                 gradient.values.owner);
    } else {
      const BlockPtr block = GatherRows(gradient, spec, shard, &entry.rows);
      AddPayload(shard.server, block->data(), block->bytes(), block);
    }
    Add({gradient.parameter, static_cast<int>(i)}, entry);
  }
  return Status();
}

// The indices of a shard's rows, relative to its first row, and then the rows.
BlockPtr PushOperation::GatherRows(const Gradient& gradient, const ParameterSpec& spec,
                                   const ShardSpec& shard, uint64_t* count) {
  const auto first = static_cast<int64_t>(shard.first / gradient.width);
  const auto end = first + static_cast<int64_t>(shard.count / gradient.width);
  const auto is_here = [&](int64_t row) { return row >= first && row < end; };
  *count = 0;
  for (const int64_t row : gradient.rows) *count += is_here(row) ? 1 : 0;
  const size_t row_bytes = gradient.width * ByteSize(spec.dtype);
  BlockPtr block = pool_->Allocate(*count * (sizeof(int64_t) + row_bytes));
  char* index = block->data();
  char* values = block->data() + *count * sizeof(int64_t);
  for (size_t i = 0; i < gradient.rows.size(); ++i) {
    if (!is_here(gradient.rows[i])) continue;
    const int64_t local = gradient.rows[i] - first;
    std::memcpy(index, &local, sizeof(local));
    std::memcpy(values, gradient.values.data + i * row_bytes, row_bytes);
    index += sizeof(local);
    values += row_bytes;
  }
  return block;
}

Status PushOperation::AddTableRows(const StepValues& step,
                                   const std::vector<const RowGradient*>& gradients) {
  const int table = gradients.front()->table;
  const DType wire = gradients.front()->wire;
  const size_t width = directory_->config(table).width, row_bytes = width * ByteSize(wire);
  Mention(directory_->name(table));
  uint8_t step_index = 0;
  if (Status s = StepIndex(step, &step_index); !s.ok()) return s;
  const auto sums = std::make_shared<SummedRows>(gradients, width, pool_);
  std::vector<IdsByServer::Part> parts = IdsByServer(sums->ids(), directory_->servers()).parts;
  // Rows that catch up with steps have to learn of every step, also on servers of other rows.
  const bool counts_steps = directory_->config(table).rule == RowRule::kExactAdam;
  for (int server = 0; server < directory_->servers(); ++server) {
    const std::vector<uint32_t>& indices = parts[server].indices;
    if (indices.empty() && !counts_steps) continue;
    PushRequest::Entry entry;
    entry.kind = UpdateKind::kTableRows;
    entry.step = step_index;
    entry.rows = indices.size();
    entry.width = width;
    entry.wire = wire;
    parts_[server].shards.push_back({table, 0});
    parts_[server].entries.push_back(entry);
    ++entries_;
    if (indices.empty()) continue;
    auto ids = std::make_shared<std::vector<int64_t>>(std::move(parts[server].ids));
    AddPayload(server, ids->data(), ids->size() * sizeof(int64_t), ids);
    std::vector<size_t> runs;  // ends of runs of adjacent rows
    for (size_t i = 1; i <= indices.size(); ++i) {
      if (i == indices.size() || !sums->Follows(indices[i - 1], indices[i])) runs.push_back(i);
    }
    if (wire == DType::kFloat32 && runs.size() * kDirectSendRun <= indices.size()) {
      size_t begin = 0;
      for (const size_t end : runs) {
        AddPayload(server, sums->row(indices[begin]), (end - begin) * row_bytes, sums);
        begin = end;
      }
      continue;
    }
    const BlockPtr rows = pool_->AllocateAtLeast(indices.size() * row_bytes);
    char* to = rows->data();
    for (const uint32_t index : indices) {
      CastFromFloat32(wire, sums->row(index), to, width);
      to += row_bytes;
    }
    AddPayload(server, rows->data(), rows->bytes(), rows);
  }
  return Status();
}

Status PushOperation::StepIndex(const StepValues& step, uint8_t* index) {
  for (size_t i = 0; i < steps_.size(); ++i) {
    if (steps_[i].learning_rate == step.learning_rate && steps_[i].step == step.step) {
      *index = static_cast<uint8_t>(i);
      return Status();
    }
  }
  if (steps_.size() == kMaxSteps) {
    return Status(StatusCode::kInvalidArgument,
                  StrCat("a push: expected at most ", kMaxSteps,
                         " different learning rates and step numbers, received more"));
  }
  *index = static_cast<uint8_t>(steps_.size());
  steps_.push_back(step);
  return Status();
}

Status PushOperation::AddChange(int parameter, const Memory& now, bool alone) {
  const ParameterSpec& spec = table_->spec(parameter);
  if (spec.shards.empty()) {
    return Status(StatusCode::kInvalidArgument,
                  StrCat("a push of parameter ", parameter, ", which was not added"));
  }
  if (spec.elements == 0) return Status();
  if (now.data == nullptr) return InvalidPush(spec, "it has no value");
  const Parameter then = table_->With(parameter, [](const Parameter& known) {
    Parameter copy;
    copy.pulled = known.pulled;
    copy.shards = known.shards;
    copy.excluded = known.excluded;
    return copy;
  });
  // Only servers change it, and steps do not pull it: the worker's value has no meaning.
  if (then.excluded && then.pulled.data == nullptr) return Status();
  if (now.data == then.pulled.data) return Status();
  std::vector<bool> changed(spec.shards.size(), false);
  for (size_t i = 0; i < spec.shards.size(); ++i) {
    const ShardSpec& shard = spec.shards[i];
    const size_t offset = spec.OffsetOf(shard), bytes = spec.BytesOf(shard);
    const bool known = then.pulled.data != nullptr && then.shards[i].whole;
    if (known && std::memcmp(now.data + offset, then.pulled.data + offset, bytes) == 0) continue;
    changed[i] = true;
    PushRequest::Entry entry;
    entry.kind = alone ? UpdateKind::kAssign : UpdateKind::kDelta;
    if (alone) {
      AddPayload(shard.server, now.data + offset, bytes, now.owner);
    } else if (known) {
      const BlockPtr change = pool_->Allocate(bytes);
      ComputeDelta(spec.dtype, change->data(), now.data + offset, then.pulled.data + offset,
                   shard.count);
      AddPayload(shard.server, change->data(), bytes, change);
    } else {
      return Status(StatusCode::kFailedPrecondition,
                    StrCat("parameter '", spec.name,
                           "' has changed in a step, but its value before is not known: it was "
                           "not pulled"));
    }
    Add({parameter, static_cast<int>(i)}, entry);
  }
  table_->With(parameter, [&](Parameter& known) {
    known.pulled = now;  // `then` still owns the old value
    for (size_t i = 0; i < changed.size(); ++i) {
      known.shards[i].whole = true;
      if (changed[i]) known.shards[i].version = 0;
    }
  });
  return Status();
}

void PushOperation::Add(const ShardRef& ref, const PushRequest::Entry& entry) {
  Part& part = parts_[table_->spec(ref.parameter).shards[ref.shard].server];
  part.shards.push_back(ref);
  part.entries.push_back(entry);
  ++entries_;
}

void PushOperation::AddPayload(int server, const void* data, size_t bytes,
                               std::shared_ptr<void> owner) {
  Append(&To(server, MessageType::kPush), data, bytes, std::move(owner));
  outcome_.bytes += bytes;
}

Status PushOperation::Meta(const Request& request, const ServerView& view, std::string* meta) {
  if (sequence_ == 0) sequence_ = ++*pushes_;
  Part& part = parts_[request.server];
  if (part.incarnation == 0) {
    part.incarnation = view.step_incarnation;
    part.clock = view.step_clock;
  }
  PushRequest message;
  message.sequence = sequence_;
  message.clock = part.clock;
  message.incarnation = part.incarnation;
  message.steps = steps_;
  message.entries = part.entries;
  message.unit = unit_;
  message.of_tasks = !commits_.empty();
  if (request.server == kTaskServer) message.commits = commits_;
  for (size_t i = 0; i < part.shards.size(); ++i) {
    uint32_t* const id = &message.entries[i].shard;
    const ShardRef& ref = part.shards[i];
    const Status status = part.entries[i].kind == UpdateKind::kTableRows
                              ? directory_->FindTableId(request.server, ref.parameter, id)
                              : table_->FindShardId(ref, id);
    if (!status.ok()) return status;
  }
  *meta = Encode(message);
  return Status();
}

Status PushOperation::OnAnswer(const Request&, ServerView*, std::string_view meta,
                               uint64_t payload_bytes, std::vector<iovec>*) {
  PushReply reply;
  if (Status s = Decode(meta, &reply); !s.ok()) return s;
  if (payload_bytes != 0) {
    return Status(StatusCode::kInvalidArgument, "an answer to a push has no payload");
  }
  outcome_.dropped = outcome_.dropped || reply.dropped;
  outcome_.refused = outcome_.refused || reply.refused;
  return Status();
}

void PushOperation::OnEnd(const Status& status) { std::exchange(done_, nullptr)(status, outcome_); }

}  // namespace tfdist::ps
