#include "core/ps/table/row_snapshot.h"

#include <algorithm>
#include <new>
#include <utility>

namespace tfdist::ps {
namespace {

// Throws if there is no memory; `list` is then unchanged.
template <typename T>
void ReserveMore(size_t more, std::vector<T>* list) {
  const size_t needed = list->size() + more;
  if (needed > list->capacity()) list->reserve(std::max(needed, 2 * list->size()));
}

void ReserveMore(size_t more, size_t floats, size_t more_removed, SavedRows* rows) {
  ReserveMore(more, &rows->ids);
  ReserveMore(more, &rows->used);
  ReserveMore(more, &rows->counts);
  ReserveMore(more * floats, &rows->content);
  ReserveMore(more_removed, &rows->removed);
}

template <typename T>
void AppendTo(std::vector<T>* list, const std::vector<T>& more) {
  list->insert(list->end(), more.begin(), more.end());
}

void Append(const SavedRows& more, SavedRows* rows) {
  AppendTo(&rows->ids, more.ids);
  AppendTo(&rows->used, more.used);
  AppendTo(&rows->counts, more.counts);
  AppendTo(&rows->content, more.content);
  AppendTo(&rows->removed, more.removed);
}

}  // namespace

void AppendRow(const RowMap& rows, RowMap::Row row, size_t floats, SavedRows* to) {
  ReserveMore(1, floats, 0, to);
  const RowMap::Header& header = rows.header(row);
  to->ids.push_back(header.id);
  to->used.push_back(header.used);
  to->counts.push_back(header.count);
  const auto* const content = reinterpret_cast<const float*>(rows.content(row));
  to->content.insert(to->content.end(), content, content + floats);
}

void RowSnapshot::Begin(bool changed_only) {
  const bool all = !changed_only || !has_base_;
  // Allocations come first: nothing has changed if they fail.
  RowBits fresh, in_use;
  fresh.Cover(rows_->capacity());
  if (all) in_use = RowBits(rows_->in_use());
  copies_ = {};
  cursor_ = 0;
  is_partial_ = !all && removed_is_partial_;
  RowBits changed = std::exchange(changed_, std::move(fresh));
  if (all) {
    needed_ = std::move(in_use);
    removed_.clear();
    removed_is_partial_ = false;
  } else {
    needed_ = std::move(changed);
    copies_.removed = std::exchange(removed_, {});
  }
  has_base_ = true;
}

bool RowSnapshot::Next(size_t max_rows, SavedRows* rows) {
  if (is_partial_) throw std::bad_alloc();
  if (!copies_.ids.empty() || !copies_.removed.empty()) {
    ReserveMore(copies_.ids.size(), floats_, copies_.removed.size(), rows);
    Append(copies_, rows);
    copies_ = {};
    return true;
  }
  size_t count = 0;
  for (; count < max_rows; ++count) {
    cursor_ = needed_.Next(cursor_);
    if (cursor_ == RowMap::kNone) break;
    AppendRow(*rows_, cursor_, floats_, rows);
    needed_.Clear(cursor_);
  }
  return count > 0;
}

void RowSnapshot::End() {
  needed_ = {};
  copies_ = {};
}

void RowSnapshot::BeforeChange(RowMap::Row row) {
  changed_.Set(row);
  if (!needed_.Get(row)) return;
  try {
    AppendRow(*rows_, row, floats_, &copies_);
    needed_.Clear(row);
  } catch (const std::bad_alloc&) {
    End();
    is_partial_ = true;
  }
}

void RowSnapshot::BeforeRemoval(RowMap::Row row) {
  BeforeChange(row);
  changed_.Clear(row);
  if (!has_base_ || removed_is_partial_) return;
  try {
    removed_.push_back(rows_->header(row).id);
  } catch (const std::bad_alloc&) {  // the next snapshot of changes would lack the removal
    removed_ = {};
    removed_is_partial_ = true;
  }
}

}  // namespace tfdist::ps
