#include "core/ps/client/lookups/prefetches.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "core/ps/table/row_map.h"

namespace tfdist::ps {
namespace {

constexpr uint64_t kMaxStepsBehind = 1;  // rows may lack updates of these steps

uint64_t HashOf(const std::vector<int64_t>& ids) {
  uint64_t hash = ids.size();
  for (const int64_t id : ids) hash = MixId(static_cast<int64_t>(hash) ^ id);
  return hash;
}

Status PrefetchCancelled() { return Status(StatusCode::kCancelled, "a prefetch was cancelled"); }

}  // namespace

struct Prefetches::Entry {
  TableLookup lookup;
  size_t bytes = 0;
  uint64_t hash = 0;
  bool used = false;
  // Of a lookup that waits for the rows.
  Memory to;
  ps::Done done;
};

struct Prefetches::Batch {
  uint64_t owner = 0;
  bool training = false;
  std::vector<Entry> entries;
  ps::Done begun;
  enum class State { kNew, kWaiting, kRequested, kCancelled } state = State::kNew;
  bool superseded = false;  // a later owner has one of its tables
  uint64_t request_step = 0;
  bool ended = false;  // with `status`
  Status status;
};

Prefetches::BatchPtr Prefetches::Make(uint64_t owner, std::vector<TableLookup> lookups,
                                      const std::vector<size_t>& widths, bool training) {
  auto batch = std::make_shared<Batch>();
  batch->owner = owner;
  batch->training = training;
  for (size_t i = 0; i < lookups.size(); ++i) {
    Entry entry;
    entry.hash = HashOf(lookups[i].ids);
    entry.bytes = lookups[i].ids.size() * widths[i] * sizeof(float);
    entry.lookup = std::move(lookups[i]);
    batch->entries.push_back(std::move(entry));
  }
  return batch;
}

void Prefetches::Begin(const BatchPtr& batch, ps::Done done) {
  std::vector<BatchPtr> ready;
  bool waits = false;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!closed_ && batch->state == Batch::State::kNew) {
      batch->begun = std::exchange(done, nullptr);
      batch->state = Batch::State::kWaiting;
      any_ = true;
      waiting_.push_back(batch);
      ready = TakeReady();
      waits = batch->state == Batch::State::kWaiting;
    }
  }
  if (done != nullptr) return done(PrefetchCancelled());
  Request(ready);
  if (waits) later_(max_wait_seconds_, [this, batch] { StopWaiting(batch); });
}

void Prefetches::StopWaiting(const BatchPtr& batch) {
  std::vector<BatchPtr> ready;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (batch->state != Batch::State::kWaiting) return;
    for (const Entry& entry : batch->entries) by_table_.erase(entry.lookup.table);
    ready = TakeReady();
  }
  Request(ready);
}

void Prefetches::Cancel(const BatchPtr& batch) {
  std::vector<BatchPtr> ready;
  ps::Done begun;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (batch->state == Batch::State::kRequested) return;
    batch->state = Batch::State::kCancelled;
    begun = std::exchange(batch->begun, nullptr);
    waiting_.remove(batch);
    ready = TakeReady();
  }
  if (begun != nullptr) begun(PrefetchCancelled());
  Request(ready);
}

// Removes the batches that need not wait: they own their tables now, or are superseded.
std::vector<Prefetches::BatchPtr> Prefetches::TakeReady() {
  std::vector<BatchPtr> ready;
  for (auto next = waiting_.begin(); next != waiting_.end();) {
    const BatchPtr batch = *next;
    bool waits = false, late = false;
    for (const Entry& entry : batch->entries) {
      const auto found = by_table_.find(entry.lookup.table);
      if (found == by_table_.end()) continue;
      waits = waits || found->second->owner == batch->owner;
      late = late || found->second->owner > batch->owner;
    }
    if (waits && !late) {
      ++next;
      continue;
    }
    next = waiting_.erase(next);
    batch->state = Batch::State::kRequested;
    ready.push_back(batch);
    batch->superseded = late;
    if (late) continue;
    batch->request_step = step_;
    for (Entry& entry : batch->entries) {
      const BatchPtr other = std::exchange(by_table_[entry.lookup.table], batch);
      if (other != nullptr && other != batch) GiveUp(other);
      const BlockPtr rows = pool_->AllocateAtLeast(entry.bytes);
      entry.lookup.rows = {rows->data(), rows};
    }
    counts_.requested += batch->entries.size();
  }
  return ready;
}

