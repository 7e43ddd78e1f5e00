// A part of a table: the rows whose ids hash to it. What the parts of `Table` share.
#ifndef TFDIST_OPS_CORE_PS_TABLE_TABLE_STRIPE_H_
#define TFDIST_OPS_CORE_PS_TABLE_TABLE_STRIPE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "core/ps/table/count_min_sketch.h"
#include "core/ps/table/row_bits.h"
#include "core/ps/table/rows.h"
#include "core/ps/table/table.h"

namespace tfdist::ps {

inline constexpr size_t kStripes = 16;
inline constexpr double kTicks = 16;  // per second; they begin anew after eight years

inline size_t StripeOf(uint64_t hash) { return hash >> 40 & (kStripes - 1); }
inline uint32_t Ticks(double seconds) {
  return static_cast<uint32_t>(static_cast<uint64_t>(seconds * kTicks));
}

struct Table::Stripe {
  Stripe(const TableConfig& config, size_t content_floats)
      : rows(content_floats * sizeof(float)), random(config.initializer.seed) {
    if (config.min_count > 1) {
      sightings = std::make_unique<CountMinSketch>();
      charge.Grow(sightings->bytes(), /*within_budget=*/false);
    }
  }

  std::mutex mutex;
  Rows rows;
  std::unique_ptr<CountMinSketch> sightings;    // of ids without a row
  MemoryCharge charge{MemoryUse::kPersistent};  // of sightings
  uint64_t random;
  TableStats stats;

  RowBits changed;               // since the last copy was begun
  std::vector<int64_t> removed;  // since then
  bool is_saved = false;         // a copy was begun before: `changed` and `removed` mean something
  // The copy that is being taken: the rows it still needs, from `cursor` on, and those kept for it.
  RowBits needed;
  uint32_t cursor = 0;
  SavedRows kept;
  bool copy_lacks_rows = false;     // there was no memory to keep one
  bool removed_lacks_rows = false;  // the same of `removed`
};

}  // namespace tfdist::ps

#endif  // TFDIST_OPS_CORE_PS_TABLE_TABLE_STRIPE_H_
