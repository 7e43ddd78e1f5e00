// Rows of tables that a client takes out of servers and puts into them as they are.
#ifndef TFDIST_OPS_CORE_PS_ROW_TRANSFER_H_
#define TFDIST_OPS_CORE_PS_ROW_TRANSFER_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/ps/operation.h"
#include "core/ps/table.h"
#include "core/ps/table_directory.h"
#include "core/ps/unique_ids.h"

namespace tfdist::ps {

// Some rows of one server, and where to go on.
struct RowDump {
  uint64_t incarnation = 0, cursor = 0;  // 0 to begin with
  bool more = true;                      // whether there may be others
  SavedRows rows;                        // content without slots if they were not asked for
};

class DumpOperation : public PlainOperation {
 public:
  // `dump` stays until the operation has ended.
  DumpOperation(const TableDirectory* directory, int table, int server, uint64_t most, bool slots,
                RowDump* dump, Done done);

  Status Meta(const Request& request, const ServerView& view, std::string* meta) override;
  Status OnAnswer(const Request& request, ServerView* view, std::string_view meta,
                  uint64_t payload_bytes, std::vector<iovec>* target) override;

 private:
  const TableDirectory* const directory_;
  const int table_;
  const uint64_t most_;
  const bool slots_;
  const RowDump begun_;  // without rows
  RowDump* const dump_;
};

class AssignRowsOperation : public PlainOperation {
 public:
  // `floats` of each row, which are all of it if there are `slots`; without, times of use and
  // counts are not looked at. Nothing is kept of `rows`.
  AssignRowsOperation(const TableDirectory* directory, int table, const SavedRowsView& rows,
                      uint64_t floats, bool slots, Done done);

  Status Meta(const Request& request, const ServerView& view, std::string* meta) override;

 private:
  const TableDirectory* const directory_;
  const int table_;
  const uint64_t floats_;
  const bool slots_;
  std::vector<uint64_t> counts_;  // by server
};

}  // namespace tfdist::ps

#endif  // TFDIST_OPS_CORE_PS_ROW_TRANSFER_H_
