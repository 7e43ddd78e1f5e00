// The ids of a request by the stripes that hold them, and the memory that their rows may need.
#ifndef TFDIST_OPS_CORE_PS_TABLE_TABLE_BATCH_H_
#define TFDIST_OPS_CORE_PS_TABLE_TABLE_BATCH_H_

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <utility>
#include <vector>

#include "core/ps/table/rows.h"
#include "core/ps/table/table_stripe.h"

namespace tfdist::ps {

// How many spare rows the stripes of a table keep for a request in progress. The table outlives it.
class Table::Room {
 public:
  Room() = default;
  ~Room() {
    for (size_t i = 0; i < kStripes; ++i) {
      if (rows_[i] > 0) table_->stripes_[i]->rows.TakeBack(rows_[i]);
    }
  }
  Room(Room&& other) noexcept { Add(std::move(other)); }
  Room& operator=(Room&&) = delete;

  // Takes over another one, of the same table.
  void Add(Room&& other) noexcept {
    if (other.table_ != nullptr) table_ = other.table_;
    for (size_t i = 0; i < kStripes; ++i) rows_[i] += std::exchange(other.rows_[i], 0);
  }

 private:
  friend class Table;

  Table* table_ = nullptr;
  std::array<uint32_t, kStripes> rows_{};
};

class Table::Batch {
 public:
  Batch(const int64_t* ids, size_t count) : ids_(ids), hashes_(count), order_(count) {
    for (size_t i = 0; i < count; ++i) {
      hashes_[i] = MixId(ids[i]);
      ++ends_[StripeOf(hashes_[i]) + 1];
    }
    std::partial_sum(ends_.begin(), ends_.end(), ends_.begin());
    std::array<size_t, kStripes> next;
    std::copy_n(ends_.begin(), kStripes, next.begin());
    for (size_t i = 0; i < count; ++i) order_[next[StripeOf(hashes_[i])]++] = i;
  }

  // Calls use(place in the request, id, hash) for each id of a stripe, whose lock is held; it will
  // use so many floats of each row.
  template <typename Use>
  void Each(size_t stripe, const Rows& rows, size_t floats, const Use& use) const {
    const size_t begin = ends_[stripe], end = ends_[stripe + 1];
    for (size_t i = begin; i < end; ++i) {
      if (i + 2 * kAhead < end) rows.PrefetchIndex(hashes_[order_[i + 2 * kAhead]]);
      if (i + kAhead < end) {
        rows.PrefetchRow(hashes_[order_[i + kAhead]], floats * sizeof(float));
      }
      use(order_[i], ids_[order_[i]], hashes_[order_[i]]);
    }
  }
  size_t count(size_t stripe) const { return ends_[stripe + 1] - ends_[stripe]; }
  bool Has(size_t stripe) const { return count(stripe) > 0; }
  Room& room() { return room_; }

 private:
  static constexpr size_t kAhead = 8;  // rows fetched ahead of the one that is worked on

  const int64_t* const ids_;
  std::vector<uint64_t> hashes_;
  std::vector<size_t> order_;
  std::array<size_t, kStripes + 1> ends_{};
  Room room_;
};

}  // namespace tfdist::ps

#endif  // TFDIST_OPS_CORE_PS_TABLE_TABLE_BATCH_H_
