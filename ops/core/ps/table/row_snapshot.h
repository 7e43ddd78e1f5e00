// A snapshot of the rows of a stripe, which is copied bit by bit while the rows change.
//
//   Begin             marks the rows that the snapshot needs: all, or those that changed since the
//                     previous snapshot
//   BeforeChange      copies a row that is still needed, before it changes (copy on write)
//   Next              returns the copies of changed rows first, then the other rows in turn
//
// All calls need the lock of the stripe.
#ifndef TFDIST_OPS_CORE_PS_TABLE_ROW_SNAPSHOT_H_
#define TFDIST_OPS_CORE_PS_TABLE_ROW_SNAPSHOT_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/ps/table/row_bits.h"
#include "core/ps/table/row_map.h"
#include "core/ps/table/saved_rows.h"

namespace tfdist::ps {

// Appends a row, whose content has `floats` numbers. Throws std::bad_alloc; `to` is then unchanged.
void AppendRow(const RowMap& rows, RowMap::Row row, size_t floats, SavedRows* to);

class RowSnapshot {
 public:
  RowSnapshot(const RowMap* rows, size_t content_floats) : rows_(rows), floats_(content_floats) {}

  // Allocates for all rows that have memory. Until there are more, BeforeChange marks a row as
  // changed without an allocation.
  void Cover() { changed_.Cover(rows_->capacity()); }

  // Throws std::bad_alloc; the previous snapshot is then still in progress.
  void Begin(bool changed_only);
  // Appends about `max_rows` rows to `rows`; false if there were no more. Throws std::bad_alloc if
  // there is no memory, or was none for BeforeChange.
  bool Next(size_t max_rows, SavedRows* rows);
  void End();

  // The row is new, or is about to change. If there is no memory to copy it, the snapshot fails,
  // not the request that changes the row.
  void BeforeChange(RowMap::Row row);
  // The row is about to be removed.
  void BeforeRemoval(RowMap::Row row);

  size_t bytes() const { return changed_.bytes() + needed_.bytes(); }

 private:
  const RowMap* const rows_;
  const size_t floats_;

  // Since the last snapshot was begun; without meaning before the first.
  RowBits changed_;
  std::vector<int64_t> removed_;
  bool has_base_ = false;            // a snapshot was begun before
  bool removed_is_partial_ = false;  // there was no memory to append to `removed_`

  // Of the snapshot in progress: the rows that it still needs, from `cursor_` on, and the copies of
  // rows that have changed since Begin.
  RowBits needed_;
  RowMap::Row cursor_ = 0;
  SavedRows copies_;
  bool is_partial_ = false;  // there was no memory for a copy
};

}  // namespace tfdist::ps

#endif  // TFDIST_OPS_CORE_PS_TABLE_ROW_SNAPSHOT_H_
