// Fetches rows of tables from the servers. Each id is sent once, however often it occurs.
#ifndef TFDIST_OPS_CORE_PS_CLIENT_LOOKUPS_LOOKUP_OPERATION_H_
#define TFDIST_OPS_CORE_PS_CLIENT_LOOKUPS_LOOKUP_OPERATION_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/block.h"
#include "core/math/dtype.h"
#include "core/math/unique_ids.h"
#include "core/ps/client/lookups/row_cache.h"
#include "core/ps/client/operations/operation.h"
#include "core/ps/client/operations/parameter_table.h"
#include "core/ps/client/operations/table_directory.h"
#include "core/ps/table/ids_by_server.h"

namespace tfdist::ps {

// Ids of one table, and the memory for their rows.
struct TableLookup {
  int table = 0;
  std::vector<int64_t> ids;      // may repeat
  Memory rows;                   // float32[ids, width of the table]
  DType wire = DType::kFloat32;  // the dtype in which the rows are sent
};

struct LookupCounts {
  uint64_t ids = 0;                            // requested
  uint64_t rows = 0, bytes = 0;                // received
  uint64_t cache_lookups = 0, cache_hits = 0;  // unique ids
};

class LookupOperation : public Operation {
 public:
  using Done = std::function<void(const Status&, const LookupCounts&)>;

  // Rows in `caches` are not requested, and received rows are stored there; null: no caches.
  // `step` is the worker's.
  LookupOperation(const TableDirectory* directory, BlockPool* pool, const RowCaches* caches,
                  uint64_t step, std::vector<TableLookup> lookups, bool training, Done done);

  Status Meta(const Request& request, const ServerView& view, std::string* meta) override;
  Status OnAnswer(const Request& request, ServerView* view, std::string_view meta,
                  uint64_t payload_bytes, std::vector<iovec>* target) override;
  Status OnPayload(const Request& request) override;
  void OnEnd(const Status& status) override;

 private:
  struct Repeat {
    uint32_t index;  // of the unique id
    float* row;
  };
  // The rows of a group on one server.
  struct Part {
    std::vector<uint32_t> indices;   // of the unique ids
    bool direct = false;             // rows are received into the lookup's memory,
    const char* received = nullptr;  // or else here
  };
  // All lookups in one table with the same wire dtype.
  struct Group {
    int table = 0;
    DType wire = DType::kFloat32;
    size_t width = 0;
    std::shared_ptr<RowCache> cache;
    uint64_t cache_edition = 0;
    UniqueIds unique;
    std::vector<float*> rows;  // by unique id: the row of its first occurrence
    std::vector<Repeat> repeats;
    std::vector<uint32_t> missing;  // indices of the ids that are not cached
    std::vector<Part> parts;        // by server

    size_t BytesOf(const Part& part) const { return part.indices.size() * width * ByteSize(wire); }
  };

  Group& GroupOf(const TableLookup& lookup, const RowCaches* caches);
  void Add(const TableLookup& lookup, Group* group);
  void RequestMissing(Group* group);

  const TableDirectory* const directory_;
  BlockPool* const pool_;
  const uint64_t step_;
  const bool training_;
  const std::vector<TableLookup> lookups_;
  Done done_;
  std::vector<Group> groups_;
  std::vector<BlockPtr> received_;  // by server
  LookupCounts counts_;
};

}  // namespace tfdist::ps

#endif  // TFDIST_OPS_CORE_PS_CLIENT_LOOKUPS_LOOKUP_OPERATION_H_
