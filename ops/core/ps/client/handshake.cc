#include "core/ps/client/handshake.h"

#include <array>

#include "core/net/connect.h"

namespace tfdist::ps {

Status Handshake::Begin(const std::string& address, bool local, const Key& key,
                        const Hello& hello) {
  if (Status s = Connect(address, local, key, hello, deadline_, &socket_); !s.ok()) return s;
  FrameHeader header;
  if (Status s = ReceiveFrame(&header, &welcome_); !s.ok()) return s;
  if (!header.Is(FrameType::kWelcome) || (!welcome_.empty() && socket_.process == nullptr)) {
    return Status(StatusCode::kInternal,
                  StrCat("expected a WELCOME, received a frame of type ", int{header.type}));
  }
  return Status();
}

Status Handshake::ReceiveFrame(FrameHeader* header, std::string* meta) {
  FrameHeaderBytes head;
  Status s = ReceiveAll(socket_, head.data(), head.size(), deadline_);
  if (s.ok()) s = Decode(head.data(), LimitsOfMessages, header);
  if (!s.ok()) return s;
  meta->resize(header->meta_bytes);
  return ReceiveAll(socket_, meta->data(), meta->size(), deadline_);
}

Status Handshake::Exchange(MessageType type, const std::string& meta,
                           const std::vector<iovec>& payload, std::string* answer) {
  FrameHeader header = HeaderOf(type, 0);
  header.meta_bytes = static_cast<uint32_t>(meta.size());
  for (const iovec& piece : payload) header.payload_bytes += piece.iov_len;
  const FrameHeaderBytes head = Encode(header);
  const std::string request = std::string(head.begin(), head.end()) + meta;
  Status s = SendAll(socket_, request.data(), request.size(), deadline_);
  for (const iovec& piece : payload) {
    if (!s.ok()) return s;
    s = SendAll(socket_, static_cast<const char*>(piece.iov_base), piece.iov_len, deadline_);
  }
  if (s.ok()) s = ReceiveFrame(&header, answer);
  if (!s.ok()) return s;
  if (header.type == static_cast<uint8_t>(MessageType::kError)) {
    ErrorReply reply;
    s = Decode(*answer, &reply);
    return s.ok() ? Status(reply.code, reply.message) : s;
  }
  if (header.type != static_cast<uint8_t>(MessageType::kOk) || header.payload_bytes != 0) {
    return Status(StatusCode::kInternal,
                  StrCat("expected an answer without values, received ", header.payload_bytes,
                         " bytes in a message of type ", int{header.type}));
  }
  return Status();
}

}  // namespace tfdist::ps
