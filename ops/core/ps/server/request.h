// A worker's request as its server sees it, and the answer.
#ifndef TFDIST_OPS_CORE_PS_SERVER_REQUEST_H_
#define TFDIST_OPS_CORE_PS_SERVER_REQUEST_H_

#include <cstdint>
#include <memory>
#include <new>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "core/ps/protocol/message.h"
#include "core/ps/server/payload.h"
#include "core/ps/store/store.h"

namespace tfdist::ps {

// The connection and the worker of a request.
struct ClientContext {
  uint64_t session = 0;  // the connection; never zero, and never reused
  int worker = 0;
  bool opened = false;
};

// A table that a request was checked against when it began. A TABLE request may replace it before
// the request's payload has arrived.
struct CheckedTable {
  uint32_t id = 0;
  std::shared_ptr<Table> table;
};

struct LeaveRequest {};

struct ClientRequest {
  uint64_t id = 0;
  std::variant<OpenRequest, CreateRequest, BindRequest, PullRequest, PushRequest, SetRequest,
               ExchangeRequest, ReduceRequest, LeaveRequest, TableRequest, LookupRequest,
               ScanRowsRequest, EditRowsRequest, FindRowsRequest, ResolveRequest, CommitRequest>
      body;
  // The expected payload. The payload of a refused request is discarded.
  std::vector<PayloadPart> parts;
  Status refusal;
  std::vector<CheckedTable> tables;  // in the order of entries, unless it is refused
  std::vector<BlockPtr> payload;     // once it has arrived
  // The table that memory is being allocated for, which an error then names.
  const std::string* table = nullptr;
};

// Reads a request's meta. Fails if it is malformed, or does not agree with the payload's size. A
// well-formed request for something impossible is marked as refused.
Status Parse(const FrameHeader& header, std::string_view meta, const Store& store,
             ClientRequest* request);

// Fails if one of the tables that the request was checked against is not in the store any more.
// Under Store::Share, which the caller holds until the request has been carried out.
Status CheckTables(const ClientRequest& request, const Store& store);

// The refusal of a request for lack of memory; names the request's tables or variables.
Status OutOfMemory(const ClientRequest& request, const Store& store, const std::bad_alloc& error);

struct Answer {
  MessageType type = MessageType::kOk;
  uint64_t id = 0;  // of the request
  std::string meta;
  std::vector<BlockPtr> payload;  // one after the other
};

template <typename Reply>
Answer OkAnswer(uint64_t id, const Reply& reply, std::vector<BlockPtr> payload = {}) {
  return {MessageType::kOk, id, Encode(reply), std::move(payload)};
}
inline Answer OkAnswer(uint64_t id) { return {MessageType::kOk, id, "", {}}; }
inline Answer ErrorAnswer(uint64_t id, const Status& status) {
  return {MessageType::kError, id, Encode(ErrorReply{status.code(), status.message()}), {}};
}

}  // namespace tfdist::ps

#endif  // TFDIST_OPS_CORE_PS_SERVER_REQUEST_H_
