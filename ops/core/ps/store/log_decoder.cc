#include "core/ps/store/log_decoder.h"

#include "core/base/checked_size.h"
#include "core/ps/protocol/message.h"
#include "core/ps/store/store.h"

namespace tfdist::ps {
namespace {

constexpr double kMaxLoggedTime = 0x1p53;  // in seconds

// The least bytes of the fields of one entry.
constexpr size_t kRowsBytes = 4 + 8 + 8 + 8 + 8;  // table, time, learning rate, step, count
constexpr size_t kPositionBytes = 2 + 8;          // name, records
constexpr size_t kChangeBytes = 4 + 1 + 8 + 8;    // shard, is_whole, and two numbers

Status Unexpected(const char* field, const std::string& expected, const std::string& received) {
  return InvalidArgument(
      StrCat("field '", field, "': expected ", expected, ", received ", received));
}

Status Malformed(std::string_view meta) {
  return InvalidArgument(StrCat("its ", meta.size(), " bytes of fields are malformed"));
}

Status CheckTime(double now) {
  if (now >= 0 && now < kMaxLoggedTime) return Status();
  return Unexpected("now", "a time in seconds", StrCat(now));
}

// Fails if no earlier record has described the table or shard of this number.
template <typename Described>
Status CheckNumber(const char* field, uint32_t number,
                   const std::vector<std::optional<Described>>& described) {
  if (number >= described.size()) {
    return Unexpected(field, StrCat("a number below ", described.size()), StrCat(number));
  }
  if (described[number]) return Status();
  return InvalidArgument(StrCat(field, " ", number, ", which it changes, was left out"));
}

// Cuts the arrays of a record as its fields describe.
class ArrayCutter {
 public:
  explicit ArrayCutter(std::string_view arrays) : arrays_(arrays), rest_(arrays) {}

  // No value if fewer bytes are left.
  std::string_view Cut(CheckedSize bytes) {
    told_ += bytes;
    if (!told_.IsAtMost(arrays_.size())) return {};
    const std::string_view array = rest_.substr(0, *bytes.value());
    rest_.remove_prefix(array.size());
    return array;
  }
  // Fails unless that was all of them.
  Status Finish() const {
    if (told_.Is(arrays_.size())) return Status();
    return InvalidArgument(StrCat("its arrays: expected ", told_.text(),
                                  " bytes, as its fields tell, received ", arrays_.size()));
  }

