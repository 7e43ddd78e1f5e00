// The memory of a table: what it counts, and what is allocated before a request changes anything.
#include <algorithm>
#include <mutex>
#include <new>

#include "core/ps/table/table_batch.h"
#include "core/ps/table/table_stripe.h"

namespace tfdist::ps {
namespace {

constexpr size_t kPartAhead = 16;  // of a stripe's rows, this part may be spare ones

}  // namespace

void Table::ChargeTo(std::shared_ptr<MemoryBudget> budget) {
  for (const auto& stripe : stripes_) {
    const std::lock_guard<std::mutex> lock(stripe->mutex);
    stripe->rows.ChargeTo(budget);
    stripe->charge.SetBudget(budget);
  }
  budget_ = std::move(budget);
}

uint64_t Table::counted_bytes() const {
  uint64_t bytes = 0;
  for (const auto& stripe : stripes_) {
    const std::lock_guard<std::mutex> lock(stripe->mutex);
    bytes += stripe->rows.counted_bytes() + stripe->charge.bytes();
  }
  return bytes;
}

std::unique_ptr<Table::Batch> Table::Prepare(const int64_t* ids, size_t count, Makes makes,
                                             bool within_budget) {
  auto batch = std::make_unique<Batch>(ids, count);
  if (makes == Makes::kNone) return batch;
  batch->room().table_ = this;
  for (size_t i = 0; i < kStripes; ++i) {
    if (batch->Has(i)) MakeRoom(i, makes, within_budget, batch.get());
  }
  return batch;
}

void Table::MakeRoom(size_t number, Makes makes, bool within_budget, Batch* batch) {
  Stripe* const stripe = stripes_[number].get();
  // With a limit, rows are evicted when the table has one more than that.
  size_t most = batch->count(number);
  if (config_.max_rows > 0) {
    most = std::min<uint64_t>(most, config_.max_rows - std::min(config_.max_rows, row_count()) + 1);
  }
  const auto promised = [&](size_t rows) {
    if (!stripe->rows.Promise(rows)) return false;
    batch->room().rows_[number] += static_cast<uint32_t>(rows);
    return true;
  };
  // As if no id had a row, because it is costly to know, and without the lock.
  if (promised(most)) return;
  const std::lock_guard<std::mutex> lock(stripe->mutex);
  const auto spare_for = [&](size_t rows) {
    return stripe->rows.spare() + rows - std::min<int64_t>(rows, stripe->rows.unpromised());
  };
  const auto promise = [&](size_t rows) {
    while (!promised(rows)) Reserve(stripe, spare_for(rows), within_budget);
  };
  // Where it takes little memory, a table that has stopped growing keeps this much room, and no
  // request has to look again.
  const size_t all = spare_for(most);
  const bool is_little =
      all <= std::max(stripe->rows.slab_rows(), stripe->rows.size() / kPartAhead);
  if (is_little && (!within_budget || budget_ == nullptr ||
                    budget_->HasRoom(stripe->rows.BytesToReserve(all), MemoryUse::kPersistent))) {
    try {
      return promise(most);
    } catch (const std::bad_alloc&) {  // perhaps fewer fit
    }
  }
  size_t missing = 0;
  batch->Each(number, stripe->rows, 0, [&](size_t, int64_t id, uint64_t hash) {
    if (stripe->rows.Find(id, hash) != Rows::kNone) return;
    missing += makes == Makes::kAll || WouldAdmit(*stripe, hash) ? 1 : 0;
  });
  if (missing > 0) promise(std::min(missing, most));
}

void Table::Reserve(Stripe* stripe, size_t rows, bool within_budget) {
  stripe->rows.Reserve(rows, within_budget);
  stripe->changed.Cover(stripe->rows.capacity());
}

// Whether an id might get a row when it is seen once more.
bool Table::WouldAdmit(const Stripe& stripe, uint64_t hash) const {
  return stripe.sightings == nullptr || stripe.sightings->Count(hash) + 1u >= config_.min_count;
}

}  // namespace tfdist::ps
