#include "core/link.h"

#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

namespace tfdist {
namespace {

constexpr size_t kBufferBytes = 16 * 1024;
constexpr size_t kReceiveBudget = 4 * kChunkBytes;
constexpr size_t kMaxPieces = 128;  // per system call
static_assert(kBufferBytes >= kHeaderBytes + kMaxControlBytes);

Status Broken(const char* what) {
  return Status(StatusCode::kUnavailable, StrCat(what, ": ", std::strerror(errno)));
}

// Appends bytes [skip, ...) of `pieces` to `out` while it has room.
void AppendFrom(const std::vector<iovec>& pieces, size_t skip, std::vector<iovec>* out) {
  for (const iovec& piece : pieces) {
    if (out->size() == kMaxPieces) return;
    if (skip >= piece.iov_len) {
      skip -= piece.iov_len;
      continue;
    }
    out->push_back({static_cast<char*>(piece.iov_base) + skip, piece.iov_len - skip});
    skip = 0;
  }
}

}  // namespace

Link::Link(int peer, Fd socket)
    : peer_(peer),
      socket_(std::move(socket)),
      buffer_(kBufferBytes),
      scratch_(new char[kChunkBytes]) {}

void Link::QueueControl(FrameType type, const CollectiveId& id, const std::string& payload) {
  Outgoing frame;
  FrameHeader header;
  header.type = type;
  header.key = id.key;
  header.sequence = id.sequence;
  header.length = static_cast<uint32_t>(payload.size());
  frame.header = EncodeHeader(header);
  frame.payload = payload;
  frame.bytes = kHeaderBytes + payload.size();
  outgoing_.push_back(std::move(frame));
}

void Link::QueueChunk(Collective* collective, const FrameHeader& header,
                      std::vector<iovec> pieces) {
  Outgoing frame;
  frame.header = EncodeHeader(header);
  frame.pieces = std::move(pieces);
  frame.bytes = kHeaderBytes + header.length;
  frame.collective = collective;
  outgoing_.push_back(std::move(frame));
}

bool Link::has_chunks() const {
  return std::any_of(outgoing_.begin(), outgoing_.end(),
                     [](const Outgoing& frame) { return frame.collective != nullptr; });
}

void Link::Flush(FrameHandler& handler) {
  std::vector<iovec> batch;
  while (!outgoing_.empty() && !blocked_) {
    batch.clear();
    size_t skip = front_sent_;
    for (auto frame = outgoing_.begin(); frame != outgoing_.end() && batch.size() < kMaxPieces;
         ++frame) {
      std::vector<iovec> head = {{frame->header.data(), kHeaderBytes},
                                 {frame->payload.data(), frame->payload.size()}};
      AppendFrom(head, skip, &batch);
      const size_t head_bytes = kHeaderBytes + frame->payload.size();
      AppendFrom(frame->pieces, skip > head_bytes ? skip - head_bytes : 0, &batch);
      skip = 0;
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
      const Outgoing sent = std::move(outgoing_.front());
      outgoing_.pop_front();
      front_sent_ -= sent.bytes;
      if (sent.collective != nullptr) {
        handler.OnChunkSent(sent.collective, sent.bytes - kHeaderBytes);
      }
    }
  }
}

Status Link::Receive(FrameHandler& handler) {
  for (size_t budget = kReceiveBudget; budget > 0;) {
    if (begin_ > 0) {
      std::memmove(buffer_.data(), buffer_.data() + begin_, end_ - begin_);
      end_ -= begin_;
      begin_ = 0;
    }
    std::vector<iovec> batch;
    for (size_t i = target_next_; i < target_.size() && batch.size() < kMaxPieces; ++i) {
      batch.push_back(target_[i]);
    }
    // The next header may follow in the same read, unless the chunk's own memory did not all fit
    // in.
    if (batch.size() < kMaxPieces) batch.push_back({buffer_.data() + end_, kBufferBytes - end_});
    const ssize_t read = readv(socket_.get(), batch.data(), static_cast<int>(batch.size()));
    if (read == 0) return Status(StatusCode::kUnavailable, "the connection was closed");
    if (read < 0) {
      if (errno == EINTR) continue;
      if (errno == EAGAIN || errno == EWOULDBLOCK) return Status();
      return Broken("cannot receive");
    }
    size_t received = static_cast<size_t>(read);
    budget -= std::min(budget, received);
    if (detached_) continue;
    if (Status s = FillTarget(handler, &received); !s.ok()) return s;
    if (detached_) continue;
    end_ += received;
    if (Status s = Consume(handler); !s.ok()) return s;
  }
  return Status();
}

// Accounts for bytes that readv has put into the chunk's memory.
Status Link::FillTarget(FrameHandler& handler, size_t* received) {
  if (target_.empty()) return Status();
  while (target_next_ < target_.size() && *received > 0) {
    iovec& piece = target_[target_next_];
    const size_t taken = std::min(*received, piece.iov_len);
    piece.iov_base = static_cast<char*>(piece.iov_base) + taken;
    piece.iov_len -= taken;
    *received -= taken;
    if (piece.iov_len == 0) ++target_next_;
  }
  if (target_next_ < target_.size()) return Status();
  target_.clear();
  target_next_ = 0;
  return handler.OnDataEnd(peer_, chunk_, scratch_.get());
}

// Handles every whole control frame in the buffer, and moves the buffered start of a chunk to where
// it belongs.
Status Link::Consume(FrameHandler& handler) {
  while (!detached_ && target_.empty() && end_ - begin_ >= kHeaderBytes) {
    FrameHeader header;
    if (Status s = DecodeHeader(buffer_.data() + begin_, &header); !s.ok()) return s;
    if (header.type != FrameType::kData) {
      if (end_ - begin_ < kHeaderBytes + header.length) return Status();
      const std::string_view payload(buffer_.data() + begin_ + kHeaderBytes, header.length);
      begin_ += kHeaderBytes + header.length;
      if (Status s = handler.OnControl(peer_, header, payload); !s.ok()) return s;
      continue;
    }
    if (header.length == 0) return Status(StatusCode::kInvalidArgument, "an empty DATA frame");
    begin_ += kHeaderBytes;
    chunk_ = header;
    if (Status s = handler.OnDataBegin(peer_, header, scratch_.get(), &target_); !s.ok()) return s;
    size_t buffered = std::min<size_t>(end_ - begin_, header.length);
    const size_t taken = buffered;
    for (size_t i = 0, left = taken; left > 0; ++i) {
      const size_t part = std::min(left, target_[i].iov_len);
      std::memcpy(target_[i].iov_base, buffer_.data() + begin_, part);
      begin_ += part;
      left -= part;
    }
    if (Status s = FillTarget(handler, &buffered); !s.ok()) return s;
  }
  return Status();
}

void Link::Detach() {
  if (front_sent_ > 0) {
    Outgoing& front = outgoing_.front();
    for (const iovec& piece : front.pieces) {
      front.payload.append(static_cast<const char*>(piece.iov_base), piece.iov_len);
    }
    front.pieces.clear();
    front.collective = nullptr;
  }
  outgoing_.erase(std::remove_if(outgoing_.begin(), outgoing_.end(),
                                 [](const Outgoing& frame) { return frame.collective != nullptr; }),
                  outgoing_.end());
  target_.clear();
  target_next_ = 0;
  begin_ = end_ = 0;
  detached_ = true;
}

}  // namespace tfdist
