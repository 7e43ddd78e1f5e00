#include "core/collectives/link.h"

#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <numeric>
#include <utility>

namespace tfdist {
namespace {

constexpr size_t kBufferBytes = 16 * 1024;
constexpr size_t kReceiveBudget = 4 * kChunkBytes;
constexpr size_t kMaxPieces = 128;  // per system call
static_assert(kBufferBytes >= kHeaderBytes + kMaxControlBytes);

// Below this many bytes a chunk is copied twice, through shared memory, even if it has to wait for
// room there: it then needs no RETURN.
constexpr size_t kLendBytes = 48 * 1024;

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

size_t BytesOf(const std::vector<iovec>& pieces) {
  const auto add = [](size_t sum, const iovec& piece) { return sum + piece.iov_len; };
  return std::accumulate(pieces.begin(), pieces.end(), size_t{0}, add);
}

void Append(char* data, size_t bytes, size_t* skip, std::vector<iovec>* out) {
  const size_t skipped = std::min(*skip, bytes);
  *skip -= skipped;
  if (bytes > skipped) out->push_back({data + skipped, bytes - skipped});
}

}  // namespace

Link::Link(int peer, PeerSocket socket)
    : peer_(peer),
      process_(std::move(socket.process)),
      socket_(std::move(socket.fd)),
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
  frame.urgent = type != FrameType::kOpen;
  outgoing_.push_back(std::move(frame));
}

void Link::QueueChunk(Collective* collective, const FrameHeader& header,
                      std::vector<iovec> pieces) {
  Outgoing frame;
  frame.collective = collective;
  if (peer_reads_ && header.length >= kLendBytes && pieces.size() <= kMaxLentPieces &&
      !HasRoom(kHeaderBytes + header.length)) {
    frame.lent_bytes = header.length;
    frame.payload = Encode(Lent{std::move(pieces)});
    FrameHeader lend = header;
    lend.type = FrameType::kLend;
    lend.length = static_cast<uint32_t>(frame.payload.size());
    frame.header = EncodeHeader(lend);
    frame.bytes = kHeaderBytes + lend.length;
  } else {
    frame.urgent = false;  // for a chunk that is lent, the sender waits until it is returned
    frame.header = EncodeHeader(header);
    frame.pieces = std::move(pieces);
    frame.bytes = kHeaderBytes + header.length;
  }
  outgoing_.push_back(std::move(frame));
}

// In the shared memory, behind what is to go there first. To copy twice takes less than to look up
// every page of another process, as long as nobody waits.
bool Link::HasRoom(size_t bytes) const {
  const size_t most = channel_->Room() + front_sent_;
  for (size_t i = 0; i < outgoing_.size() && bytes <= most; ++i) bytes += outgoing_[i].bytes;
  return bytes <= most;
}

bool Link::has_chunks() const {
  return !lent_.empty() ||
         std::any_of(outgoing_.begin(), outgoing_.end(),
                     [](const Outgoing& frame) { return frame.collective != nullptr; });
}

void Link::Flush(FrameHandler& handler) {
  while (!outgoing_.empty() && !blocked_) {
    const size_t written = Write();
    if (written == 0) {
      blocked_ = true;
      return;
    }
    Written(written, handler);
  }
}

// As much as there is room for, of as many frames as go into one call.
size_t Link::Write() {
  batch_.clear();
  size_t skip = front_sent_;
  bool urgent = false;
  for (Outgoing& frame : outgoing_) {
    if (batch_.size() + 2 > kMaxPieces) break;
    urgent |= frame.urgent;
    Append(frame.header.data(), kHeaderBytes, &skip, &batch_);
    Append(frame.payload.data(), frame.payload.size(), &skip, &batch_);
    AppendFrom(frame.pieces, skip, &batch_);
    skip = 0;
    if (frame.last_on_socket) break;
  }
  if (out_shared_) {
    const size_t written = channel_->Write(batch_);
    // An idle peer must make room, too.
    if (channel_->ReaderSleeps(urgent || written < BytesOf(batch_))) Knock();
    return written;
  }
  msghdr message{};
  message.msg_iov = batch_.data();
  message.msg_iovlen = batch_.size();
  ssize_t written;
  do {
    written = sendmsg(socket_.get(), &message, MSG_NOSIGNAL);
  } while (written < 0 && errno == EINTR);
  return written < 0 ? 0 : static_cast<size_t>(written);
}

