// One worker's connection, on the server's side: receives requests whole and sends answers, or
// agrees with the worker to read each other's memory. Used by one thread only.
#ifndef TFDIST_OPS_CORE_PS_SERVER_SESSION_H_
#define TFDIST_OPS_CORE_PS_SERVER_SESSION_H_

#include <sys/uio.h>

#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <new>
#include <optional>
#include <string>

#include "core/net/socket.h"
#include "core/ps/server/request.h"

namespace tfdist::ps {

class Session {
 public:
  // What has come, in order; it may answer with Send.
  using OnRequest = std::function<Status(ClientRequest request)>;

  Session(uint64_t id, int worker, PeerSocket socket, Store* store);

  ClientContext* client() { return &client_; }
  int socket() const { return socket_.get(); }
  uint64_t bytes_received() const { return bytes_received_; }  // of values
  uint64_t bytes_sent() const { return bytes_sent_; }

  // Receives what is there, up to about one request. An error ends the session: kUnavailable if
  // the connection is broken, else because of what the worker has sent.
  Status Receive(const OnRequest& on_request);
  void Send(Answer answer);
  // Sends as much as the connection takes.
  Status Flush();

  bool has_output() const { return !outputs_.empty(); }
  // Who does not take answers gets no more of them.
  bool wants_input() const;

 private:
  enum class State { kHeader, kMeta, kPayload };
  struct Output {
    std::string head;  // header and meta
    std::vector<BlockPtr> blocks;
    size_t piece = 0;  // the first that is not sent whole: 0 is `head`
    size_t sent = 0;   // bytes of it
  };

  Status ReceiveHeader(uint64_t* received);
  Status ReceiveMeta(uint64_t* received);
  Status ReceivePayload(uint64_t* received);
  Status BeginPayload();
  Status CopyPayload(std::vector<iovec> lent);
  void RefuseForMemory(const std::bad_alloc& error);
  Status OnLend();
  Status OnCopied();
  void ExpectHeader();
  size_t Gather(iovec* pieces, size_t most) const;
  void Advance(size_t bytes);

  ClientContext client_;
  const std::shared_ptr<const PeerProcess> process_;  // where the worker is on this machine
  Fd socket_;
  Store* const store_;
  State state_ = State::kHeader;
  std::array<char, kMessageHeaderBytes> header_bytes_;
  size_t header_received_ = 0;
  MessageHeader header_;
  std::string meta_;
  size_t meta_received_ = 0;
  ClientRequest request_;
  Payload payload_;
  bool whole_ = false;
  std::deque<Output> outputs_;
  uint64_t bytes_received_ = 0, bytes_sent_ = 0;

  std::optional<PeerMemory> peer_;                  // if the worker lends
  std::map<uint64_t, std::vector<BlockPtr>> lent_;  // by answer, until the worker has copied it
  std::unique_ptr<ExposedMemory> exposed_;          // goes before what is lent does
  bool worker_reads_ = false;                       // what is lent
};

}  // namespace tfdist::ps

#endif  // TFDIST_OPS_CORE_PS_SERVER_SESSION_H_
