// Copies of a table's rows, and rows that are put in place.
#include <algorithm>
#include <cstring>
#include <new>
#include <utility>

#include "core/ps/table/ids_by_server.h"
#include "core/ps/table/table_stripe.h"

namespace tfdist::ps {
namespace {

// Throws if there is no memory; `all` is as it was then.
template <typename T>
void Reserve(size_t more, std::vector<T>* all) {
  const size_t needed = all->size() + more;
  if (needed > all->capacity()) all->reserve(std::max(needed, 2 * all->size()));
}

void Reserve(size_t more, size_t floats, size_t more_removed, SavedRows* rows) {
  Reserve(more, &rows->ids);
  Reserve(more, &rows->used);
  Reserve(more, &rows->counts);
  Reserve(more * floats, &rows->content);
  Reserve(more_removed, &rows->removed);
}

template <typename T>
void AppendTo(std::vector<T>* all, const std::vector<T>& more) {
  all->insert(all->end(), more.begin(), more.end());
}

void Append(const SavedRows& more, SavedRows* rows) {
  AppendTo(&rows->ids, more.ids);
  AppendTo(&rows->used, more.used);
  AppendTo(&rows->counts, more.counts);
  AppendTo(&rows->content, more.content);
  AppendTo(&rows->removed, more.removed);
}

}  // namespace

SavedRows Table::NewRows(double now, const int64_t* ids, size_t count, const float* values) const {
  SavedRows rows;
  rows.ids.assign(ids, ids + count);
  rows.used.assign(count, Ticks(now));
  rows.counts.assign(count, 0);
  rows.content.resize(count * content_floats_);
  for (size_t i = 0; i < count; ++i) {
    float* const content = rows.content.data() + i * content_floats_;
    std::copy_n(values + i * config_.width, config_.width, content);
    FillSlots(content + config_.width);
  }
  return rows;
}

// Keeps the row for the copy that is being taken. Without memory it is the copy that fails, not the
// request that changes the row.
void Table::WillChange(Stripe* stripe, uint32_t row) const {
  stripe->changed.Set(row);
  if (!stripe->needed.Get(row)) return;
  try {
    Keep(stripe, row, &stripe->kept);
    stripe->needed.Clear(row);
  } catch (const std::bad_alloc&) {
    stripe->needed = {};
    stripe->kept = {};
    stripe->copy_lacks_rows = true;
  }
}

void Table::Keep(Stripe* stripe, uint32_t row, SavedRows* rows) const {
  tfdist::ps::Reserve(1, content_floats_, 0, rows);
  const Rows::Head& head = stripe->rows.head(row);
  rows->ids.push_back(head.id);
  rows->used.push_back(head.used);
  rows->counts.push_back(head.count);
  const float* const content = Content(stripe, row);
  rows->content.insert(rows->content.end(), content, content + content_floats_);
}

void Table::BeginSave(bool changed_only) {
  saved_step_ = {learning_rate_, last_step_};
  for (const auto& stripe : stripes_) {
    const std::lock_guard<std::mutex> lock(stripe->mutex);
    const bool all = !changed_only || !stripe->is_saved;
    // What may fail comes first.
    RowBits fresh, in_use;
    fresh.Cover(stripe->rows.capacity());
    if (all) in_use = RowBits(stripe->rows.in_use());
    stripe->kept = {};
    stripe->cursor = 0;
    stripe->copy_lacks_rows = !all && stripe->removed_lacks_rows;
    RowBits changed = std::exchange(stripe->changed, std::move(fresh));
    if (all) {
      stripe->needed = std::move(in_use);
      stripe->removed.clear();
      stripe->removed_lacks_rows = false;
    } else {
      stripe->needed = std::move(changed);
      stripe->kept.removed = std::exchange(stripe->removed, {});
    }
    stripe->is_saved = true;
  }
}

void Table::EndSave() {
  for (const auto& stripe : stripes_) {
    const std::lock_guard<std::mutex> lock(stripe->mutex);
    stripe->needed = {};
    stripe->kept = {};
  }
}

bool Table::NextSave(size_t most, SavedRows* rows) {
  for (const auto& stripe : stripes_) {
    const std::lock_guard<std::mutex> lock(stripe->mutex);
    if (stripe->copy_lacks_rows) throw std::bad_alloc();
    const SavedRows& kept = stripe->kept;
    if (!kept.ids.empty() || !kept.removed.empty()) {
      tfdist::ps::Reserve(kept.ids.size(), content_floats_, kept.removed.size(), rows);
      Append(kept, rows);
      stripe->kept = {};
      return true;
    }
    size_t count = 0;
    for (; count < most; ++count) {
      stripe->cursor = stripe->needed.Next(stripe->cursor);
      if (stripe->cursor == Rows::kNone) break;
      Keep(stripe.get(), stripe->cursor, rows);
      stripe->needed.Clear(stripe->cursor);
    }
    if (count > 0) return true;
  }
  return false;
}

// The cursor is a stripe's number above the number of a row.
bool Table::Dump(size_t most, uint64_t* cursor, SavedRows* rows) const {
  const size_t before = rows->ids.size();
  while (*cursor >> 32 < kStripes) {
    Stripe* const stripe = stripes_[*cursor >> 32].get();
    const std::lock_guard<std::mutex> lock(stripe->mutex);
    auto row = static_cast<Rows::Number>(*cursor);
    for (; row < stripe->rows.end(); ++row) {
      if (!stripe->rows.in_use(row)) continue;
      if (rows->ids.size() - before == most) break;
      Keep(stripe, row, rows);
    }
    if (row < stripe->rows.end()) {
      *cursor = *cursor >> 32 << 32 | row;
      return true;
    }
    *cursor = ((*cursor >> 32) + 1) << 32;
  }
  return rows->ids.size() > before;
}

double Table::LatestUse(double now) const {
  const uint32_t ticks = Ticks(now);
  bool found = false;
  int32_t latest = INT32_MIN;
  for (const auto& stripe : stripes_) {
    const std::lock_guard<std::mutex> lock(stripe->mutex);
    for (Rows::Number row = 0; row < stripe->rows.end(); ++row) {
      if (!stripe->rows.in_use(row)) continue;
      found = true;
      latest = std::max(latest, static_cast<int32_t>(stripe->rows.head(row).used - ticks));
    }
  }
  return found ? now + latest / kTicks : now;
}

void Table::RestoreStep(const StepValues& step) {
  learning_rate_ = step.learning_rate;
  last_step_ = step.step;
}

Status Table::Restore(const SavedRows& rows) {
  const size_t count = rows.ids.size();
  if (rows.used.size() != count || rows.counts.size() != count ||
      rows.content.size() != count * content_floats_) {
    return Status(StatusCode::kInvalidArgument,
                  StrCat("saved rows: expected ", content_floats_, " numbers for each of ", count,
                         ", received ", rows.content.size()));
  }
  Restore({count, rows.removed.size(), rows.ids.data(), rows.used.data(), rows.counts.data(),
           rows.content.data(), rows.removed.data()});
  return Status();
}

void Table::Restore(const SavedRowsView& rows, int server, int servers) {
  for (size_t i = 0; i < rows.removed_count; ++i) {
    const uint64_t hash = MixId(rows.removed[i]);
    Stripe* const stripe = stripes_[StripeOf(hash)].get();
    const std::lock_guard<std::mutex> lock(stripe->mutex);
    const Rows::Number row = stripe->rows.Find(rows.removed[i], hash);
    if (row != Rows::kNone) Remove(stripe, row);
  }
  for (size_t i = 0; i < rows.count; ++i) {
    const int64_t id = rows.ids[i];
    if (servers > 1 && ServerOfId(id, servers) != server) continue;
    const uint64_t hash = MixId(id);
    Stripe* const stripe = stripes_[StripeOf(hash)].get();
    const std::lock_guard<std::mutex> lock(stripe->mutex);
    Rows::Number row = stripe->rows.Find(id, hash);
    if (row == Rows::kNone) row = Insert(stripe, id, hash);
    WillChange(stripe, row);
    stripe->rows.head(row) = {id, rows.used[i], rows.counts[i]};
    std::memcpy(Content(stripe, row), rows.content + i * content_floats_,
                content_floats_ * sizeof(float));
  }
}

}  // namespace tfdist::ps
