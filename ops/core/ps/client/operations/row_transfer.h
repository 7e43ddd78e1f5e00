// Rows of tables that a client takes out of servers as they are, edits, and searches.
#ifndef TFDIST_OPS_CORE_PS_CLIENT_OPERATIONS_ROW_TRANSFER_H_
#define TFDIST_OPS_CORE_PS_CLIENT_OPERATIONS_ROW_TRANSFER_H_

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/ps/client/operations/operation.h"
#include "core/ps/client/operations/table_directory.h"
#include "core/ps/table/ids_by_server.h"
#include "core/ps/table/table.h"

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

// Edits wait for each other, so that a server can tell by their sequence which it has carried out.
class EditRowsOperation : public PlainOperation {
 public:
  // Nothing is kept of what `edit` points to. `sequences` counts the edits that each server was
  // sent: the caller's one and only counters.
  EditRowsOperation(const TableDirectory* directory, int table, const TableEdit& edit,
                    uint64_t floats, std::vector<uint64_t>* sequences, Done done);

  Status Meta(const Request& request, const ServerView& view, std::string* meta) override;

 private:
  struct Part {
    uint64_t rows = 0;
    uint64_t sequence = 0;  // 0: not sent yet
  };

  const TableDirectory* const directory_;
  const int table_;
  const EditKind kind_;
  const uint64_t floats_;
  std::vector<uint64_t>* const sequences_;
  std::vector<Part> parts_;  // by server
};

// What servers have of some ids, without making rows for them.
struct FoundRows {
  uint8_t* found = nullptr;  // of each id, 1 if it has a row
  float* rows = nullptr;     // null: they are not asked for
  uint64_t* size = nullptr;  // rows of the table on all servers; null: not asked for
};

class FindRowsOperation : public PlainOperation {
 public:
  // What `to` points to stays until the operation has ended.
  FindRowsOperation(const TableDirectory* directory, int table, const std::vector<int64_t>& ids,
                    const FoundRows& to, Done done);

  Status Meta(const Request& request, const ServerView& view, std::string* meta) override;
  Status OnAnswer(const Request& request, ServerView* view, std::string_view meta,
                  uint64_t payload_bytes, std::vector<iovec>* target) override;
  Status OnPayload(const Request& request) override;

 private:
  struct Part {
    std::vector<uint32_t> indices;
    uint64_t size = 0;
    std::vector<uint8_t> found;
    std::vector<float> rows;
  };

  const TableDirectory* const directory_;
  const int table_;
  const size_t width_;
  const FoundRows to_;
  std::vector<Part> parts_;  // by server
};

}  // namespace tfdist::ps

#endif  // TFDIST_OPS_CORE_PS_CLIENT_OPERATIONS_ROW_TRANSFER_H_
