// What a caller of the client waits for: some requests, at most one to each server.
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

#include "core/base/status.h"
#include "core/net/socket.h"
#include "core/ps/protocol/message.h"

namespace tfdist::ps {

// What the client's thread knows of a server.
struct ServerView {
  uint64_t incarnation = 0;    // of the process that is connected, or was last
  uint64_t opening_clock = 0;  // its clock when it was connected
  // The step that was pulled last, and its server's incarnation; before the first, the opening.
  uint64_t step_clock = 0;
  uint64_t step_incarnation = 0;
  uint64_t steps = 0;  // pulled so far
};

class Operation;
using OperationPtr = std::shared_ptr<Operation>;

struct Request {
  int server = 0;
  MessageType type = MessageType::kPull;
  std::vector<iovec> payload;  // pieces of what the owners keep
  std::vector<std::shared_ptr<void>> owners;
  // The server may hold it back, and refuses another one meanwhile.
  bool exclusive = false;

  // The thread's own.
  uint64_t number = 0;
  OperationPtr operation;  // null once nobody waits for the answer
  bool sent = false;       // on the connection that there is
  bool receiving = false;  // the answer
  Status refusal;          // an ERROR that has come
  TimePoint deadline = TimePoint::max();
};
using RequestPtr = std::shared_ptr<Request>;

using Done = std::function<void(const Status&)>;

// Made by the caller's thread; from then on the client's thread has it.
class Operation {
 public:
  enum class Kind {
    kPull,   // one at a time
    kPush,   // one at a time; a failure is the next pull's
    kEdit,   // one at a time
    kLeave,  // asks only servers that are connected
    kOther,
  };

  Operation(Kind kind, std::string title) : kind_(kind), title_(std::move(title)) {}
  virtual ~Operation() = default;

  Kind kind() const { return kind_; }
  // For messages: "a pull of 3 parameters".
  const std::string& title() const { return title_; }

  // By server, in order.
  const std::vector<RequestPtr>& requests() const { return requests_; }

  // What a request says, asked each time that it is sent.
  virtual Status Meta(const Request& request, const ServerView& view, std::string* meta) = 0;
  // An OK has come. Appends memory for exactly its payload to `target`, or nothing to have it
  // thrown away. A failure means that the answer makes no sense.
  virtual Status OnAnswer(const Request& request, ServerView* view, std::string_view meta,
                          uint64_t payload_bytes, std::vector<iovec>* target) = 0;
  // Its payload is there. A failure ends the operation.
  virtual Status OnPayload(const Request&) { return Status(); }
  // The connection broke after so much of the payload was there; of its memory so much may have
  // been written to. The request will be sent again.
  virtual void OnBroken(const Request&, uint64_t /*received*/, uint64_t /*touched*/) {}
  // All requests have been answered, or the first failure. Tells the caller.
  virtual void OnEnd(const Status& status) = 0;

  // The thread's own.
  std::vector<RequestPtr> open;  // not answered
  Status status;                 // the first failure

 protected:
  // The request to a server, which is made if there is none yet.
  Request& To(int server, MessageType type);
  // Appends to its payload.
  static void Append(Request* request, const void* data, size_t bytes, std::shared_ptr<void> owner);

 private:
  const Kind kind_;
  const std::string title_;
  std::vector<RequestPtr> requests_;
};

// One whose caller only wants to know how it ended.
class PlainOperation : public Operation {
 public:
  PlainOperation(Kind kind, std::string title, Done done)
      : Operation(kind, std::move(title)), done_(std::move(done)) {}

  // An answer that says nothing.
  Status OnAnswer(const Request& request, ServerView* view, std::string_view meta,
                  uint64_t payload_bytes, std::vector<iovec>* target) override;
  void OnEnd(const Status& status) override { std::exchange(done_, nullptr)(status); }

 private:
  Done done_;
};

}  // namespace tfdist::ps

#endif  // TFDIST_OPS_CORE_PS_CLIENT_OPERATIONS_OPERATION_H_
