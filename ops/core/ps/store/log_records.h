// The format of a redo log's file: the magic, then records without gaps. Each record is a header,
// fields (`meta`), and arrays, whose sizes are in the fields.
#ifndef TFDIST_OPS_CORE_PS_STORE_LOG_RECORDS_H_
#define TFDIST_OPS_CORE_PS_STORE_LOG_RECORDS_H_

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace tfdist::ps {

inline constexpr char kLogMagic[] = "tfdist row log 2";
inline constexpr size_t kLogMagicBytes = sizeof(kLogMagic) - 1;
inline constexpr char kValuesSuffix[] = ".values";  // of the file of values beside a log

// Descriptions of tables and shards number these in their order: other records name the number.
enum class RecordKind : uint32_t {
  kTable = 1,
  kPush = 2,
  kEdit = 3,
  kTaskPush = 4,  // a push that has trained records of data tasks
  kShard = 5,
};

struct RecordHeader {
  RecordKind kind = RecordKind::kTable;
  uint32_t meta_bytes = 0;
  uint64_t array_bytes = 0;
  uint64_t checksum = 0;  // of the rest of the header, and of the record
};

uint64_t ChecksumOf(const RecordHeader& header, const std::vector<iovec>& pieces);

}  // namespace tfdist::ps

#endif  // TFDIST_OPS_CORE_PS_STORE_LOG_RECORDS_H_
