// Rows that a worker keeps for some of its steps, so that those that occur in nearly every batch
// need not travel with each. What it reads may lack the updates of so many steps, its own among
// them: stale reads within a bound (Ho et al. 2013).
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

// Of one table. Any thread may call it.
class RowCache {
 public:
  // Keeps up to `most_rows`, and gives one for up to `most_steps` after it was asked for.
  RowCache(size_t width, size_t most_rows, uint64_t most_steps);

  // Copies each row that it has to its place in `rows`; `missing` are the others' places.
  void Get(const std::vector<int64_t>& ids, const std::vector<float*>& rows, uint64_t step,
           std::vector<uint32_t>* missing);
  // The rows at `places` were asked for in `step`, when the cache was of this `edition`. Nothing is
  // kept of an earlier one.
  void Put(const std::vector<int64_t>& ids, const std::vector<float*>& rows,
           const std::vector<uint32_t>& places, uint64_t step, uint64_t edition);
  // How often the cache was emptied.
  uint64_t edition() const;
  // Empties it: what was asked for until now is not to be used.
  void Clear();

 private:
  bool IsStale(const RowMap::Header& header, uint64_t step) const {
    return static_cast<uint32_t>(step) - header.used > most_steps_;
  }
  void EvictOne(uint64_t step);

  const size_t width_, most_rows_;
  const uint64_t most_steps_;
  mutable std::mutex mutex_;
  RowMap rows_;  // `used`: the step in which it was asked for
  uint64_t edition_ = 0;
  uint64_t random_ = 0;
};

// By table. Any thread may call it.
class RowCaches {
 public:
  // Begins anew; no rows: none is kept.
  void Set(int table, size_t width, size_t most_rows, uint64_t most_steps);
  // Null if the table's rows are not kept.
  std::shared_ptr<RowCache> Find(int table) const;

 private:
  mutable std::mutex mutex_;
  std::unordered_map<int, std::shared_ptr<RowCache>> by_table_;
};

}  // namespace tfdist::ps

#endif  // TFDIST_OPS_CORE_PS_CLIENT_LOOKUPS_ROW_CACHE_H_
