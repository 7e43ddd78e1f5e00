// Lookups on the worker, before they become requests: the lookups of one step are batched, and rows
// that were prefetched or cached are taken from there.
#ifndef TFDIST_OPS_CORE_PS_CLIENT_LOOKUPS_LOOKUPS_H_
#define TFDIST_OPS_CORE_PS_CLIENT_LOOKUPS_LOOKUPS_H_

#include <cstdint>
#include <functional>
#include <mutex>
#include <vector>

#include "core/base/block.h"
#include "core/ps/client/lookups/lookup_groups.h"
#include "core/ps/client/lookups/lookup_operation.h"
#include "core/ps/client/lookups/prefetches.h"
#include "core/ps/client/lookups/row_cache.h"
#include "core/ps/client/operations/table_directory.h"

namespace tfdist::ps {

struct LookupStats {
  uint64_t lookups = 0;                        // operations with requests
  uint64_t ids = 0;                            // of all tables
  uint64_t rows = 0, bytes = 0;                // received
  uint64_t nanoseconds = 0;                    // from request to last byte
  uint64_t prefetched = 0;                     // lists of ids
  uint64_t prefetch_hits = 0;                  // prefetched lists that a lookup has used
  uint64_t cache_lookups = 0, cache_hits = 0;  // unique ids
};

// Any thread may call it.
class Lookups {
 public:
  using Submit = std::function<void(OperationPtr)>;

  // `later` makes a call after a delay; `timeout_seconds` is the client's.
  Lookups(const TableDirectory* directory, BlockPool* pool, Submit submit, Prefetches::Later later,
          double timeout_seconds);

  void Lookup(std::vector<TableLookup> lookups, bool training, Done done);
  // As Lookup, together with the other lookups of its group.
  void LookupBatched(const GroupKey& key, const LookupGroups::MemberPtr& member,
                     std::vector<TableLookup> lookups, bool training, Done done);
  // As Lookup without training, of a process that serves: from the cache of SetServedCache, if the
  // table has one.
  void Serve(std::vector<TableLookup> lookups, Done done);
  LookupGroups& groups() { return groups_; }

  // Creates a prefetch of the rows for a later lookup of the same ids; see Prefetches. Null, with
  // an error in `status`, if a table does not exist.
  Prefetches::BatchPtr MakePrefetch(uint64_t owner, std::vector<TableLookup> lookups, bool training,
                                    Status* status) const;
  Prefetches& prefetches() { return prefetches_; }

  // Caches up to `rows` rows of a table for `steps` steps, for lookups in training.
  Status SetCache(int table, uint64_t rows, uint64_t steps);

  // The same for lookups that are served: for so many seconds, counted from a row's request.
  Status SetServedCache(int table, uint64_t rows, double seconds);

  // The worker's step ends: a push begins.
  void EndStep() { prefetches_.EndStep(); }
  // Drops the cached and prefetched rows of a table: its rows were edited.
  void Forget(int table);
  LookupStats stats() const;
  // Ends all waits.
  void Close();

 private:
  Status Check(const std::vector<TableLookup>& lookups) const;
  // From the cache, or else from the servers.
  void Fetch(std::vector<TableLookup> lookups, bool training, Done done);
  void Request(std::vector<TableLookup> lookups, bool training, const RowCaches* caches,
               uint64_t step, Done done);

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
