// What a link does beside its socket with a peer on the same machine: shared memory, and lending.
#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <utility>

#include "core/collectives/link.h"

namespace tfdist {
namespace {

Status Unexpected(const char* what) {
  return Status(StatusCode::kInternal, StrCat("an unexpected ", what, " frame"));
}

}  // namespace

void Link::Welcome() {
  if (process_ != nullptr && !detached_) channel_ = SharedChannel::Create();
  if (channel_ == nullptr) return QueueControl(FrameType::kWelcome, {}, "");
  offered_ = settling_ = true;
  exposed_ = std::make_unique<ExposedMemory>();
  const std::string welcome = EncodeFrame(FrameType::kWelcome, Encode(Offer{exposed_->canary()}));
  // A new socket has room. If it is broken, Receive will find out.
  [[maybe_unused]] const Status sent =
      SendWithDescriptor(socket_, welcome, channel_->fd(), Clock::now());
}

Status Link::OnWelcome(std::string_view payload, Fd descriptor) {
  if (payload.empty()) return Status();
  if (process_ == nullptr) return Unexpected("WELCOME");
  Offer offer;
  if (Status s = Decode(payload, &offer); !s.ok()) return s;
  channel_ = SharedChannel::Open(std::move(descriptor));
  if (channel_ == nullptr) {
    QueueControl(FrameType::kShared, {}, Encode(Shared{}));
    return Status();
  }
  settling_ = true;
  peer_memory_.emplace(process_, offer.canary);
  if (!peer_memory_->IsReadable()) peer_memory_.reset();
  exposed_ = std::make_unique<ExposedMemory>();
  QueueShared({true, peer_memory_.has_value(), exposed_->canary()});
  return Status();
}

Status Link::OnShared(std::string_view payload) {
  Shared shared;
  if (Status s = Decode(payload, &shared); !s.ok()) return s;
  if (!settling_ || (!shared.joined && !offered_)) return Unexpected("SHARED");
  settling_ = false;
  if (!shared.joined) {
    exposed_.reset();
    channel_.reset();
    return Status();
  }
  in_shared_ = true;
  begin_ = end_ = 0;  // knocks, if anything
  peer_reads_ = shared.reads;
  if (!offered_) return Status();
  channel_->CloseFd();
  peer_memory_.emplace(process_, shared.canary);
  if (!peer_memory_->IsReadable()) peer_memory_.reset();
  QueueShared({true, peer_memory_.has_value(), exposed_->canary()});
  return Status();
}

void Link::QueueShared(const Shared& shared) {
  QueueControl(FrameType::kShared, {}, Encode(shared));
  outgoing_.back().last_on_socket = true;
}

void Link::Knock() {
  // If the socket is full, there are knocks enough in it; if it is broken, the peer knows.
  const char knock = 0;
  [[maybe_unused]] const ssize_t sent =
      send(socket_.get(), &knock, sizeof(knock), MSG_NOSIGNAL | MSG_DONTWAIT);
}

void Link::ReadKnocks() {
  std::array<char, 64> knocks;
  while (in_shared_ && !hung_up_) {
    const ssize_t read = recv(socket_.get(), knocks.data(), knocks.size(), 0);
    if (read < 0 && errno == EINTR) continue;
    if (read < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return;
    hung_up_ = read <= 0;
    if (read < static_cast<ssize_t>(knocks.size())) return;
  }
}

bool Link::Rest(bool idle) {
  if (!in_shared_ || (rests_ && idle_ == idle)) return true;
  idle_ = idle;
  rests_ = channel_->Sleep(idle);
  if (!rests_) channel_->StayAwake();
  return rests_;
}

Status Link::OnLend(FrameHandler& handler, const FrameHeader& header, std::string_view payload) {
  Lent lent;
  if (Status s = Decode(payload, &lent); !s.ok()) return s;
  if (!peer_memory_) return Unexpected("LEND");
  if (withdrawn_) return Status();
  FrameHeader chunk = header;
  chunk.type = FrameType::kData;
  chunk.length = 0;
  for (const iovec& piece : lent.pieces) chunk.length += static_cast<uint32_t>(piece.iov_len);
  std::vector<iovec> target;
  if (Status s = handler.OnDataBegin(peer_, chunk, scratch_.get(), &target); !s.ok()) return s;
  const Status read = peer_memory_->Read(target, lent.pieces);
  if (read.code() == StatusCode::kUnavailable) {
    withdrawn_ = true;  // whoever withdraws gives up, and its reason or its end follows
    return Status();
  }
  if (!read.ok()) return read;
  QueueControl(FrameType::kReturn, {}, "");
  return handler.OnDataEnd(peer_, chunk, scratch_.get());
}

Status Link::OnReturn(FrameHandler& handler) {
  if (lent_.empty()) return Unexpected("RETURN");
  const LentChunk chunk = lent_.front();
  lent_.pop_front();
  handler.OnChunkSent(chunk.collective, chunk.bytes);
  return Status();
}

}  // namespace tfdist
