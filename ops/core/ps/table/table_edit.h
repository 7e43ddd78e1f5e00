// A change of a table's rows outside of training: rows are written or removed.
#ifndef TFDIST_OPS_CORE_PS_TABLE_TABLE_EDIT_H_
#define TFDIST_OPS_CORE_PS_TABLE_TABLE_EDIT_H_

#include <cstddef>
#include <cstdint>

namespace tfdist::ps {

// Python uses the same numbers.
enum class EditKind : uint8_t {
  kRestore = 1,  // writes rows with slots, times of use and counts
  kReplace = 2,  // writes values; resets slots and counts
  kUpsert = 3,   // writes values; rows that exist keep their slots and counts
  kRemove = 4,
  kClear = 5,  // removes all rows
};

// It points to memory of the caller. If an id occurs twice, its last values count.
struct TableEdit {
  EditKind kind = EditKind::kRemove;
  double now = 0;
  size_t count = 0;  // 0 for kClear
  const int64_t* ids = nullptr;
  const uint32_t *used = nullptr, *counts = nullptr;  // kRestore
  const float* content = nullptr;                     // Table::EditFloats of each row
};

}  // namespace tfdist::ps

#endif  // TFDIST_OPS_CORE_PS_TABLE_TABLE_EDIT_H_
