// Requests about tables of rows: created, looked up, scanned, edited and searched.
#ifndef TFDIST_OPS_CORE_PS_SERVER_HANDLERS_TABLE_HANDLER_H_
#define TFDIST_OPS_CORE_PS_SERVER_HANDLERS_TABLE_HANDLER_H_

#include <cstdint>

#include "core/ps/server/handlers/server_state.h"
#include "core/ps/server/request.h"

namespace tfdist::ps {

class TableHandler {
 public:
  explicit TableHandler(ServerState* state) : state_(*state) {}

  Answer HandleCreate(const ClientContext& client, uint64_t id, const TableRequest& create);
  // Makes all rows that the lookup asks for, or none.
  Answer HandleLookup(const ClientContext& client, const LookupRequest& lookup,
                      ClientRequest* request);
  // Rows as they are stored, some at a time.
  Answer HandleScan(const ClientContext& client, const ScanRowsRequest& scan,
                    const ClientRequest& request);
  // Excludes all other changes, so that the redo log has edits and pushes in the order in which
  // they were applied. In another order, a server that is restored from it could resurrect a
  // removed row.
  Answer HandleEdit(const ClientContext& client, const EditRowsRequest& edit,
                    const ClientRequest& request);
  // Which ids have rows, without making any.
  Answer HandleFind(const ClientContext& client, const FindRowsRequest& find,
                    const ClientRequest& request);

  // With ServerState::mutex.
  uint64_t edits() const { return edits_; }

 private:
  ServerState& state_;
  uint64_t edits_ = 0;  // guarded by ServerState::mutex
};

}  // namespace tfdist::ps

#endif  // TFDIST_OPS_CORE_PS_SERVER_HANDLERS_TABLE_HANDLER_H_
