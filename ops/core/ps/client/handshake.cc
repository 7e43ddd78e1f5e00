#include "core/ps/client/handshake.h"

#include <array>

#include "core/net/authenticate.h"

namespace tfdist::ps {

Status Handshake::Begin(const std::string& address, bool local, const Key& key,
                        const Hello& hello) {
  Status s = Dial(address, local, deadline_, &socket_);
  if (s.ok()) s = Authenticate(socket_, key, hello, deadline_);
  FrameHeaderBytes welcome;
  if (s.ok()) s = ReceiveAll(socket_.fd, welcome.data(), welcome.size(), deadline_);
  FrameHeader header;
  if (s.ok()) s = Decode(welcome.data(), LimitsOfConnection, &header);
  if (s.ok() && (!header.Is(FrameType::kWelcome) || header.meta_bytes != 0)) {
    s = Status(StatusCode::kInternal, StrCat("expected a WELCOME, received a frame of type ",
                                             int{header.type}));
  }
  return s;
}

Status Handshake::AgreeToLend(Lending* lending) {
  if (socket_.process == nullptr) return Status();
  lending->exposed = std::make_unique<ExposedMemory>();
  LendMessage ours{lending->exposed->canary(), false}, theirs;
  if (Status s = Ask(MessageType::kLend, ours, {}, &theirs); !s.ok()) return s;
  if (!theirs.reads) lending->exposed.reset();
  lending->peer.emplace(socket_.process, theirs.canary);
  if (!lending->peer->IsReadable()) {
    lending->peer.reset();
    return Status();
  }
  ours.reads = true;
  return Ask(MessageType::kLend, ours, {}, &theirs);
}

Status Handshake::Exchange(MessageType type, const std::string& meta,
                           const std::vector<iovec>& payload, std::string* answer) {
  MessageHeader header;
  header.type = type;
  header.meta_bytes = static_cast<uint32_t>(meta.size());
  for (const iovec& piece : payload) header.payload_bytes += piece.iov_len;
  std::array<char, kMessageHeaderBytes> head = Encode(header);
  const std::string request = std::string(head.begin(), head.end()) + meta;
  Status s = SendAll(socket_.fd, request.data(), request.size(), deadline_);
  for (const iovec& piece : payload) {
    if (!s.ok()) return s;
    s = SendAll(socket_.fd, static_cast<const char*>(piece.iov_base), piece.iov_len, deadline_);
  }
  if (s.ok()) s = ReceiveAll(socket_.fd, head.data(), head.size(), deadline_);
  if (s.ok()) s = Decode(head.data(), &header);
  if (!s.ok()) return s;
  answer->resize(header.meta_bytes);
  s = ReceiveAll(socket_.fd, answer->data(), answer->size(), deadline_);
  if (s.ok() && header.type == MessageType::kError) {
    ErrorReply reply;
    s = Decode(*answer, &reply);
    return s.ok() ? Status(reply.code, reply.message) : s;
  }
  if (s.ok() && (header.type != MessageType::kOk || header.payload_bytes != 0)) {
    s = Status(StatusCode::kInternal,
               StrCat("expected an answer without values, received ", header.payload_bytes,
                      " bytes in a message of type ", static_cast<int>(header.type)));
  }
  return s;
}

}  // namespace tfdist::ps
