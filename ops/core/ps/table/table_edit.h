// A change of a table's rows that is no step of training.
#ifndef TFDIST_OPS_CORE_PS_TABLE_TABLE_EDIT_H_
#define TFDIST_OPS_CORE_PS_TABLE_TABLE_EDIT_H_

#include <cstddef>
#include <cstdint>

namespace tfdist::ps {

// Python numbers them likewise.
enum class EditKind : uint8_t {
  kRestore = 1,  // rows put in place with slots, times of use and counts
  kReplace = 2,  // values put in place; all else as that of new rows
  kUpsert = 3,   // values put in place; rows that exist keep their slots and counts
  kRemove = 4,
  kClear = 5,  // removes all rows
};

// It points to memory of the caller's. An id that occurs twice has its last values.
struct TableEdit {
  EditKind kind = EditKind::kRemove;
  double now = 0;
  size_t count = 0;  // 0 for kClear
  const int64_t* ids = nullptr;
  const uint32_t *used = nullptr, *counts = nullptr;  // kRestore
  const float* content = nullptr;                     // of each row Table::EditFloats
};

}  // namespace tfdist::ps

#endif  // TFDIST_OPS_CORE_PS_TABLE_TABLE_EDIT_H_
