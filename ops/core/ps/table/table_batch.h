// The ids of a request by the stripes that hold them, and the spare rows that they were promised.
#ifndef TFDIST_OPS_CORE_PS_TABLE_TABLE_BATCH_H_
#define TFDIST_OPS_CORE_PS_TABLE_TABLE_BATCH_H_

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <vector>

#include "core/ps/table/row_map.h"
#include "core/ps/table/row_promises.h"
#include "core/ps/table/stripe.h"

namespace tfdist::ps {

// The table and the ids outlive the batch.
class TableBatch {
 public:
  // `stripes` is the number of stripes that the table uses.
  TableBatch(const int64_t* ids, size_t count, size_t stripes)
      : ids_(ids), hashes_(count), order_(count) {
    for (size_t i = 0; i < count; ++i) {
      hashes_[i] = MixId(ids[i]);
      ++ends_[StripeOf(hashes_[i], stripes) + 1];
    }
    std::partial_sum(ends_.begin(), ends_.end(), ends_.begin());
    std::array<size_t, kStripes> next;
    std::copy_n(ends_.begin(), kStripes, next.begin());
    for (size_t i = 0; i < count; ++i) order_[next[StripeOf(hashes_[i], stripes)]++] = i;
  }
  ~TableBatch() {
    if (promises_ != nullptr) promises_->Unpromise(promised_);
  }
  TableBatch(const TableBatch&) = delete;
  TableBatch& operator=(const TableBatch&) = delete;

  // Calls use(index in the request, id, hash) for each id of a stripe, whose lock is held. It will
  // use that many floats of each row.
  template <typename Use>
  void Each(size_t stripe, const RowMap& rows, size_t floats, const Use& use) const {
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

  // Claim spare rows of all stripes, or of one, for as long as the batch lives; false if fewer are
  // free.
  bool Claim(const RowPromises::Counts& counts, RowPromises* promises) {
    if (!promises->Promise(counts)) return false;
    promises_ = promises;
    promised_ = counts;
    return true;
  }
  bool Claim(size_t stripe, size_t count, RowPromises* promises) {
    if (!promises->Promise(stripe, count)) return false;
    promises_ = promises;
    promised_[stripe] += count;
    return true;
  }

 private:
  static constexpr size_t kAhead = 8;  // rows are prefetched that far ahead of their use

  const int64_t* const ids_;
  std::vector<uint64_t> hashes_;
  std::vector<size_t> order_;  // indices of ids, by stripe
  std::array<size_t, kStripes + 1> ends_{};
  RowPromises* promises_ = nullptr;  // null: it was promised nothing
  RowPromises::Counts promised_{};
};

}  // namespace tfdist::ps

#endif  // TFDIST_OPS_CORE_PS_TABLE_TABLE_BATCH_H_
