#include "core/ps/client/lookups/row_cache.h"

#include <algorithm>
#include <cstring>

namespace tfdist::ps {
namespace {

constexpr int kCacheCandidates = 8;              // looked at to evict one
constexpr uint64_t kMostStepsKept = UINT32_MAX;  // that are told apart

}  // namespace

RowCache::RowCache(size_t width, size_t most_rows, uint64_t most_steps)
    : width_(width),
      most_rows_(most_rows),
      most_steps_(std::min(most_steps, kMostStepsKept)),
      rows_(width * sizeof(float)) {}

void RowCache::Get(const std::vector<int64_t>& ids, const std::vector<float*>& rows, uint64_t step,
                   std::vector<uint32_t>* missing) {
  const std::lock_guard<std::mutex> lock(mutex_);
  for (size_t place = 0; place < ids.size(); ++place) {
    const RowMap::Row row = rows_.Find(ids[place], MixId(ids[place]));
    if (row == RowMap::kNone || IsStale(rows_.header(row), step)) {
      missing->push_back(static_cast<uint32_t>(place));
      continue;
    }
    RowMap::Header& header = rows_.header(row);
    header.count += header.count < UINT32_MAX ? 1 : 0;
    std::memcpy(rows[place], rows_.content(row), width_ * sizeof(float));
  }
}

void RowCache::Put(const std::vector<int64_t>& ids, const std::vector<float*>& rows,
                   const std::vector<uint32_t>& places, uint64_t step, uint64_t edition) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (edition != edition_) return;
  for (const uint32_t place : places) {
    const uint64_t hash = MixId(ids[place]);
    RowMap::Row row = rows_.Find(ids[place], hash);
    if (row == RowMap::kNone) {
      if (rows_.size() >= most_rows_) EvictOne(step);
      row = rows_.Insert(ids[place], hash);
      rows_.header(row) = {ids[place], static_cast<uint32_t>(step), 1};
    } else {
      RowMap::Header& header = rows_.header(row);
      // Asked for twice at a time: the later one is the newer.
      if (static_cast<int32_t>(static_cast<uint32_t>(step) - header.used) < 0) continue;
      header.used = static_cast<uint32_t>(step);
      header.count = header.count / 2 + 1;  // what was used long ago counts less
    }
    std::memcpy(rows_.content(row), rows[place], width_ * sizeof(float));
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

// Of some rows that are taken at random, one that is stale, or else the one used most seldom.
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

void RowCaches::Set(int table, size_t width, size_t most_rows, uint64_t most_steps) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (most_rows == 0) {
    by_table_.erase(table);
  } else {
    by_table_[table] = std::make_shared<RowCache>(width, most_rows, most_steps);
  }
}

std::shared_ptr<RowCache> RowCaches::Find(int table) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = by_table_.find(table);
  return found == by_table_.end() ? nullptr : found->second;
}

}  // namespace tfdist::ps
