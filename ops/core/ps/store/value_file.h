// The latest values of shards, in a file beside the redo log. Each shard has two places, which are
// written in turn: while one is written, a record of the log names the other, which is whole. So
// the file stays small, however often the values change.
//
// As with the redo log, written values survive the end of this process, but not a failure of the
// machine. Not thread-safe.
#ifndef TFDIST_OPS_CORE_PS_STORE_VALUE_FILE_H_
#define TFDIST_OPS_CORE_PS_STORE_VALUE_FILE_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <unordered_map>

#include "core/base/block.h"
#include "core/base/status.h"
#include "core/net/fd.h"

namespace tfdist::ps {

class ValueFile {
 public:
  // A copy of a value in the file.
  struct Copy {
    uint64_t offset = 0;
    uint64_t checksum = 0;
  };

  // Forgets all values; the next one is written to a new file.
  void Begin(std::string path);
  bool Has(const void* shard) const { return places_.count(shard) > 0; }
  // Writes a shard's value, which always has the same size. Returns false on failure, with errno.
  bool Write(const void* shard, const char* data, size_t bytes, Copy* copy);
  // `path`: as in Begin. kInvalidArgument: the copy is not there, or damaged; kUnavailable: the
  // file cannot be read.
  static Status Read(const std::string& path, const Copy& copy, size_t bytes, BlockPtr* value);

 private:
  struct Places {
    uint64_t offset = 0;  // of the first one; the other follows
    bool second = false;  // is the next one to write
  };

  std::string path_;
  Fd file_;
  uint64_t end_ = 0;
  std::unordered_map<const void*, Places> places_;
};

}  // namespace tfdist::ps

#endif  // TFDIST_OPS_CORE_PS_STORE_VALUE_FILE_H_
