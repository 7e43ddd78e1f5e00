// A socket to one server: a queue of requests going out, a parser of answers coming in.
// Non-blocking.
#ifndef TFDIST_OPS_CORE_PS_CLIENT_CONNECTION_H_
#define TFDIST_OPS_CORE_PS_CLIENT_CONNECTION_H_

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/status.h"
#include "core/net/peer_memory.h"
#include "core/net/socket.h"
#include "core/ps/protocol/message.h"

namespace tfdist::ps {

// Told by a connection what arrives. An error that it returns breaks the connection.
class AnswerHandler {
 public:
  virtual ~AnswerHandler() = default;
  // Appends to `target` memory for exactly the payload, which stays valid until OnPayload; or
  // nothing, then the payload is thrown away.
  virtual Status OnAnswer(int server, const MessageHeader& header, std::string_view meta,
                          std::vector<iovec>* target) = 0;
  // All of the payload is there; also called when there is none.
  virtual Status OnPayload(int server, const MessageHeader& header) = 0;
};

// What the two ends of a connection have agreed to.
struct Lending {
  std::unique_ptr<ExposedMemory> exposed;  // if the server reads the worker's memory
  std::optional<PeerMemory> peer;          // if the worker reads the server's
};

class Connection {
 public:
  Connection(int server, Fd socket, Lending lending);

  int fd() const { return socket_.get(); }
  bool blocked() const { return blocked_; }  // the kernel takes no more until EPOLLOUT
  bool idle() const { return outgoing_.empty(); }

  // Sends from the payload's memory, which `owner` keeps; or lends it, until there is an answer.
  void Queue(MessageType type, uint64_t number, std::string meta, std::vector<iovec> payload,
             std::shared_ptr<const void> owner);

  // Writes what the kernel takes. A broken connection is left for Receive to find, behind the
  // server's last words.
  void Flush();
  void Unblock() { blocked_ = false; }

  // Reads what has arrived, up to a budget so that one server cannot keep the thread from the
  // others.
  Status Receive(AnswerHandler& handler);

  // From now on payloads are sent.
  void StopLending() { lends_ = false; }

  // How much of the payload that is being received is there, and how much of its memory may have
  // been written to.
  uint64_t payload_received() const { return payload_received_; }
  uint64_t payload_touched() const { return payload_touched_; }

 private:
  struct Outgoing {
    std::string head;  // header and meta
    std::vector<iovec> payload;
    size_t bytes = 0;
    std::shared_ptr<const void> owner;
  };

  Status Account(AnswerHandler& handler, size_t* received);
  Status Consume(AnswerHandler& handler);
  Status BeginPayload(AnswerHandler& handler);
  Status CopyPayload(AnswerHandler& handler, std::vector<iovec> lent);

  const int server_;
  Fd socket_;

  std::deque<Outgoing> outgoing_;
  size_t front_sent_ = 0;  // bytes of outgoing_.front() already written
  bool blocked_ = false;

  std::vector<char> buffer_;  // headers, metas, and the first bytes of payloads
  size_t begin_ = 0, end_ = 0;
  std::vector<char> waste_;  // for payloads that nobody wants
  MessageHeader answer_;     // whose payload is being received
  bool in_payload_ = false;
  std::vector<iovec> target_;  // what is left of its memory, from target_next_ on
  size_t target_next_ = 0;
  uint64_t payload_received_ = 0, payload_touched_ = 0;

  std::map<uint64_t, std::shared_ptr<const void>> lent_;  // owners, by request
  Lending lending_;                                       // goes before what is lent does
  bool lends_;
};

}  // namespace tfdist::ps

#endif  // TFDIST_OPS_CORE_PS_CLIENT_CONNECTION_H_
