#include "core/ps/client/connection.h"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

namespace tfdist::ps {
namespace {

constexpr size_t kBufferBytes = 64 * 1024;
constexpr size_t kReceiveBudget = 4 << 20;
constexpr size_t kMaxPieces = 256;  // per system call

// Appends bytes [*skip, ...) of `piece` to `out`, and takes what it passes off `skip`.
void AppendFrom(const iovec& piece, size_t* skip, std::vector<iovec>* out) {
  if (*skip >= piece.iov_len) {
    *skip -= piece.iov_len;
    return;
  }
  out->push_back({static_cast<char*>(piece.iov_base) + *skip, piece.iov_len - *skip});
  *skip = 0;
}

}  // namespace

Connection::Connection(int server, Fd socket, Lending lending)
    : server_(server),
      socket_(std::move(socket)),
      buffer_(kBufferBytes),
      lending_(std::move(lending)),
      lends_(lending_.exposed != nullptr) {}

void Connection::Queue(MessageType type, uint64_t number, std::string meta,
                       std::vector<iovec> payload, std::shared_ptr<const void> owner) {
  Outgoing request;
  MessageHeader header;
  header.type = type;
  header.request_id = number;
  header.meta_bytes = static_cast<uint32_t>(meta.size());
  for (const iovec& piece : payload) header.payload_bytes += piece.iov_len;
  if (lends_ && header.payload_bytes >= kMinExposedBytes) {
    AppendExposed(std::exchange(payload, {}), &header, &meta);
    lent_[number] = owner;
  }
  const auto bytes = Encode(header);
  request.head.reserve(bytes.size() + meta.size());
  request.head.assign(bytes.begin(), bytes.end());
  request.head += meta;
  request.bytes = request.head.size() + (header.exposed_pieces > 0 ? 0 : header.payload_bytes);
  request.payload = std::move(payload);
  request.owner = std::move(owner);
  outgoing_.push_back(std::move(request));
}

void Connection::Flush() {
  std::vector<iovec> batch;
  while (!outgoing_.empty() && !blocked_) {
    batch.clear();
    size_t skip = front_sent_;
    for (Outgoing& request : outgoing_) {
      AppendFrom({request.head.data(), request.head.size()}, &skip, &batch);
      for (const iovec& piece : request.payload) {
        if (batch.size() >= kMaxPieces) break;
        AppendFrom(piece, &skip, &batch);
      }
      if (batch.size() >= kMaxPieces) break;
    }
    msghdr message{};
    message.msg_iov = batch.data();
    message.msg_iovlen = batch.size();
    const ssize_t written = sendmsg(socket_.get(), &message, MSG_NOSIGNAL);
    if (written < 0) {
      if (errno == EINTR) continue;
      blocked_ = true;
      return;
    }
    front_sent_ += static_cast<size_t>(written);
    while (!outgoing_.empty() && front_sent_ >= outgoing_.front().bytes) {
      front_sent_ -= outgoing_.front().bytes;
      outgoing_.pop_front();
    }
  }
}

Status Connection::Receive(AnswerHandler& handler) {
  std::vector<iovec> batch;
  for (size_t budget = kReceiveBudget; budget > 0;) {
    if (begin_ > 0) {
      std::memmove(buffer_.data(), buffer_.data() + begin_, end_ - begin_);
      end_ -= begin_;
      begin_ = 0;
    }
    batch.clear();
    for (size_t i = target_next_; i < target_.size() && batch.size() < kMaxPieces; ++i) {
      batch.push_back(target_[i]);
    }
    // The next header may follow in the same read, unless the payload's memory did not all fit in.
    if (batch.size() < kMaxPieces) batch.push_back({buffer_.data() + end_, buffer_.size() - end_});
    const ssize_t read = readv(socket_.get(), batch.data(), static_cast<int>(batch.size()));
    if (read == 0) return Status(StatusCode::kUnavailable, "the connection was closed");
    if (read < 0) {
      if (errno == EINTR) continue;
      if (errno == EAGAIN || errno == EWOULDBLOCK) return Status();
      return Status(StatusCode::kUnavailable, StrCat("cannot receive: ", std::strerror(errno)));
    }
    size_t received = static_cast<size_t>(read);
    budget -= std::min(budget, received);
    if (Status s = Account(handler, &received); !s.ok()) return s;
    end_ += received;
    if (Status s = Consume(handler); !s.ok()) return s;
  }
  return Status();
}

// Accounts for bytes that have come into the payload's memory.
Status Connection::Account(AnswerHandler& handler, size_t* received) {
  if (!in_payload_) return Status();
  while (target_next_ < target_.size() && *received > 0) {
    iovec& piece = target_[target_next_];
    const size_t taken = std::min(*received, piece.iov_len);
    piece.iov_base = static_cast<char*>(piece.iov_base) + taken;
    piece.iov_len -= taken;
    payload_received_ += taken;
    payload_touched_ = payload_received_;
    *received -= taken;
    if (piece.iov_len == 0) ++target_next_;
  }
  if (target_next_ < target_.size()) return Status();
  target_.clear();
  target_next_ = 0;
  in_payload_ = false;
  return handler.OnPayload(server_, answer_);
}

// Handles every whole header with its meta in the buffer, and moves the buffered start of a payload
// to where it belongs.
Status Connection::Consume(AnswerHandler& handler) {
  while (!in_payload_ && end_ - begin_ >= kMessageHeaderBytes) {
    const char* const head = buffer_.data() + begin_;
    if (Status s = Decode(head, &answer_); !s.ok()) return s;
    const size_t head_bytes = kMessageHeaderBytes + answer_.meta_bytes;
    if (end_ - begin_ < head_bytes) {
      // Nothing points into the buffer here.
      if (buffer_.size() < head_bytes) buffer_.resize(begin_ + head_bytes);
      return Status();
    }
    begin_ += head_bytes;
    std::string_view meta(head + kMessageHeaderBytes, answer_.meta_bytes);
    std::vector<iovec> lent;
    if (Status s = TakeExposed(answer_, &meta, &lent); !s.ok()) return s;
    lent_.erase(answer_.request_id);
    if (Status s = handler.OnAnswer(server_, answer_, meta, &target_); !s.ok()) return s;
    const Status status =
        answer_.exposed_pieces > 0 ? CopyPayload(handler, std::move(lent)) : BeginPayload(handler);
    if (!status.ok()) return status;
  }
  return Status();
}

Status Connection::CopyPayload(AnswerHandler& handler, std::vector<iovec> lent) {
  payload_received_ = payload_touched_ = 0;
  if (!target_.empty()) {
    if (!lending_.peer.has_value()) {
      return Status(StatusCode::kInvalidArgument,
                    "an answer lends its values, but no LEND was sent");
    }
    payload_touched_ = answer_.payload_bytes;
    RemoteRead borrowed(*lending_.peer, std::move(lent));
    if (Status s = borrowed.Read(target_.data(), target_.size()); !s.ok()) return s;
    payload_received_ = answer_.payload_bytes;
    target_.clear();
  }
  Queue(MessageType::kRelease, answer_.request_id, "", {}, nullptr);
  return handler.OnPayload(server_, answer_);
}

Status Connection::BeginPayload(AnswerHandler& handler) {
  if (target_.empty() && answer_.payload_bytes > 0) {
    waste_.resize(kBufferBytes);
    for (uint64_t left = answer_.payload_bytes; left > 0;) {
      const size_t part = std::min<uint64_t>(left, waste_.size());
      target_.push_back({waste_.data(), part});
      left -= part;
    }
  }
  in_payload_ = true;
  payload_received_ = payload_touched_ = 0;
  size_t buffered = std::min<uint64_t>(end_ - begin_, answer_.payload_bytes);
  for (size_t i = 0, left = buffered; left > 0; ++i) {
    const size_t part = std::min(left, target_[i].iov_len);
    std::memcpy(target_[i].iov_base, buffer_.data() + begin_, part);
    begin_ += part;
    left -= part;
  }
  return Account(handler, &buffered);
}

}  // namespace tfdist::ps
