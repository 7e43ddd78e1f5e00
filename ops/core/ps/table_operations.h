// Tables on all servers: created, and looked up in.
#ifndef TFDIST_OPS_CORE_PS_TABLE_OPERATIONS_H_
#define TFDIST_OPS_CORE_PS_TABLE_OPERATIONS_H_

#include <string>
#include <string_view>
#include <vector>

#include "core/ps/block.h"
#include "core/ps/operation.h"
#include "core/ps/parameter_table.h"
#include "core/ps/table_directory.h"
#include "core/ps/unique_ids.h"

namespace tfdist::ps {

class CreateTableOperation : public PlainOperation {
 public:
  CreateTableOperation(TableDirectory* directory, int table, Done done);

  Status Meta(const Request& request, const ServerView& view, std::string* meta) override;
  Status OnAnswer(const Request& request, ServerView* view, std::string_view meta,
                  uint64_t payload_bytes, std::vector<iovec>* target) override;

 private:
  TableDirectory* const directory_;
  const int table_;
};

// Ids of one table, and the memory for their rows.
struct TableLookup {
  int table = 0;
  std::vector<int64_t> ids;  // may repeat
  Memory rows;               // float32, as wide as the table for each id
};

// Each id travels once, however often it occurs.
class LookupOperation : public PlainOperation {
 public:
  LookupOperation(const TableDirectory* directory, std::vector<TableLookup> lookups, bool training,
                  Done done);

  uint64_t bytes() const { return bytes_; }  // of rows that have come

  Status Meta(const Request& request, const ServerView& view, std::string* meta) override;
  Status OnAnswer(const Request& request, ServerView* view, std::string_view meta,
                  uint64_t payload_bytes, std::vector<iovec>* target) override;
  Status OnPayload(const Request& request) override;
  void OnEnd(const Status& status) override;

 private:
  struct Table {
    TableLookup lookup;
    UniqueIds unique;
    std::vector<IdsByServer::Part> parts;  // by server
    std::vector<float> rows;               // of the unique ids
    size_t width = 0;
  };

  const TableDirectory* const directory_;
  const bool training_;
  std::vector<Table> tables_;
  std::vector<std::vector<float>> received_;  // by server
  uint64_t bytes_ = 0;
};

}  // namespace tfdist::ps

#endif  // TFDIST_OPS_CORE_PS_TABLE_OPERATIONS_H_
