// Writes redo logs by hand: records with right checksums and any numbers.
#ifndef TFDIST_TESTS_CORE_PS_STORE_LOG_CRAFTER_H_
#define TFDIST_TESTS_CORE_PS_STORE_LOG_CRAFTER_H_

#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "core/base/checksum.h"
#include "core/base/wire.h"
#include "core/math/dtype.h"
#include "core/ps/protocol/message.h"

namespace tfdist::testing {

inline uint64_t ChecksumOfBytes(const std::string& bytes) {
  Checksum sum;
  sum.Add(bytes.data(), bytes.size());
  return sum.value();
}

// The kinds of records.
constexpr uint32_t kTableRecord = 1, kPushRecord = 2, kEditRecord = 3, kTaskPushRecord = 4,
                   kShardRecord = 5;

constexpr char kLogBegin[] = "tfdist row log 2";
constexpr size_t kRecordHead = 4 + 4 + 8 + 8;

inline std::string Record(uint32_t kind, const std::string& meta, const std::string& arrays = "") {
  Writer head;
  head.Put(kind).Put(static_cast<uint32_t>(meta.size())).Put(uint64_t{arrays.size()});
  const std::string begin = head.Take();
  Writer checksum;
  checksum.Put(ChecksumOfBytes(begin + meta + arrays));
  return begin + checksum.Take() + meta + arrays;
}

template <typename T>
std::string ArrayOf(const std::vector<T>& values) {
  return std::string(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T));
}

inline std::string TableDescription(const std::string& name, const ps::TableConfig& config) {
  return Record(kTableRecord, ps::Encode(ps::TableRequest{{{name, config, false}}}));
}
inline std::string ShardDescription(const std::string& name, DType dtype, uint64_t elements) {
  Writer meta;
  meta.PutString(name).Put(dtype).Put(elements);
  return Record(kShardRecord, meta.Take());
}

// The fields of a push, or of an edit.
struct PusherFields {
  uint32_t worker = 0;
  uint64_t process = 7, sequence = 0;
};

struct RowFields {
  uint32_t table = 0;
  uint64_t count = 0;
  double now = 1;
};
struct ChangeFields {
  uint32_t shard = 0;
  bool is_whole = true;
  uint64_t first = 0, second = 0;  // offset and checksum, or width and count
};

inline std::string PushMeta(const PusherFields& pusher, const std::vector<RowFields>& rows) {
  Writer meta;
  meta.Put(pusher.worker).Put(pusher.process).Put(pusher.sequence);
  meta.Put(static_cast<uint32_t>(rows.size()));
  for (const RowFields& each : rows) {
    meta.Put(each.table).Put(each.now).Put(1.0).Put(int64_t{1}).Put(each.count);
  }
  return meta.Take();
}
inline std::string TaskFields(const std::string& task, uint64_t trained,
                              const std::vector<ChangeFields>& changes) {
  Writer meta;
  meta.Put(uint32_t{1}).PutString(task).Put(trained).Put(static_cast<uint32_t>(changes.size()));
  for (const ChangeFields& each : changes) {
    meta.Put(each.shard).Put(each.is_whole).Put(each.first).Put(each.second);
  }
  return meta.Take();
}

// One gradient, of 1, for an id of a table of rows of one number.
inline std::string PushRecordOf(int64_t id, uint64_t sequence = 0, uint32_t table = 0) {
  return Record(kPushRecord, PushMeta({0, 7, sequence}, {{table, 1}}),
                ArrayOf(std::vector<int64_t>{id}) + ArrayOf(std::vector<float>{1}));
}
inline std::string EditMeta(uint32_t table, ps::EditKind kind, uint64_t count, double now = 1) {
  Writer meta;
  meta.Put(uint32_t{0}).Put(uint64_t{7}).Put(uint64_t{0}).Put(table).Put(kind).Put(now).Put(count);
  return meta.Take();
}

}  // namespace tfdist::testing

#endif  // TFDIST_TESTS_CORE_PS_STORE_LOG_CRAFTER_H_
