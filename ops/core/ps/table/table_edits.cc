// Changes of rows that are no steps of training: put in place, removed, and read without a trace.
#include <algorithm>
#include <cstring>
#include <mutex>
#include <new>

#include "core/ps/table/table_batch.h"
#include "core/ps/table/table_stripe.h"

namespace tfdist::ps {

size_t Table::EditFloats(EditKind kind) const {
  switch (kind) {
    case EditKind::kRestore:
      return content_floats_;
    case EditKind::kReplace:
    case EditKind::kUpsert:
      return config_.width;
    case EditKind::kRemove:
    case EditKind::kClear:
      break;
  }
  return 0;
}

void Table::Edit(const TableEdit& edit) {
  switch (edit.kind) {
    case EditKind::kRestore:
      return Put({edit.count, 0, edit.ids, edit.used, edit.counts, edit.content, nullptr});
    case EditKind::kReplace: {
      const SavedRows rows = NewRows(edit.now, edit.ids, edit.count, edit.content);
      return Put({edit.count, 0, edit.ids, rows.used.data(), rows.counts.data(),
                  rows.content.data(), nullptr});
    }
    case EditKind::kUpsert:
      return Upsert(edit);
    case EditKind::kRemove:
      return Restore({0, edit.count, nullptr, nullptr, nullptr, nullptr, edit.ids});
    case EditKind::kClear:
      return Clear();
  }
}

void Table::Put(const SavedRowsView& rows) {
  for (size_t i = 0; i < rows.count; ++i) {
    const uint64_t hash = MixId(rows.ids[i]);
    Stripe* const stripe = stripes_[StripeOf(hash)].get();
    const std::lock_guard<std::mutex> lock(stripe->mutex);
    Rows::Number row = stripe->rows.Find(rows.ids[i], hash);
    const bool is_new = row == Rows::kNone;
    if (is_new) row = Insert(stripe, rows.ids[i], hash);
    WillChange(stripe, row);
    stripe->rows.head(row) = {rows.ids[i], rows.used[i], rows.counts[i]};
    std::memcpy(Content(stripe, row), rows.content + i * content_floats_,
                content_floats_ * sizeof(float));
    if (is_new) KeepBound(stripe, row);
  }
}

void Table::Upsert(const TableEdit& edit) {
  for (size_t i = 0; i < edit.count; ++i) {
    const int64_t id = edit.ids[i];
    const uint64_t hash = MixId(id);
    Stripe* const stripe = stripes_[StripeOf(hash)].get();
    const std::lock_guard<std::mutex> lock(stripe->mutex);
    Rows::Number row = stripe->rows.Find(id, hash);
    if (row == Rows::kNone) {
      row = Make(stripe, id, hash);
      if (row == Rows::kNone) throw std::bad_alloc();
    } else {
      // Slots are to be of the present step, as the value is.
      CatchUp(stripe, row);
    }
    WillChange(stripe, row);
    stripe->rows.head(row).used = Ticks(edit.now);
    std::copy_n(edit.content + i * config_.width, config_.width, Content(stripe, row));
  }
}

void Table::Clear() {
  for (const auto& stripe : stripes_) {
    const std::lock_guard<std::mutex> lock(stripe->mutex);
    for (Rows::Number row = 0; row < stripe->rows.end(); ++row) {
      if (stripe->rows.in_use(row)) Remove(stripe.get(), row);
    }
    if (stripe->sightings != nullptr) stripe->sightings->Clear();
  }
}

void Table::Find(const Batch& batch, uint8_t* found, float* rows) {
  const size_t width = config_.width;
  for (size_t i = 0; i < kStripes; ++i) {
    if (!batch.Has(i)) continue;
    Stripe* const stripe = stripes_[i].get();
    const std::lock_guard<std::mutex> lock(stripe->mutex);
    const size_t floats = rows == nullptr ? 0 : width;
    batch.Each(i, stripe->rows, floats, [&](size_t place, int64_t id, uint64_t hash) {
      const Rows::Number row = stripe->rows.Find(id, hash);
      found[place] = row == Rows::kNone ? 0 : 1;
      if (rows == nullptr) return;
      float* const out = rows + place * width;
      if (row == Rows::kNone) return config_.initializer.Fill(id, width, out);
      CatchUp(stripe, row);
      std::memcpy(out, Content(stripe, row), width * sizeof(float));
    });
  }
}

}  // namespace tfdist::ps
