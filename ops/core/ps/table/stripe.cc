#include "core/ps/table/stripe.h"

#include <algorithm>
#include <cstring>
#include <new>

namespace tfdist::ps {
namespace {

constexpr int kEvictionCandidates = 16;      // rows that are compared to evict one
constexpr RowMap::Row kRowsPerLock = 10000;  // rows that are swept under one lock

}  // namespace

bool RowLimit::RemoveExcess() {
  if (max_rows_ == 0) return false;
  uint64_t count = count_.load(std::memory_order_relaxed);
  while (count > max_rows_) {
    if (count_.compare_exchange_weak(count, count - 1, std::memory_order_relaxed)) return true;
  }
  return false;
}

Stripe::Stripe(size_t index, const TableConfig& config, const RowOptimizer& optimizer,
               RowLimit* limit, RowPromises* promises)
    : index_(index),
      config_(config),
      optimizer_(optimizer),
      limit_(limit),
      promises_(promises),
      rows_(optimizer.content_floats() * sizeof(float)),
      snapshot_(&rows_, optimizer.content_floats()),
      random_(config.initializer.seed) {
  if (config.min_count > 1) {
    sketch_ = std::make_unique<CountMinSketch>();
    charge_.Grow(sketch_->bytes(), /*within_budget=*/false);
  }
}

RowMap::Row Stripe::Create(int64_t id, uint64_t hash) {
  RowMap::Row row = RowMap::kNone;
  try {
    row = Insert(id, hash);
  } catch (const std::bad_alloc&) {
    return row;
  }
  float* const value = content(row);
  config_.initializer.Fill(id, config_.width, value);
  optimizer_.FillSlots(value + config_.width);
  snapshot_.BeforeChange(row);
  ++stats_.created;
  KeepLimit(row);
  return row;
}

// Throws std::bad_alloc.
RowMap::Row Stripe::Insert(int64_t id, uint64_t hash) {
  if (rows_.spare() == 0) Reserve(1, /*within_budget=*/false);
  const RowMap::Row row = rows_.Insert(id, hash);
  SetSpare();
  limit_->Add();
  return row;
}

bool Stripe::Admits(uint64_t hash) {
  if (sketch_ != nullptr && sketch_->Add(hash) < config_.min_count) return false;
  if (config_.probability == 1) return true;
  const uint64_t random = MixId(static_cast<int64_t>(random_++));
  return static_cast<double>(random >> 11) * 0x1p-53 < config_.probability;
}

bool Stripe::MayAdmit(uint64_t hash) const {
  return sketch_ == nullptr || sketch_->Count(hash) + 1u >= config_.min_count;
}

void Stripe::MakePendingSteps(RowMap::Row row) {
  float* const values = content(row);
  const std::optional<int64_t> step = optimizer_.PendingStep(values);
  if (!step) return;
  snapshot_.BeforeChange(row);
  optimizer_.CatchUp(values, *step);
}

void Stripe::Step(RowMap::Row row, const float* gradient, const StepValues& step) {
  snapshot_.BeforeChange(row);
  optimizer_.Step(content(row), gradient, step);
}

void Stripe::Write(const RowMap::Header& header, uint64_t hash, const float* content,
                   bool keeps_limit) {
  RowMap::Row row = rows_.Find(header.id, hash);
  const bool is_new = row == RowMap::kNone;
  if (is_new) row = Insert(header.id, hash);
  snapshot_.BeforeChange(row);
  rows_.header(row) = header;
  std::memcpy(rows_.content(row), content, optimizer_.content_floats() * sizeof(float));
  if (is_new && keeps_limit) KeepLimit(row);
}

void Stripe::WriteValue(int64_t id, uint64_t hash, uint32_t ticks, const float* value) {
  RowMap::Row row = rows_.Find(id, hash);
  if (row == RowMap::kNone) {
    row = Create(id, hash);
    if (row == RowMap::kNone) throw std::bad_alloc();
  } else {
    CatchUp(row);
  }
  snapshot_.BeforeChange(row);
  rows_.header(row).used = ticks;
  std::copy_n(value, config_.width, content(row));
}

void Stripe::Remove(RowMap::Row row) {
  Erase(row);
  limit_->Remove();
}

void Stripe::Erase(RowMap::Row row) {
  snapshot_.BeforeRemoval(row);
  rows_.Erase(row);
  SetSpare();
}

void Stripe::Clear() {
  for (RowMap::Row row = 0; row < rows_.end(); ++row) {
    if (rows_.in_use(row)) Remove(row);
  }
  if (sketch_ != nullptr) sketch_->Clear();
}

// Evicts the least recently used, or the least frequently used, of some rows at random.
void Stripe::EvictOne(RowMap::Row spared) {
  RowMap::Row victim = RowMap::kNone;
  for (int compared = 0; compared < kEvictionCandidates; ++compared) {
    auto row = static_cast<RowMap::Row>(MixId(static_cast<int64_t>(random_++)) % rows_.end());
    // The next row that is in use: where most rows were erased, few numbers are.
    while (row == spared || !rows_.in_use(row)) row = row + 1 == rows_.end() ? 0 : row + 1;
    if (victim == RowMap::kNone) {
      victim = row;
      continue;
    }
    const RowMap::Header &candidate = rows_.header(row), &worst = rows_.header(victim);
    const bool is_worse = config_.policy == EvictionPolicy::kLru
                              ? static_cast<int32_t>(candidate.used - worst.used) < 0
                              : candidate.count < worst.count;
    if (is_worse) victim = row;
  }
  Erase(victim);
  ++stats_.evicted_for_room;
}

void Stripe::KeepLimit(RowMap::Row spared) {
  while (rows_.size() > 1 && limit_->RemoveExcess()) EvictOne(spared);
}

bool Stripe::EvictExcess() {
  if (rows_.size() == 0 || !limit_->RemoveExcess()) return false;
  EvictOne(RowMap::kNone);
  return true;
}

void Stripe::Sweep(uint32_t ticks) {
  for (RowMap::Row first = 0; SweepFrom(first, ticks); first += kRowsPerLock) {
  }
}

// Returns whether there are more rows.
bool Stripe::SweepFrom(RowMap::Row first, uint32_t ticks) {
  const std::lock_guard<std::mutex> lock(mutex);
  const RowMap::Row end = std::min(rows_.end(), first + kRowsPerLock);
  for (RowMap::Row row = first; row < end; ++row) {
    if (!rows_.in_use(row)) continue;
    const double unused = static_cast<int32_t>(ticks - rows_.header(row).used) / kTicks;
    if (config_.ttl_seconds > 0 && unused > config_.ttl_seconds) {
      Remove(row);
      ++stats_.evicted_by_age;
      continue;
    }
    if (config_.min_norm == 0) continue;
    const float* const value = content(row);
    double squares = 0;
    for (size_t i = 0; i < config_.width; ++i) squares += static_cast<double>(value[i]) * value[i];
    if (squares >= config_.min_norm * config_.min_norm) continue;
    Remove(row);
    ++stats_.evicted_by_norm;
  }
  return end < rows_.end();
}

void Stripe::Reserve(size_t count, bool within_budget) {
  rows_.Reserve(count, within_budget);
  SetSpare();
  snapshot_.Cover();
}

void Stripe::ChargeTo(const std::shared_ptr<MemoryBudget>& budget) {
  rows_.ChargeTo(budget);
  charge_.SetBudget(budget);
}

void Stripe::AddStats(TableStats* all) const {
  all->rows += rows_.size();
  all->bytes += rows_.bytes() + snapshot_.bytes() + (sketch_ == nullptr ? 0 : sketch_->bytes());
  all->lookups += stats_.lookups;
  all->hits += stats_.hits;
  all->created += stats_.created;
  all->updates += stats_.updates;
  all->lost_updates += stats_.lost_updates;
  all->evicted_for_room += stats_.evicted_for_room;
  all->evicted_by_age += stats_.evicted_by_age;
  all->evicted_by_norm += stats_.evicted_by_norm;
}

}  // namespace tfdist::ps
