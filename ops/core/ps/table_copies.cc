// Copies of a table's rows, and rows that are put in place.
#include <algorithm>
#include <cstring>
#include <utility>

#include "core/ps/table_stripe.h"
#include "core/ps/unique_ids.h"

namespace tfdist::ps {
namespace {

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

// Keeps the row for the copy that is being taken.
void Table::WillChange(Stripe* stripe, uint32_t row) const {
  stripe->changed.Set(row);
  if (!stripe->needed.Get(row)) return;
  stripe->needed.Clear(row);
  Keep(stripe, row, &stripe->kept);
}

void Table::Keep(Stripe* stripe, uint32_t row, SavedRows* rows) const {
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
    stripe->kept = {};
    stripe->cursor = 0;
    RowBits changed = std::exchange(stripe->changed, {});
    if (changed_only && stripe->is_saved) {
      stripe->needed = std::move(changed);
      stripe->kept.removed = std::exchange(stripe->removed, {});
    } else {
      stripe->needed = RowBits(stripe->rows.in_use());
      stripe->removed.clear();
    }
    stripe->is_saved = true;
  }
}

bool Table::NextSave(size_t most, SavedRows* rows) {
  for (const auto& stripe : stripes_) {
    const std::lock_guard<std::mutex> lock(stripe->mutex);
    if (!stripe->kept.ids.empty() || !stripe->kept.removed.empty()) {
      Append(std::exchange(stripe->kept, {}), rows);
      return true;
    }
    size_t count = 0;
    for (; count < most; ++count) {
      stripe->cursor = stripe->needed.Next(stripe->cursor);
      if (stripe->cursor == Rows::kNone) break;
      stripe->needed.Clear(stripe->cursor);
      Keep(stripe.get(), stripe->cursor, rows);
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
    if (row != Rows::kNone) Erase(stripe, row);
  }
  for (size_t i = 0; i < rows.count; ++i) {
    const int64_t id = rows.ids[i];
    if (servers > 1 && ServerOfId(id, servers) != server) continue;
    const uint64_t hash = MixId(id);
    Stripe* const stripe = stripes_[StripeOf(hash)].get();
    const std::lock_guard<std::mutex> lock(stripe->mutex);
    Rows::Number row = stripe->rows.Find(id, hash);
    if (row == Rows::kNone) row = stripe->rows.Insert(id, hash);
    WillChange(stripe, row);
    stripe->rows.head(row) = {id, rows.used[i], rows.counts[i]};
    std::memcpy(Content(stripe, row), rows.content + i * content_floats_,
                content_floats_ * sizeof(float));
  }
}

}  // namespace tfdist::ps