void Prefetches::Request(const std::vector<BatchPtr>& batches) {
  for (const BatchPtr& batch : batches) {
    std::vector<TableLookup> lookups;
    for (const Entry& entry : batch->entries) lookups.push_back(entry.lookup);
    const ps::Done begun = std::exchange(batch->begun, nullptr);
    if (batch->superseded) {
      begun(Status());
      continue;
    }
    send_(std::move(lookups), batch->training,
          [this, batch](const Status& status) { End(batch, status); });
    begun(Status());
  }
}

void Prefetches::End(const BatchPtr& batch, const Status& status) {
  std::vector<Entry*> awaited;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    batch->ended = true;
    batch->status = status;
    for (Entry& entry : batch->entries) {
      if (entry.done != nullptr) awaited.push_back(&entry);
    }
  }
  for (Entry* entry : awaited) {
    if (status.ok()) std::memcpy(entry->to.data, entry->lookup.rows.data, entry->bytes);
    entry->to = {};
    std::exchange(entry->done, nullptr)(status);
  }
}

bool Prefetches::Take(const TableLookup& lookup, bool training, ps::Done done) {
  std::vector<BatchPtr> ready;
  BatchPtr batch;
  Entry* entry = nullptr;
  bool arrived = false;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto found = by_table_.find(lookup.table);
    if (found == by_table_.end() || found->second->training != training) return false;
    batch = found->second;
    const uint64_t hash = HashOf(lookup.ids);
    for (Entry& each : batch->entries) {
      if (each.used || each.hash != hash || each.lookup.table != lookup.table ||
          each.lookup.wire != lookup.wire || each.lookup.ids != lookup.ids) {
        continue;
      }
      entry = &each;
      break;
    }
    if (entry == nullptr || (batch->ended && !batch->status.ok())) return false;
    entry->used = true;
    ++counts_.used;
    arrived = batch->ended;
    if (!arrived) {
      entry->to = lookup.rows;
      entry->done = std::move(done);
    }
    if (std::all_of(batch->entries.begin(), batch->entries.end(),
                    [](const Entry& each) { return each.used; })) {
      GiveUp(batch);
      ready = TakeReady();
    }
  }
  Request(ready);
  if (arrived) {
    std::memcpy(lookup.rows.data, entry->lookup.rows.data, entry->bytes);
    done(Status());
  }
  return true;
}

void Prefetches::GiveUp(const BatchPtr& batch) {
  for (auto next = by_table_.begin(); next != by_table_.end();) {
    next = next->second == batch ? by_table_.erase(next) : std::next(next);
  }
}

void Prefetches::EndStep() {
  std::vector<BatchPtr> ready;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    ++step_;
    if (by_table_.empty()) return;
    for (auto next = by_table_.begin(); next != by_table_.end();) {
      const bool stale = step_ - next->second->request_step > kMaxStepsBehind;
      next = stale ? by_table_.erase(next) : std::next(next);
    }
    ready = TakeReady();
  }
  Request(ready);
}

void Prefetches::Forget(int table) {
  std::vector<BatchPtr> ready;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto found = by_table_.find(table);
    if (found == by_table_.end()) return;
    const BatchPtr batch = found->second;
    GiveUp(batch);
    ready = TakeReady();
  }
  Request(ready);
}

void Prefetches::Close() {
  std::list<BatchPtr> waiting;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    closed_ = true;
    by_table_.clear();
    waiting = waiting_;
  }
  for (const BatchPtr& batch : waiting) Cancel(batch);
}

Prefetches::Counts Prefetches::counts() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return counts_;
}

uint64_t Prefetches::step() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return step_;
}

}  // namespace tfdist::ps