 private:
  const std::string_view arrays_;
  std::string_view rest_;
  CheckedSize told_;
};

// Fails if one of the indices of rows is not below `rows`.
Status CheckIndices(std::string_view indices, uint64_t rows) {
  for (size_t at = 0; at < indices.size(); at += sizeof(int64_t)) {
    int64_t index = 0;
    std::memcpy(&index, indices.data() + at, sizeof(index));
    if (index >= 0 && static_cast<uint64_t>(index) < rows) continue;
    return InvalidArgument(
        StrCat("its arrays: expected row numbers below ", rows, ", received ", index));
  }
  return Status();
}

}  // namespace

Status LogDecoder::Decode(RecordKind kind, std::string_view meta, std::string_view arrays,
                          LogRecord* record) {
  record->kind = kind;
  switch (kind) {
    case RecordKind::kTable:
      return DecodeTable(meta);
    case RecordKind::kShard:
      return DecodeShard(meta);
    case RecordKind::kPush:
    case RecordKind::kTaskPush:
      return DecodePush(meta, arrays, record);
    case RecordKind::kEdit:
      return DecodeEdit(meta, arrays, record);
  }
  return Unexpected("kind", "1 to 5", StrCat(static_cast<uint32_t>(kind)));
}

Status LogDecoder::DecodeTable(std::string_view meta) {
  std::optional<DescribedTable>& table = tables_.emplace_back();
  TableRequest request;
  if (!tfdist::ps::Decode(meta, &request).ok()) return Malformed(meta);
  if (request.entries.size() != 1) {
    return InvalidArgument(StrCat("expected one table, received ", request.entries.size()));
  }
  const TableRequest::Entry& entry = request.entries[0];
  if (Status s = Table::Check(entry.config); !s.ok()) {
    return InvalidArgument(StrCat("table '", entry.name, "': ", s.message()));
  }
  table = DescribedTable{entry.name, entry.config};
  return Status();
}

Status LogDecoder::DecodeShard(std::string_view meta) {
  std::optional<DescribedShard>& described = shards_.emplace_back();
  DescribedShard shard;
  Reader fields(meta);
  fields.GetString(&shard.name).GetEnum(&shard.dtype, DType::kFloat16, DType::kBytes);
  fields.Get(&shard.elements);
  if (!fields.Finish("record").ok()) return Malformed(meta);
  const std::optional<uint64_t> bytes = BytesOf(shard.dtype, shard.elements);
  if (!bytes) {
    return Unexpected("elements", StrCat("at most ", kMaxPayloadBytes / ByteSize(shard.dtype)),
                      StrCat(shard.elements, " in ", Describe(shard.dtype, shard.elements), " '",
                             shard.name, "'"));
  }
  shard.bytes = *bytes;
  if (shard.name.size() > kMaxNameBytes) {
    return Unexpected("name", StrCat("at most ", kMaxNameBytes, " bytes"),
                      StrCat(shard.name.size()));
  }
  if (reader_.fits) {
    if (Status s = reader_.fits(shard.name, shard.dtype, shard.elements); !s.ok()) return s;
  }
  described = std::move(shard);
  return Status();
}

Status LogDecoder::CheckChange(const LoggedChange& change) const {
  if (Status s = CheckNumber("shard", change.shard, shards_); !s.ok()) return s;
  const DescribedShard& shard = *shards_[change.shard];
  if (change.is_whole || (change.width > 0 && change.width <= shard.elements)) return Status();
  return Unexpected("width", StrCat("1 to ", shard.elements, ", as shard '", shard.name, "' has"),
                    StrCat(change.width));
}

Status LogDecoder::DecodePush(std::string_view meta, std::string_view arrays,
                              LogRecord* record) const {
  const bool of_tasks = record->kind == RecordKind::kTaskPush;
  Reader fields(meta);
  fields.Get(&record->pusher.worker).Get(&record->pusher.process).Get(&record->pusher.sequence);
  record->rows.resize(fields.GetCount(kRowsBytes));
  for (LoggedRows& each : record->rows) {
    fields.Get(&each.table).Get(&each.now).Get(&each.step.learning_rate);
    fields.Get(&each.step.step).Get(&each.count);
  }
  record->positions.resize(of_tasks ? fields.GetCount(kPositionBytes) : 0);
  for (TaskPosition& each : record->positions) fields.GetString(&each.task).Get(&each.trained);
  record->changes.resize(of_tasks ? fields.GetCount(kChangeBytes) : 0);
  for (LoggedChange& each : record->changes) {
    fields.Get(&each.shard).GetBool(&each.is_whole);
    if (each.is_whole) {
      fields.Get(&each.copy.offset).Get(&each.copy.checksum);
    } else {
      fields.Get(&each.width).Get(&each.count);
    }
  }
  if (!fields.Finish("record").ok()) return Malformed(meta);
  ArrayCutter cutter(arrays);
  for (LoggedRows& each : record->rows) {
    if (Status s = CheckNumber("table", each.table, tables_); !s.ok()) return s;
    if (Status s = CheckTime(each.now); !s.ok()) return s;
    const CheckedSize count = each.count;
    each.ids = cutter.Cut(count * sizeof(int64_t));
    each.gradients = cutter.Cut(count * tables_[each.table]->config.width * sizeof(float));
  }
  for (LoggedChange& each : record->changes) {
    if (Status s = CheckChange(each); !s.ok()) return s;
    if (each.is_whole) continue;
    const CheckedSize count = each.count;
    each.indices = cutter.Cut(count * sizeof(int64_t));
    each.content = cutter.Cut(count * each.width * ByteSize(shards_[each.shard]->dtype));
  }
  if (Status s = cutter.Finish(); !s.ok()) return s;
  for (const LoggedChange& each : record->changes) {
    if (each.is_whole) continue;
    const Status s = CheckIndices(each.indices, shards_[each.shard]->elements / each.width);
    if (!s.ok()) return s;
  }
  return Status();
}

Status LogDecoder::DecodeEdit(std::string_view meta, std::string_view arrays,
                              LogRecord* record) const {
  LoggedEdit& edit = record->edit;
  Reader fields(meta);
  fields.Get(&record->pusher.worker).Get(&record->pusher.process).Get(&record->pusher.sequence);
  fields.Get(&edit.table).GetEnum(&edit.kind, EditKind::kRestore, EditKind::kClear);
  fields.Get(&edit.now).Get(&edit.count);
  if (!fields.Finish("record").ok()) return Malformed(meta);
  if (Status s = CheckNumber("table", edit.table, tables_); !s.ok()) return s;
  if (Status s = CheckTime(edit.now); !s.ok()) return s;
  ArrayCutter cutter(arrays);
  const CheckedSize count = edit.count;
  const CheckedSize uses = edit.kind == EditKind::kRestore ? count : 0;
  edit.ids = cutter.Cut(count * sizeof(int64_t));
  edit.used = cutter.Cut(uses * sizeof(uint32_t));
  edit.counts = cutter.Cut(uses * sizeof(uint32_t));
  edit.content =
      cutter.Cut(count * Table::EditFloats(edit.kind, tables_[edit.table]->config) * sizeof(float));
  return cutter.Finish();
}

}  // namespace tfdist::ps
