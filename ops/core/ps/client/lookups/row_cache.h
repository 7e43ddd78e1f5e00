// A cache of rows on a worker, for rows that occur in nearly every batch. A row is used for a
// number of steps after it was fetched, and may lack the updates of these steps, the worker's own
// included: bounded staleness (Ho et al. 2013).
#ifndef TFDIST_OPS_CORE_PS_CLIENT_LOOKUPS_ROW_CACHE_H_
#define TFDIST_OPS_CORE_PS_CLIENT_LOOKUPS_ROW_CACHE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "core/ps/table/row_map.h"

namespace tfdist::ps {

// The rows of one table. Any thread may call it.
class RowCache {
 public:
  // Holds up to `max_rows`. A row is fresh for up to `max_steps` after its request.
  RowCache(size_t width, size_t max_rows, uint64_t max_steps);

  // Copies the row of `ids[i]` to `rows[i]` if it is fresh, else appends i to `missing`.
  void Get(const std::vector<int64_t>& ids, const std::vector<float*>& rows, uint64_t step,
           std::vector<uint32_t>* missing);
  // Stores the rows at `indices`, which were requested in `step` with this `edition` of the cache.
  // Has no effect for an earlier edition.
  void Put(const std::vector<int64_t>& ids, const std::vector<float*>& rows,
           const std::vector<uint32_t>& indices, uint64_t step, uint64_t edition);
  // Counts the calls of Clear.
  uint64_t edition() const;
  // Empties the cache. Rows that were requested before are not stored.
  void Clear();

 private:
  bool IsStale(const RowMap::Header& head, uint64_t step) const {
    return static_cast<uint32_t>(step) - head.used > max_steps_;
  }
  void EvictOne(uint64_t step);

  const size_t width_, max_rows_;
  const uint64_t max_steps_;
  mutable std::mutex mutex_;
  RowMap rows_;  // `used`: the step of the request
  uint64_t edition_ = 0;
  uint64_t random_ = 0;
};

// Caches by table. Any thread may call it.
class RowCaches {
 public:
  // Replaces the table's cache by an empty one; by none if `max_rows` is 0.
  void Set(int table, size_t width, size_t max_rows, uint64_t max_steps);
  // Null if the table has no cache.
  std::shared_ptr<RowCache> Find(int table) const;

 private:
  mutable std::mutex mutex_;
  std::unordered_map<int, std::shared_ptr<RowCache>> by_table_;
};

}  // namespace tfdist::ps

#endif  // TFDIST_OPS_CORE_PS_CLIENT_LOOKUPS_ROW_CACHE_H_
