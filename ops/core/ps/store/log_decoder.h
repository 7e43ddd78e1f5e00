// The fields of a redo log's records. A crafted or damaged file can have any numbers there: each is
// checked before it is used, and every size is computed with CheckedSize.
#ifndef TFDIST_OPS_CORE_PS_STORE_LOG_DECODER_H_
#define TFDIST_OPS_CORE_PS_STORE_LOG_DECODER_H_

#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/status.h"
#include "core/base/wire.h"
#include "core/ps/store/log_records.h"
#include "core/ps/store/redo_log.h"
#include "core/ps/table/table_config.h"

namespace tfdist::ps {

// A record's array, which points into the record.
template <typename T>
std::vector<T> CopyOf(std::string_view bytes) {
  std::vector<T> array(bytes.size() / sizeof(T));
  if (!array.empty()) std::memcpy(array.data(), bytes.data(), array.size() * sizeof(T));
  return array;
}

struct DescribedTable {
  std::string name;
  TableConfig config;
};
struct DescribedShard {
  std::string name;
  DType dtype = DType::kFloat32;
  uint64_t elements = 0, bytes = 0;
};

// Gradients of rows of a table.
struct LoggedRows {
  uint32_t table = 0;
  double now = 0;
  StepValues step;
  uint64_t count = 0;
  std::string_view ids, gradients;
};
// The value of a shard after a push, in the file of values, or some of its rows.
struct LoggedChange {
  uint32_t shard = 0;
  bool is_whole = false;
  ValueFile::Copy copy;
  uint64_t width = 0, count = 0;
  std::string_view indices, content;
};
struct LoggedEdit {
  uint32_t table = 0;
  EditKind kind = EditKind::kRemove;
  double now = 0;
  uint64_t count = 0;
  std::string_view ids, used, counts, content;
};

// A record whose numbers make sense. It points into the file's memory.
struct LogRecord {
  RecordKind kind = RecordKind::kTable;
  Pusher pusher;                        // of a push or an edit
  std::vector<LoggedRows> rows;         // of a push
  std::vector<LoggedChange> changes;    // of a push of data tasks
  std::vector<TaskPosition> positions;  // the same
  LoggedEdit edit;
};

class LogDecoder {
 public:
  explicit LogDecoder(const RedoLog::Reader& reader) : reader_(reader) {}

  // Fails if the record cannot be used; the message names the field and the expected value. A
  // description that cannot be used keeps its number.
  Status Decode(RecordKind kind, std::string_view meta, std::string_view arrays, LogRecord* record);

  // By number; nothing for a description that was left out.
  const std::vector<std::optional<DescribedTable>>& tables() const { return tables_; }
  const std::vector<std::optional<DescribedShard>>& shards() const { return shards_; }

 private:
  Status DecodeTable(std::string_view meta);
  Status DecodeShard(std::string_view meta);
  Status DecodePush(std::string_view meta, std::string_view arrays, LogRecord* record) const;
  Status DecodeEdit(std::string_view meta, std::string_view arrays, LogRecord* record) const;
  Status CheckChange(const LoggedChange& change) const;

  const RedoLog::Reader& reader_;
  std::vector<std::optional<DescribedTable>> tables_;
  std::vector<std::optional<DescribedShard>> shards_;
};

}  // namespace tfdist::ps

#endif  // TFDIST_OPS_CORE_PS_STORE_LOG_DECODER_H_
