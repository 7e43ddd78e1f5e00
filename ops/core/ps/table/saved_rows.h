// Rows of a table outside of it: in a snapshot, in a redo log, on their way to another process.
#ifndef TFDIST_OPS_CORE_PS_TABLE_SAVED_ROWS_H_
#define TFDIST_OPS_CORE_PS_TABLE_SAVED_ROWS_H_

#include <cstddef>
#include <cstdint>
#include <vector>

namespace tfdist::ps {

// `content` has the value and the slots of each row, one row after the other.
struct SavedRows {
  std::vector<int64_t> ids;
  std::vector<uint32_t> used, counts;
  std::vector<float> content;
  std::vector<int64_t> removed;  // since the previous snapshot
};

// The same in memory of the caller.
struct SavedRowsView {
  size_t count = 0, removed_count = 0;
  const int64_t* ids = nullptr;
  const uint32_t *used = nullptr, *counts = nullptr;
  const float* content = nullptr;
  const int64_t* removed = nullptr;
};

}  // namespace tfdist::ps

#endif  // TFDIST_OPS_CORE_PS_TABLE_SAVED_ROWS_H_
