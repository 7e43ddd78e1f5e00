// A part of a table: the rows whose ids hash to it, under one lock.
//
// The limit max_rows is for the table, but a stripe evicts only its own rows, so that no insertion
// takes a second lock. A stripe whose first row is created while the table is full has none to
// evict: the table exceeds its limit by at most one row per stripe, until that stripe inserts
// again. A table of fewer than 128 rows has one stripe, and keeps its limit exactly.
#ifndef TFDIST_OPS_CORE_PS_TABLE_STRIPE_H_
#define TFDIST_OPS_CORE_PS_TABLE_STRIPE_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>

#include "core/base/memory_budget.h"
#include "core/ps/table/count_min_sketch.h"
#include "core/ps/table/row_map.h"
#include "core/ps/table/row_optimizer.h"
#include "core/ps/table/row_promises.h"
#include "core/ps/table/row_snapshot.h"
#include "core/ps/table/table_config.h"

namespace tfdist::ps {

inline constexpr double kTicks = 16;  // per second; times of use wrap around after eight years

// A stripe compares its own rows to evict one, so a small table has few of them.
inline size_t StripeCount(uint64_t max_rows) {
  constexpr uint64_t kRowsOfStripe = 64;
  size_t count = kStripes;
  while (max_rows > 0 && count > 1 && max_rows / count < kRowsOfStripe) count /= 2;
  return count;
}
// `stripes` is a power of two.
inline size_t StripeOf(uint64_t hash, size_t stripes) { return hash >> 40 & (stripes - 1); }
inline uint32_t Ticks(double seconds) {
  return static_cast<uint32_t>(static_cast<uint64_t>(seconds * kTicks));
}

struct TableStats {
  uint64_t rows = 0, bytes = 0;
  uint64_t lookups = 0, hits = 0;  // looked-up ids, and how many had a row
  uint64_t created = 0;
  uint64_t updates = 0, lost_updates = 0;  // gradients of rows that were applied, or had no row
  uint64_t evicted_for_room = 0, evicted_by_age = 0, evicted_by_norm = 0;
};

// The number of rows of a table, and its limit. Thread-safe.
class RowLimit {
 public:
  explicit RowLimit(uint64_t max_rows) : max_rows_(max_rows) {}

  uint64_t max_rows() const { return max_rows_; }  // 0: no limit
  uint64_t count() const { return count_.load(std::memory_order_relaxed); }
  void Add() { count_.fetch_add(1, std::memory_order_relaxed); }
  void Remove() { count_.fetch_sub(1, std::memory_order_relaxed); }
  // Whether there are too many rows. Then one is counted off, which the caller has to evict.
  bool RemoveExcess();

 private:
  const uint64_t max_rows_;
  std::atomic<uint64_t> count_{0};
};

// All of it needs the mutex, except Sweep, which takes it.
class Stripe {
 public:
  // `index`: of the stripe in its table.
  Stripe(size_t index, const TableConfig& config, const RowOptimizer& optimizer, RowLimit* limit,
         RowPromises* promises);

  RowMap::Row Find(int64_t id, uint64_t hash) const { return rows_.Find(id, hash); }
  // Creates the row of an id. Returns kNone if there is no memory: requests have reserved it, and
  // need more only if another request has evicted rows since.
  RowMap::Row Create(int64_t id, uint64_t hash);
  // Counts an id without a row as seen. Returns whether it gets a row.
  bool Admits(uint64_t hash);
  // Whether Admits may return true for the id now.
  bool MayAdmit(uint64_t hash) const;

  RowMap::Header& header(RowMap::Row row) { return rows_.header(row); }
  // Its value, and then its slots.
  float* content(RowMap::Row row) { return reinterpret_cast<float*>(rows_.content(row)); }

  // Makes the steps in which the row had no gradient.
  void CatchUp(RowMap::Row row) {
    if (optimizer_.rows_catch_up()) MakePendingSteps(row);
  }
  // Makes a step with the row's gradient.
  void Step(RowMap::Row row, const float* gradient, const StepValues& step);

  // Writes a row with its header and content, and creates it if necessary. Throws std::bad_alloc.
  // With `keeps_limit`, a new row evicts others beyond max_rows.
  void Write(const RowMap::Header& header, uint64_t hash, const float* content, bool keeps_limit);
  // Writes a row's value. A new row gets first slots; another keeps its slots, brought up to the
  // present step as the value is. Throws std::bad_alloc.
  void WriteValue(int64_t id, uint64_t hash, uint32_t ticks, const float* value);

  void Remove(RowMap::Row row);
  void Clear();
  // Evicts a row if the table has too many. Returns whether it did.
  bool EvictExcess();
  // Evicts rows that are unused for too long or have too small a norm. Takes the mutex, for some
  // rows at a time.
  void Sweep(uint32_t ticks);

  // Allocates for `count` more rows. Throws as RowMap::Reserve.
  void Reserve(size_t count, bool within_budget);
  void ChargeTo(const std::shared_ptr<MemoryBudget>& budget);
  uint64_t counted_bytes() const { return rows_.counted_bytes() + charge_.bytes(); }

  const RowMap& rows() const { return rows_; }
  RowSnapshot& snapshot() { return snapshot_; }
  // Statistics; the caller counts lookups and updates. Rows and bytes are current.
  TableStats& stats() { return stats_; }
  void AddStats(TableStats* all) const;

  std::mutex mutex;

 private:
  void MakePendingSteps(RowMap::Row row);
  RowMap::Row Insert(int64_t id, uint64_t hash);
  void SetSpare() { promises_->SetSpare(index_, rows_.spare()); }
  void KeepLimit(RowMap::Row spared);
  void EvictOne(RowMap::Row spared);
  void Erase(RowMap::Row row);  // without counting it off
  bool SweepFrom(RowMap::Row first, uint32_t ticks);

  const size_t index_;
  const TableConfig& config_;
  const RowOptimizer& optimizer_;
  RowLimit* const limit_;
  RowPromises* const promises_;
  RowMap rows_;
  RowSnapshot snapshot_;
  std::unique_ptr<CountMinSketch> sketch_;       // of ids without a row; null if all are admitted
  MemoryCharge charge_{MemoryUse::kPersistent};  // of the sketch
  uint64_t random_;
  TableStats stats_;
};

}  // namespace tfdist::ps

#endif  // TFDIST_OPS_CORE_PS_TABLE_STRIPE_H_
