#include "core/net/acceptor.h"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <string>
#include <string_view>

namespace tfdist {
namespace {

constexpr size_t kMaxPending = 256;
constexpr int kMaxAccepts = 16;  // per event, so that other events are handled in between
constexpr auto kProofTimeout = std::chrono::seconds(10);
constexpr auto kPause = std::chrono::seconds(1);

void Add(EventLoop* loop, const Fd& fd, uint64_t tag) {
  if (fd.valid()) loop->Add(fd.get(), tag, EPOLLIN);
}

void Remove(EventLoop* loop, const Fd& fd) {
  if (fd.valid()) loop->Remove(fd.get());
}

}  // namespace

void Acceptor::Open(EventLoop* loop, const Key& key, uint64_t generation, uint32_t to,
                    Authorize authorize, Authorized authorized) {
  loop_ = loop;
  key_ = key;
  generation_ = generation;
  to_ = to;
  authorize_ = std::move(authorize);
  authorized_ = std::move(authorized);
  Watch();
}

void Acceptor::Close() {
  pending_.clear();
  listener_.Close();
}

void Acceptor::OnReady(uint64_t tag) {
  if (tag == kTcpTag) return AcceptSome(listener_.tcp());
  if (tag == kLocalTag) return AcceptSome(listener_.local());
  const auto found =
      std::find_if(pending_.begin(), pending_.end(),
                   [tag](const PendingConnection& pending) { return pending.tag == tag; });
  if (found != pending_.end()) OnPending(found);
}

void Acceptor::AcceptSome(const Fd& listener) {
  PeerSocket socket;
  errno = 0;
  for (int i = 0; i < kMaxAccepts && Accept(listener, &socket); ++i) {
    if (!socket.fd.valid()) {
      rejected_.fetch_add(1, std::memory_order_relaxed);
      continue;
    }
    if (pending_.size() == kMaxPending) Reject(pending_.begin());
    pending_.emplace_back();
    PendingConnection& pending = pending_.back();
    pending.tag = next_tag_++;
    pending.socket = std::move(socket);
    pending.deadline = Clock::now() + kProofTimeout;
    Add(loop_, pending.socket.fd, pending.tag);
  }
  // Out of descriptors: the pending connection would make epoll return again and again.
  if (errno == EMFILE || errno == ENFILE) Pause();
}

void Acceptor::OnPending(Position pending) {
  bool whole = false;
  if (!Receive(&*pending, &whole)) return Reject(pending);
  if (!whole) return;
  pending->received = 0;
  if (!pending->challenged) {
    if (!SendChallenge(&*pending)) Reject(pending);
    return;
  }
  const uint32_t rank = pending->handshake.hello().rank;
  if (!IsForUs(*pending) || !authorize_(rank)) return Reject(pending);
  Remove(loop_, pending->socket.fd);
  PeerSocket socket = std::move(pending->socket);
  pending_.erase(pending);
  authorized_(rank, std::move(socket));
}

bool Acceptor::Receive(PendingConnection* pending, bool* whole) {
  const FrameType type = pending->challenged ? FrameType::kProof : FrameType::kHello;
  const size_t length = pending->challenged ? kProofBytes : kHelloBytes;
  // At most one frame: bytes after the PROOF belong to the owner of the connection.
  const ssize_t read = recv(pending->socket.fd.get(), pending->bytes.data() + pending->received,
                            kFrameHeaderBytes + length - pending->received, 0);
  if (read < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) return true;
  if (read <= 0) return false;
  pending->received += static_cast<size_t>(read);
  if (pending->received < kFrameHeaderBytes) return true;
  FrameHeader header;
  *whole = pending->received == kFrameHeaderBytes + length;
  return Decode(pending->bytes.data(), LimitsOfConnection, &header).ok() && header.Is(type) &&
         header.meta_bytes == length;
}

// False if the HELLO is malformed, or its CHALLENGE cannot be sent.
bool Acceptor::SendChallenge(PendingConnection* pending) {
  std::string payload;
  if (!pending->handshake.Begin(key_, PayloadOf(*pending, kHelloBytes), &payload).ok()) {
    return false;
  }
  pending->challenged = true;
  const std::string challenge = EncodeFrame(FrameType::kChallenge, payload);
  return send(pending->socket.fd.get(), challenge.data(), challenge.size(), MSG_NOSIGNAL) ==
         static_cast<ssize_t>(challenge.size());
}

bool Acceptor::IsForUs(const PendingConnection& pending) const {
  const Hello& hello = pending.handshake.hello();
  return pending.handshake.Verify(PayloadOf(pending, kProofBytes)) &&
         hello.generation == generation_ && hello.to == to_;
}

std::string_view Acceptor::PayloadOf(const PendingConnection& pending, size_t length) {
  return {pending.bytes.data() + kFrameHeaderBytes, length};
}

void Acceptor::Reject(Position pending) {
  rejected_.fetch_add(1, std::memory_order_relaxed);
  pending_.erase(pending);  // closes the socket, which also removes it from epoll
}

void Acceptor::Watch() {
  Add(loop_, listener_.tcp(), kTcpTag);
  Add(loop_, listener_.local(), kLocalTag);
}

void Acceptor::Pause() {
  Remove(loop_, listener_.tcp());
  Remove(loop_, listener_.local());
  paused_until_ = Clock::now() + kPause;
}

void Acceptor::CheckTime(TimePoint now) {
  if (paused_until_ <= now) {
    paused_until_ = TimePoint::max();
    Watch();
  }
  while (!pending_.empty() && pending_.front().deadline <= now) Reject(pending_.begin());
}

TimePoint Acceptor::NextDeadline() const {
  return pending_.empty() ? paused_until_ : std::min(paused_until_, pending_.front().deadline);
}

}  // namespace tfdist
