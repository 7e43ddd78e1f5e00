// Reads a redo log record by record, without understanding their fields.
#ifndef TFDIST_OPS_CORE_PS_STORE_LOG_FILE_H_
#define TFDIST_OPS_CORE_PS_STORE_LOG_FILE_H_

#include <cstdint>
#include <string>
#include <string_view>

#include "core/base/status.h"
#include "core/net/fd.h"
#include "core/ps/store/log_records.h"

namespace tfdist::ps {

class LogFile {
 public:
  // Fails if the file cannot be read or is no log.
  Status Open(const std::string& path);

  enum class Found {
    kRecord,
    kDamage,  // its checksum is another; the next record is where its header says
    kEnd,     // of the file, or of its intact part
  };
  // Reads the next record. Fails if the file cannot be read.
  Status Next(Found* found);

  // At the end: whether a whole record is behind the first byte that is left. Then the log was not
  // cut off there, but is damaged. That record is only searched for, not read: it may be a part of
  // a worker's data.
  bool HasRecordBehind();

  uint64_t offset() const {
    return offset_;
  }  // of that record, or of the bytes behind the last one
  uint64_t left() const { return size_ - offset_; }  // the bytes from there on

  // Of a record, until the next:

  const RecordHeader& header() const { return header_; }
  std::string_view meta() const { return content().substr(0, header_.meta_bytes); }
  std::string_view arrays() const { return content().substr(header_.meta_bytes); }
  uint64_t checksum() const { return checksum_; }  // that it has

 private:
  std::string_view content() const { return content_; }
  Status Read(void* to, size_t bytes);

  std::string path_;
  Fd file_;
  uint64_t size_ = 0, offset_ = 0;
  uint64_t next_ = 0;  // the offset of the next record
  RecordHeader header_;
  std::string content_;
  uint64_t checksum_ = 0;
};

}  // namespace tfdist::ps

#endif  // TFDIST_OPS_CORE_PS_STORE_LOG_FILE_H_
