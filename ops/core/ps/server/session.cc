#include "core/ps/server/session.h"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <new>
#include <utility>

#include "core/net/frame.h"

namespace tfdist::ps {
namespace {

constexpr size_t kMetaAhead = 64 << 10;  // meta's memory is taken as its bytes come
constexpr size_t kMaxOutputs = 64;
constexpr size_t kMaxLent = 64;  // answers; more are sent
constexpr size_t kPiecesOfWrite = 256;
constexpr uint64_t kTurnBytes = 8 << 20;  // then the thread's other sessions have their turn

}  // namespace

Session::Session(uint64_t id, int worker, PeerSocket socket, Store* store)
    : process_(std::move(socket.process)),
      socket_(std::move(socket.fd)),
      store_(store),
      payload_(&store->pool()) {
  caller_.session = id;
  caller_.worker = worker;
  outputs_.push_back({EncodeFrame(FrameType::kWelcome, ""), {}});
}

Status Session::Receive(const OnRequest& on_request) {
  uint64_t turn = 0;
  while (turn < kTurnBytes && wants_input()) {
    uint64_t received = 0;
    Status status;
    switch (state_) {
      case State::kHeader:
        status = ReceiveHeader(&received);
        break;
      case State::kMeta:
        status = ReceiveMeta(&received);
        break;
      case State::kPayload:
        status = ReceivePayload(&received);
        break;
    }
    if (!status.ok()) return status;
    turn += received;
    if (whole_) {
      whole_ = false;
      ExpectHeader();
      return on_request(std::move(request_));
    }
    if (received == 0) break;
  }
  return Status();
}

Status Session::ReceiveHeader(uint64_t* received) {
  Status s = ReceiveSome(socket(), header_bytes_.data() + header_received_,
                         header_bytes_.size() - header_received_, received);
  if (!s.ok()) return s;
  header_received_ += *received;
  if (header_received_ < header_bytes_.size()) return Status();
  if (s = Decode(header_bytes_.data(), &header_); !s.ok()) return s;
  meta_received_ = 0;
  meta_.clear();
  state_ = State::kMeta;
  return header_.meta_bytes == 0 ? BeginPayload() : Status();
}

Status Session::ReceiveMeta(uint64_t* received) {
  if (meta_received_ == meta_.size()) {
    meta_.resize(std::min<size_t>(header_.meta_bytes, meta_received_ + kMetaAhead));
  }
  const Status status =
      ReceiveSome(socket(), meta_.data() + meta_received_, meta_.size() - meta_received_, received);
  if (!status.ok()) return status;
  meta_received_ += *received;
  return meta_received_ == header_.meta_bytes ? BeginPayload() : Status();
}

Status Session::BeginPayload() {
  if (caller_.opened == (header_.type == MessageType::kOpen)) {
    return Status(StatusCode::kInvalidArgument, "a connection begins with one OPEN, and only that");
  }
  if (header_.type == MessageType::kLend) return OnLend();
  if (header_.type == MessageType::kCopied) return OnCopied();
  std::string_view meta = meta_;
  std::vector<iovec> lent;
  if (Status s = TakeLent(header_, &meta, &lent); !s.ok()) return s;
  if (Status s = Parse(header_, meta, *store_, &request_); !s.ok()) return s;
  if (header_.lent > 0) return CopyPayload(std::move(lent));
  if (!request_.refusal.ok()) request_.parts.clear();
  try {
    payload_.Expect(std::move(request_.parts));
  } catch (const std::bad_alloc& error) {
    RefuseForMemory(error);
  }
  if (!request_.refusal.ok()) payload_.Discard(header_.payload_bytes);
  state_ = State::kPayload;
  if (!payload_.complete()) return Status();
  request_.payload = payload_.Take();
  whole_ = true;
  return Status();
}

// All at once: a payload of 100 MB keeps other sessions waiting for some 20 ms.
Status Session::CopyPayload(std::vector<iovec> lent) {
  if (!peer_.has_value()) {
    return Status(StatusCode::kInvalidArgument, "a request lends its values, but no LEND has come");
  }
  if (request_.refusal.ok()) {
    Status status;
    try {
      payload_.Expect(std::move(request_.parts));
      RemoteRead borrowed(*peer_, std::move(lent));
      status = payload_.Copy(&borrowed);
    } catch (const std::bad_alloc& error) {
      RefuseForMemory(error);
      payload_.Discard(0);  // it was never on its way
    }
    request_.payload = payload_.Take();
    if (status.code() == StatusCode::kFailedPrecondition) {
      Send({MessageType::kResend, header_.number, "", {}});
      ExpectHeader();
      return Status();
    }
    if (!status.ok()) return status;
    if (request_.refusal.ok()) bytes_received_ += header_.payload_bytes;
  }
  whole_ = true;
  return Status();
}

Status Session::OnLend() {
  LendMessage message;
  if (Status s = Decode(meta_, &message); !s.ok()) return s;
  if (header_.payload_bytes > 0) return InvalidArgument("a LEND message with values");
  if (process_ == nullptr) return InvalidArgument("a LEND message over TCP");
  if (exposed_ == nullptr) exposed_ = std::make_unique<ExposedMemory>();
  worker_reads_ = message.reads;
  peer_.emplace(process_, message.canary);
  if (!peer_->IsReadable()) peer_.reset();
  Send({MessageType::kOk,
        header_.number,
        Encode(LendMessage{exposed_->canary(), peer_.has_value()}),
        {}});
  ExpectHeader();
  return Status();
}

Status Session::OnCopied() {
  if (header_.meta_bytes > 0 || header_.payload_bytes > 0) {
    return Status(StatusCode::kInvalidArgument, "malformed COPIED message");
  }
  lent_.erase(header_.number);
  ExpectHeader();
  return Status();
}

void Session::ExpectHeader() {
  state_ = State::kHeader;
  header_received_ = 0;
}

Status Session::ReceivePayload(uint64_t* received) {
  Status status;
  try {
    status = payload_.Receive(socket(), received);
  } catch (const std::bad_alloc& error) {
    RefuseForMemory(error);
  }
  bytes_received_ += *received;
  if (!status.ok() || !payload_.complete()) return status;
  request_.payload = payload_.Take();
  whole_ = true;
  return Status();
}

// The request is answered once all of it has come; what it brings is thrown away.
void Session::RefuseForMemory(const std::bad_alloc& error) {
  payload_.DiscardRest();
  store_->memory().Reclaim();
  const auto sharing = store_->Share();
  request_.refusal = OutOfMemory(request_, *store_, error);
}

void Session::Send(Answer answer) {
  MessageHeader header;
  header.type = answer.type;
  header.number = answer.number;
  header.meta_bytes = static_cast<uint32_t>(answer.meta.size());
  for (const BlockPtr& block : answer.payload) header.payload_bytes += block->bytes();
  if (worker_reads_ && header.payload_bytes >= kMinLentBytes && lent_.size() < kMaxLent) {
    std::vector<iovec> pieces;
    for (const BlockPtr& block : answer.payload) pieces.push_back({block->data(), block->bytes()});
    PutLent(pieces, &header, &answer.meta);
    lent_[answer.number] = std::exchange(answer.payload, {});
    bytes_sent_ += header.payload_bytes;
  }
  const auto bytes = Encode(header);
  outputs_.push_back(
      {std::string(bytes.begin(), bytes.end()) + answer.meta, std::move(answer.payload)});
}

bool Session::wants_input() const { return outputs_.size() < kMaxOutputs; }

size_t Session::Gather(iovec* pieces, size_t most) const {
  size_t count = 0;
  for (const Output& output : outputs_) {
    for (size_t i = output.piece; i <= output.blocks.size() && count < most; ++i) {
      char* data = i == 0 ? const_cast<char*>(output.head.data()) : output.blocks[i - 1]->data();
      const size_t size = i == 0 ? output.head.size() : output.blocks[i - 1]->bytes();
      const size_t sent = i == output.piece ? output.sent : 0;
      pieces[count++] = {data + sent, size - sent};
    }
    if (count == most) break;
  }
  return count;
}

Status Session::Flush() {
  while (!outputs_.empty()) {
    iovec pieces[kPiecesOfWrite];
    msghdr message{};
    message.msg_iov = pieces;
    message.msg_iovlen = Gather(pieces, kPiecesOfWrite);
    const ssize_t sent = sendmsg(socket(), &message, MSG_NOSIGNAL);
    if (sent >= 0) {
      Advance(static_cast<size_t>(sent));
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      return Status();
    } else if (errno != EINTR) {
      return Status(StatusCode::kUnavailable, std::strerror(errno));
    }
  }
  return Status();
}

void Session::Advance(size_t bytes) {
  while (!outputs_.empty()) {
    Output& output = outputs_.front();
    const bool head = output.piece == 0;
    const size_t size = head ? output.head.size() : output.blocks[output.piece - 1]->bytes();
    const size_t part = std::min(bytes, size - output.sent);
    if (!head) bytes_sent_ += part;
    output.sent += part;
    bytes -= part;
    if (output.sent < size) return;
    if (!head) output.blocks[output.piece - 1].reset();
    output.sent = 0;
    if (++output.piece > output.blocks.size()) outputs_.pop_front();
  }
}

}  // namespace tfdist::ps
