// An operation of the client: requests, at most one to each server, that are answered together.
#ifndef TFDIST_OPS_CORE_PS_CLIENT_OPERATIONS_OPERATION_H_
#define TFDIST_OPS_CORE_PS_CLIENT_OPERATIONS_OPERATION_H_

#include <sys/uio.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/base/clock.h"
#include "core/base/status.h"
#include "core/ps/protocol/message.h"
#include "core/trace/event_ring.h"

namespace tfdist::ps {

// The client's knowledge of a server.
struct ServerView {
  uint64_t incarnation = 0;    // of the process that is connected, or was last
  uint64_t opening_clock = 0;  // its clock when it was connected
  // Of the step that was pulled last; before the first, as at the opening.
  uint64_t step_clock = 0;
  uint64_t step_incarnation = 0;
  uint64_t steps = 0;  // pulled so far
};

class Operation;
using OperationPtr = std::shared_ptr<Operation>;

struct Request {
  int server = 0;
  MessageType type = MessageType::kPull;
  std::vector<iovec> payload;  // its memory belongs to `owners`
  std::vector<std::shared_ptr<void>> owners;
  // The server may hold it back, and refuses another such request until it has answered.
  bool exclusive = false;

  // Used by the client's thread.
  uint64_t id = 0;
  OperationPtr operation;  // null once it does not wait for the answer
  bool sent = false;       // on the current connection
  bool receiving = false;  // the answer is arriving
  Status refusal;          // from an ERROR answer
  TimePoint deadline = TimePoint::max();
  EventId event = 0;  // in the flight recorder
};
using RequestPtr = std::shared_ptr<Request>;

using Done = std::function<void(const Status&)>;

// Created by the caller's thread, and then used by the client's thread.
class Operation {
 public:
  enum class Kind {
    kPull,   // one at a time
    kPush,   // one at a time; the next pull reports its failure
    kEdit,   // one at a time
    kLeave,  // goes only to connected servers
    kOther,
  };

  Operation(Kind kind, std::string title) : kind_(kind), title_(std::move(title)) {}
  virtual ~Operation() = default;

  Kind kind() const { return kind_; }
  // For messages: "a pull of 3 parameters".
  const std::string& title() const { return title_; }
  // The parameters or tables that it is about: "dense/kernel and 2 more"; or empty.
  std::string Subjects() const;

  // Ordered by server.
  const std::vector<RequestPtr>& requests() const { return requests_; }

  // The meta of a request; called each time that it is sent.
  virtual Status Meta(const Request& request, const ServerView& view, std::string* meta) = 0;
  // An OK has arrived. Appends memory for exactly its payload to `target`, or nothing to have it
  // discarded. Fails if the answer is malformed.
  virtual Status OnAnswer(const Request& request, ServerView* view, std::string_view meta,
                          uint64_t payload_bytes, std::vector<iovec>* target) = 0;
  // Its payload has arrived. A failure ends the operation.
  virtual Status OnPayload(const Request&) { return Status(); }
  // The connection broke after `received` bytes of the payload; `touched` bytes of its memory may
  // have been overwritten. The request will be sent again.
  virtual void OnBroken(const Request&, uint64_t /*received*/, uint64_t /*touched*/) {}
  // All requests have been answered, or one has failed. Tells the caller.
  virtual void OnEnd(const Status& status) = 0;

  // Used by the client's thread.
  std::vector<RequestPtr> open;  // unanswered
  Status status;                 // the first failure

 protected:
  // The request to a server; created on the first call.
  Request& To(int server, MessageType type);
  // Appends to a request's payload.
  static void Append(Request* request, const void* data, size_t bytes, std::shared_ptr<void> owner);
  // The operation is about this parameter or table, too.
  void Mention(const std::string& name);

 private:
  const Kind kind_;
  const std::string title_;
  std::vector<RequestPtr> requests_;
  std::string first_subject_;
  size_t subjects_ = 0;
};

// An operation whose result is only a status.
class PlainOperation : public Operation {
 public:
  PlainOperation(Kind kind, std::string title, Done done)
      : Operation(kind, std::move(title)), done_(std::move(done)) {}

  // Expects an empty answer.
  Status OnAnswer(const Request& request, ServerView* view, std::string_view meta,
                  uint64_t payload_bytes, std::vector<iovec>* target) override;
  void OnEnd(const Status& status) override { std::exchange(done_, nullptr)(status); }

 private:
  Done done_;
};

}  // namespace tfdist::ps

#endif  // TFDIST_OPS_CORE_PS_CLIENT_OPERATIONS_OPERATION_H_