void Link::Written(size_t bytes, FrameHandler& handler) {
  front_sent_ += bytes;
  while (!outgoing_.empty() && front_sent_ >= outgoing_.front().bytes) {
    const Outgoing sent = std::move(outgoing_.front());
    outgoing_.pop_front();
    front_sent_ -= sent.bytes;
    if (sent.last_on_socket) out_shared_ = true;
    if (sent.collective == nullptr) continue;
    if (sent.lent_bytes > 0) {
      lent_.push_back({sent.collective, sent.lent_bytes});
    } else {
      handler.OnChunkSent(sent.collective, sent.bytes - kHeaderBytes);
    }
  }
}

Status Link::Receive(FrameHandler& handler, bool* any) {
  if (in_shared_ && rests_) {
    channel_->StayAwake();
    rests_ = false;
  }
  if (blocked_ && out_shared_ && channel_->Room() > 0) blocked_ = false;
  for (size_t budget = kReceiveBudget; budget > 0;) {
    if (begin_ > 0) {
      std::memmove(buffer_.data(), buffer_.data() + begin_, end_ - begin_);
      end_ -= begin_;
      begin_ = 0;
    }
    size_t received = 0;
    if (Status s = Read(&received); !s.ok() || received == 0) return s;
    if (any != nullptr) *any = true;
    budget -= std::min(budget, received);
    if (detached_) continue;
    if (Status s = FillTarget(handler, &received); !s.ok()) return s;
    if (detached_) continue;
    end_ += received;
    if (Status s = Consume(handler); !s.ok()) return s;
  }
  return Status();
}

// Once: into the chunk's memory, and what follows it into the buffer. `received` 0: there is
// nothing.
Status Link::Read(size_t* received) {
  batch_.clear();
  for (size_t i = target_next_; i < target_.size() && batch_.size() < kMaxPieces; ++i) {
    batch_.push_back(target_[i]);
  }
  // The next header may follow in the same read, unless the chunk's own memory did not all fit in.
  if (batch_.size() < kMaxPieces) batch_.push_back({buffer_.data() + end_, kBufferBytes - end_});
  if (in_shared_) {
    const bool ended = hung_up_;  // whatever the peer has written was there by then
    const ssize_t read = channel_->Read(batch_);
    if (read < 0) return Status(StatusCode::kUnavailable, "the shared memory was overwritten");
    if (read == 0 && ended) return Status(StatusCode::kUnavailable, "the connection was closed");
    if (read > 0 && channel_->WriterWaits()) Knock();
    *received = static_cast<size_t>(read);
    return Status();
  }
  ssize_t read;
  do {
    read = readv(socket_.get(), batch_.data(), static_cast<int>(batch_.size()));
  } while (read < 0 && errno == EINTR);
  if (read == 0) return Status(StatusCode::kUnavailable, "the connection was closed");
  if (read < 0 && errno != EAGAIN && errno != EWOULDBLOCK) {
    return Status(StatusCode::kUnavailable, StrCat("cannot receive: ", std::strerror(errno)));
  }
  *received = read < 0 ? 0 : static_cast<size_t>(read);
  return Status();
}

// Accounts for bytes that were read into the chunk's memory.
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
  return withdrawn_ ? Status() : handler.OnDataEnd(peer_, chunk_, scratch_.get());
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
      if (Status s = OnControl(handler, header, payload); !s.ok()) return s;
      continue;
    }
    if (header.length == 0) return Status(StatusCode::kInvalidArgument, "an empty DATA frame");
    begin_ += kHeaderBytes;
    chunk_ = header;
    if (withdrawn_) {
      target_.push_back({scratch_.get(), header.length});
    } else if (Status s = handler.OnDataBegin(peer_, header, scratch_.get(), &target_); !s.ok()) {
      return s;
    }
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

Status Link::OnControl(FrameHandler& handler, const FrameHeader& header, std::string_view payload) {
  switch (header.type) {
    case FrameType::kShared:
      return OnShared(payload);
    case FrameType::kLend:
      return OnLend(handler, header, payload);
    case FrameType::kReturn:
      return OnReturn(handler);
    default:
      return handler.OnControl(peer_, header, payload);
  }
}

void Link::Detach() {
  exposed_.reset();  // before its memory goes to others
  peer_reads_ = false;
  lent_.clear();
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
