// What becomes of lookups before they are requests: those of one step go together, rows that were
// prefetched or are cached are taken from there.
#ifndef TFDIST_OPS_CORE_PS_CLIENT_LOOKUPS_LOOKUPS_H_
#define TFDIST_OPS_CORE_PS_CLIENT_LOOKUPS_LOOKUPS_H_

#include <cstdint>
#include <functional>
#include <mutex>
#include <vector>

#include "core/base/block.h"
#include "core/ps/client/lookups/lookup_groups.h"
#include "core/ps/client/lookups/prefetches.h"
#include "core/ps/client/lookups/row_cache.h"
#include "core/ps/client/operations/lookup_operation.h"
#include "core/ps/client/operations/table_directory.h"

namespace tfdist::ps {

struct LookupStats {
  uint64_t lookups = 0;                        // operations that asked servers
  uint64_t ids = 0;                            // of all tables
  uint64_t rows = 0, bytes = 0;                // that have come
  uint64_t nanoseconds = 0;                    // from request to last byte
  uint64_t prefetched = 0;                     // lists of ids
  uint64_t prefetch_hits = 0;                  // those that a lookup has used
  uint64_t cache_lookups = 0, cache_hits = 0;  // unique ids
};

// Any thread may call it.
class Lookups {
 public:
  using Submit = std::function<void(OperationPtr)>;

  // `later` calls something after so many seconds; `timeout_seconds` is the client's.
  Lookups(const TableDirectory* directory, BlockPool* pool, Submit submit, Prefetches::Later later,
          double timeout_seconds);

  void Lookup(std::vector<TableLookup> lookups, bool training, Done done);
  // As Lookup, with the other lookups of its group.
  void LookupBatched(const GroupKey& key, const LookupGroups::MemberPtr& member,
                     std::vector<TableLookup> lookups, bool training, Done done);
  LookupGroups& groups() { return groups_; }

  // Asks for rows that a lookup of the same ids will need; see Prefetches. Null if there is no such
  // table; then `status` says so.
  Prefetches::BatchPtr MakePrefetch(uint64_t owner, std::vector<TableLookup> lookups, bool training,
                                    Status* status) const;
  Prefetches& prefetches() { return prefetches_; }

  // Keeps up to `rows` rows of a table for `steps` steps, for lookups in training.
  Status SetCache(int table, uint64_t rows, uint64_t steps);

  // A push begins.
  void StepEnds() { prefetches_.StepEnds(); }
  // Rows of the table were edited: those that were cached or looked up ahead are not used any more.
  void Forget(int table);
  LookupStats stats() const;
  // Nobody waits any more.
  void Close();

 private:
  Status Check(const std::vector<TableLookup>& lookups) const;
  // From the servers, or what is cached.
  void Ask(std::vector<TableLookup> lookups, bool training, Done done);

  const TableDirectory* const directory_;
  BlockPool* const pool_;
  const Submit submit_;
  RowCaches caches_;
  Prefetches prefetches_;
  LookupGroups groups_;
  mutable std::mutex mutex_;
  LookupStats stats_;  // guarded by mutex_
};

}  // namespace tfdist::ps

#endif  // TFDIST_OPS_CORE_PS_CLIENT_LOOKUPS_LOOKUPS_H_
