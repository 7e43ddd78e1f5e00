// Rows of tables that a client scans, edits and searches.
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

// Some rows of one server, and the position of the next ones.
struct RowScan {
  uint64_t incarnation = 0, cursor = 0;  // 0 at the beginning
  bool more = true;                      // whether there may be more rows
  SavedRows rows;                        // with or without slots, as requested
};

class ScanRowsOperation : public PlainOperation {
 public:
  // `scan` has to exist until the operation has ended.
  ScanRowsOperation(const TableDirectory* directory, int table, int server, uint64_t max_rows,
                    bool slots, RowScan* scan, Done done);

  Status Meta(const Request& request, const ServerView& view, std::string* meta) override;
  Status OnAnswer(const Request& request, ServerView* view, std::string_view meta,
                  uint64_t payload_bytes, std::vector<iovec>* target) override;

 private:
  const TableDirectory* const directory_;
  const int table_;
  const uint64_t max_rows_;
  const bool slots_;
  const RowScan begin_;  // without rows
  RowScan* const scan_;
};

// Edits are carried out one after the other, so that a server can recognise a repeated one by its
// sequence number.
class EditRowsOperation : public PlainOperation {
 public:
  // Copies from `edit`. `sequences` counts the edits that the client has sent to each server.
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

// The result of a search for ids, which makes no rows.
struct FoundRows {
  uint8_t* found = nullptr;  // by id: 1 if it has a row
  float* rows = nullptr;     // null: not requested
  uint64_t* size = nullptr;  // rows of the table on all servers; null: not requested
};

class FindRowsOperation : public PlainOperation {
 public:
  // The memory of `to` has to exist until the operation has ended.
  FindRowsOperation(const TableDirectory* directory, int table, const std::vector<int64_t>& ids,
                    const FoundRows& to, Done done);

  Status Meta(const Request& request, const ServerView& view, std::string* meta) override;
  Status OnAnswer(const Request& request, ServerView* view, std::string_view meta,
                  uint64_t payload_bytes, std::vector<iovec>* target) override;
  Status OnPayload(const Request& request) override;

 private:
  struct Part {
    std::vector<uint32_t> indices;  // of the ids
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
