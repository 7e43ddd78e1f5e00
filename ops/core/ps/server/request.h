// A request as a server sees it, and the answer.
#ifndef TFDIST_OPS_CORE_PS_SERVER_REQUEST_H_
#define TFDIST_OPS_CORE_PS_SERVER_REQUEST_H_

#include <cstdint>
#include <new>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "core/ps/protocol/message.h"
#include "core/ps/server/payload.h"
#include "core/ps/store/store.h"

namespace tfdist::ps {

struct LeaveRequest {};

struct Incoming {
  uint64_t number = 0;
  std::variant<OpenRequest, CreateRequest, BindRequest, PullRequest, PushRequest, SetRequest,
               ReduceRequest, LeaveRequest, TableRequest, LookupRequest, ScanRowsRequest,
               EditRowsRequest, FindRowsRequest>
      body;
  // What follows meta, unless the request is refused: then all of it is thrown away.
  std::vector<PayloadPart> parts;
  Status refusal;
  std::vector<BlockPtr> payload;  // once it has come
  // What is being done, for the message if memory runs out.
  const std::string* table = nullptr;
};

// Reads a request's meta. Fails if it is malformed, or does not go with its payload's size. What is
// well-formed and asks for something impossible is marked as refused.
Status Parse(const MessageHeader& header, std::string_view meta, const Store& store,
             Incoming* request);

// The refusal of a request for want of memory; names the tables or variables that it is about.
Status OutOfMemory(const Incoming& request, const Store& store, const std::bad_alloc& error);

struct Answer {
  MessageType type = MessageType::kOk;
  uint64_t number = 0;
  std::string meta;
  std::vector<BlockPtr> payload;  // one after the other
};

template <typename Reply>
Answer OkAnswer(uint64_t number, const Reply& reply, std::vector<BlockPtr> payload = {}) {
  return {MessageType::kOk, number, Encode(reply), std::move(payload)};
}
inline Answer OkAnswer(uint64_t number) { return {MessageType::kOk, number, "", {}}; }
inline Answer ErrorAnswer(uint64_t number, const Status& status) {
  return {MessageType::kError, number, Encode(ErrorReply{status.code(), status.message()}), {}};
}

}  // namespace tfdist::ps

#endif  // TFDIST_OPS_CORE_PS_SERVER_REQUEST_H_
