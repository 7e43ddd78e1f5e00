#include "core/ps/client/lookups/row_cache.h"

#include <algorithm>
#include <cstring>

namespace tfdist::ps {
namespace {

constexpr int kCacheCandidates = 8;               // per eviction
constexpr uint64_t kMaxCachedSteps = UINT32_MAX;  // of the 32 bits of Head::used

}  // namespace

RowCache::RowCache(size_t width, size_t max_rows, uint64_t max_steps)
    : width_(width),
      max_rows_(max_rows),
      max_steps_(std::min(max_steps, kMaxCachedSteps)),
      rows_(width * sizeof(float)) {}

void RowCache::Get(const std::vector<int64_t>& ids, const std::vector<float*>& rows, uint64_t step,
                   std::vector<uint32_t>* missing) {
  const std::lock_guard<std::mutex> lock(mutex_);
  for (size_t i = 0; i < ids.size(); ++i) {
    const RowMap::Row row = rows_.Find(ids[i], MixId(ids[i]));
    if (row == RowMap::kNone || IsStale(rows_.header(row), step)) {
      missing->push_back(static_cast<uint32_t>(i));
      continue;
    }
    RowMap::Header& header = rows_.header(row);
    header.count += header.count < UINT32_MAX ? 1 : 0;
    std::memcpy(rows[i], rows_.content(row), width_ * sizeof(float));
  }
}

void RowCache::Put(const std::vector<int64_t>& ids, const std::vector<float*>& rows,
                   const std::vector<uint32_t>& indices, uint64_t step, uint64_t edition) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (edition != edition_) return;
  for (const uint32_t i : indices) {
    const uint64_t hash = MixId(ids[i]);
    RowMap::Row row = rows_.Find(ids[i], hash);
    if (row == RowMap::kNone) {
      if (rows_.size() >= max_rows_) EvictOne(step);
      row = rows_.Insert(ids[i], hash);
      rows_.header(row) = {ids[i], static_cast<uint32_t>(step), 1};
    } else {
      RowMap::Header& header = rows_.header(row);
      // Of two overlapping requests for the row, the later one is newer.
      if (static_cast<int32_t>(static_cast<uint32_t>(step) - header.used) < 0) continue;
      header.used = static_cast<uint32_t>(step);
      header.count = header.count / 2 + 1;  // uses of long ago count less
    }
    std::memcpy(rows_.content(row), rows[i], width_ * sizeof(float));
  }
}

uint64_t RowCache::edition() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return edition_;
}

void RowCache::Clear() {
  const std::lock_guard<std::mutex> lock(mutex_);
  ++edition_;
  for (RowMap::Row row = 0; row < rows_.end(); ++row) {
    if (rows_.in_use(row)) rows_.Erase(row);
  }
}

// Evicts a stale row, or else the least frequently used row, of a random sample.
void RowCache::EvictOne(uint64_t step) {
  RowMap::Row victim = RowMap::kNone;
  for (int looked = 0; looked < kCacheCandidates;) {
    const auto row = static_cast<RowMap::Row>(MixId(static_cast<int64_t>(random_++)) % rows_.end());
    if (!rows_.in_use(row)) continue;
    ++looked;
    const RowMap::Header& header = rows_.header(row);
    if (victim == RowMap::kNone || header.count < rows_.header(victim).count) victim = row;
    if (!IsStale(header, step)) continue;
    victim = row;
    break;
  }
  rows_.Erase(victim);
}

void RowCaches::Set(int table, size_t width, size_t max_rows, uint64_t max_steps) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (max_rows == 0) {
    by_table_.erase(table);
  } else {
    by_table_[table] = std::make_shared<RowCache>(width, max_rows, max_steps);
  }
}

std::shared_ptr<RowCache> RowCaches::Find(int table) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = by_table_.find(table);
  return found == by_table_.end() ? nullptr : found->second;
}

}  // namespace tfdist::ps
