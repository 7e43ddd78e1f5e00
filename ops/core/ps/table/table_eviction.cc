// Rows that go: for want of room, of use, or of size.
//
// The bound max_rows is for the table, and a stripe evicts only rows of its own, so that no
// insertion takes the lock of another one. A stripe whose first row is made while the table is full
// has none to evict: at most one row for each stripe is above the bound, and goes when its stripe
// inserts again.
#include <algorithm>
#include <new>

#include "core/ps/table/table_stripe.h"

namespace tfdist::ps {
namespace {

constexpr int kEvictionCandidates = 16;  // looked at to evict one
// Rows that are swept while a lock is held.
constexpr Rows::Number kSweptAtOnce = 10000;

}  // namespace

// Of some rows that are taken at random, the one that was used longest ago, or most seldom.
void Table::EvictOne(Stripe* stripe, uint32_t spared) const {
  Rows& rows = stripe->rows;
  Rows::Number victim = Rows::kNone;
  for (int looked = 0; looked < kEvictionCandidates; ++looked) {
    auto row =
        static_cast<Rows::Number>(MixId(static_cast<int64_t>(stripe->random++)) % rows.end());
    // On from there, for where most rows were erased few numbers are in use.
    while (row == spared || !rows.in_use(row)) row = row + 1 == rows.end() ? 0 : row + 1;
    if (victim == Rows::kNone) {
      victim = row;
      continue;
    }
    const Rows::Head &head = rows.head(row), &worst = rows.head(victim);
    const bool worse = config_.policy == EvictionPolicy::kLru
                           ? static_cast<int32_t>(head.used - worst.used) < 0
                           : head.count < worst.count;
    if (worse) victim = row;
  }
  Erase(stripe, victim);
  ++stripe->stats.evicted_for_room;
}

bool Table::TakeExcess() {
  uint64_t count = row_count_.load(std::memory_order_relaxed);
  while (count > config_.max_rows) {
    if (row_count_.compare_exchange_weak(count, count - 1, std::memory_order_relaxed)) return true;
  }
  return false;
}

void Table::KeepBound(Stripe* stripe, uint32_t spared) {
  if (config_.max_rows == 0) return;
  while (stripe->rows.size() > 1 && TakeExcess()) EvictOne(stripe, spared);
}

void Table::EvictExcess() {
  if (config_.max_rows == 0 || row_count() < config_.max_rows + kStripes) return;
  // In turn, so that each stripe loses the same part.
  for (bool evicts = true; evicts;) {
    evicts = false;
    for (const auto& stripe : stripes_) {
      const std::lock_guard<std::mutex> lock(stripe->mutex);
      if (stripe->rows.size() == 0 || !TakeExcess()) continue;
      EvictOne(stripe.get(), Rows::kNone);
      evicts = true;
    }
  }
}

void Table::Sweep(double now) {
  const uint32_t ticks = Ticks(now);
  for (const auto& stripe : stripes_) {
    for (Rows::Number from = 0; Sweep(ticks, from, stripe.get()); from += kSweptAtOnce) {
    }
  }
}

bool Table::Sweep(uint32_t ticks, uint32_t from, Stripe* stripe) {
  const std::lock_guard<std::mutex> lock(stripe->mutex);
  Rows& rows = stripe->rows;
  const Rows::Number end = std::min(rows.end(), from + kSweptAtOnce);
  for (Rows::Number row = from; row < end; ++row) {
    if (!rows.in_use(row)) continue;
    const double unused = static_cast<int32_t>(ticks - rows.head(row).used) / kTicks;
    if (config_.ttl_seconds > 0 && unused > config_.ttl_seconds) {
      Remove(stripe, row);
      ++stripe->stats.evicted_by_age;
      continue;
    }
    if (config_.min_norm == 0) continue;
    const float* const value = Content(stripe, row);
    double squares = 0;
    for (size_t i = 0; i < config_.width; ++i) squares += static_cast<double>(value[i]) * value[i];
    if (squares >= config_.min_norm * config_.min_norm) continue;
    Remove(stripe, row);
    ++stripe->stats.evicted_by_norm;
  }
  return end < rows.end();
}

void Table::Remove(Stripe* stripe, uint32_t row) {
  Erase(stripe, row);
  row_count_.fetch_sub(1, std::memory_order_relaxed);
}

void Table::Erase(Stripe* stripe, uint32_t row) const {
  WillChange(stripe, row);
  stripe->changed.Clear(row);
  if (stripe->is_saved && !stripe->removed_lacks_rows) {
    try {
      stripe->removed.push_back(stripe->rows.head(row).id);
    } catch (const std::bad_alloc&) {  // the next copy of what has changed would lack it
      stripe->removed = {};
      stripe->removed_lacks_rows = true;
    }
  }
  stripe->rows.Erase(row);
}

}  // namespace tfdist::ps
