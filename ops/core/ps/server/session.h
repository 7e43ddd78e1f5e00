// A worker's connection, on the server's side: receives requests whole, and sends answers. Used by
// one thread only.
#ifndef TFDIST_OPS_CORE_PS_SERVER_SESSION_H_
#define TFDIST_OPS_CORE_PS_SERVER_SESSION_H_

#include <cstdint>
#include <functional>
#include <new>
#include <string_view>
#include <vector>

#include "core/net/message_stream.h"
#include "core/net/socket.h"
#include "core/ps/server/payload.h"
#include "core/ps/server/request.h"

namespace tfdist::ps {

class Session : private StreamHandler {
 public:
  // Handles a request; it may answer with Send.
  using OnRequest = std::function<Status(ClientRequest request)>;

  Session(uint64_t id, int worker, PeerSocket socket, Store* store, OnRequest on_request);

  ClientContext* client() { return &client_; }
  int socket() const { return stream_.fd(); }
  uint64_t bytes_received() const { return stream_.bytes_received(); }  // of values
  uint64_t bytes_sent() const { return stream_.bytes_sent(); }

  // Receives requests, within a budget. An error ends the session: kUnavailable if the connection
  // is broken, else because of the worker's data.
  Status Receive() { return stream_.Receive(*this); }
  void Send(Answer answer);
  // Sends as much as the connection takes.
  void Flush() { stream_.Flush(*this); }

  bool has_output() const { return !stream_.idle(); }
  bool wants_input() const { return stream_.wants_input(); }
  // Whether requests were held back because too many answers waited.
  bool stalled() const { return stream_.stalled(); }
  void Unblock() { stream_.Unblock(); }

 private:
  Status OnFrame(const FrameHeader& header, std::string_view meta) override;
  Status OnPayload(const FrameHeader& header, uint64_t received,
                   std::vector<iovec>* target) override;
  Status OnFrameEnd(const FrameHeader& header) override;
  void OnSent(void*, uint64_t) override {}
  void RefuseForMemory(const std::bad_alloc& error);

  ClientContext client_;
  Store* const store_;
  const OnRequest on_request_;
  ClientRequest request_;
  Payload payload_;
  MessageStream stream_;
};

}  // namespace tfdist::ps

#endif  // TFDIST_OPS_CORE_PS_SERVER_SESSION_H_
