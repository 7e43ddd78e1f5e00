#include "core/net/acceptor.h"

#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/net/tls/credentials.h"
#include "core/net/tls/refusal_log.h"
#include "core/net/tls/tls_transport.h"
#include "core/net/transport.h"

namespace tfdist {
namespace {

constexpr size_t kMaxPending = 256;
constexpr int kMaxAccepts = 16;  // per event, so that other events are handled in between
constexpr auto kProofTimeout = std::chrono::seconds(10);
constexpr auto kPause = std::chrono::seconds(1);

void Add(EventLoop* loop, const Fd& fd, uint64_t tag) {
  if (fd.valid()) loop->Add(fd.get(), tag, EPOLLIN);
}

bool WouldBlock() { return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR; }

// A fatal alert, protocol_version, as OpenSSL understands it before a handshake.
constexpr char kRefusingAlert[] = {kTlsAlert, 3, 3, 0, 2, 2, 70};

// Sends few bytes, for which a new socket has room.
bool Answer(const PeerSocket& socket, const std::string& bytes) {
  return send(socket.fd.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL) ==
         static_cast<ssize_t>(bytes.size());
}

// Before the connection is closed. Unread bytes would make the kernel reset it, and the peer might
// not see the answer.
void Refuse(const PeerSocket& socket, const std::string& answer) {
  if (!Answer(socket, answer)) return;
  shutdown(socket.fd.get(), SHUT_WR);
  std::array<char, 4096> unread;
  [[maybe_unused]] const ssize_t drained = recv(socket.fd.get(), unread.data(), unread.size(), 0);
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
  bool ready = pending->begun;
  if (!ready && !Begin(&*pending, &ready)) return Reject(pending);
  if (ready && !CompleteHandshake(&*pending, &ready)) return Reject(pending);
  if (ready && !Receive(&*pending, &ready)) return Reject(pending);
  if (!ready) return;
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

// Tells by the first byte whether the peer encrypts, before anything is spent on it.
bool Acceptor::Begin(PendingConnection* pending, bool* ready) {
  PeerSocket& socket = pending->socket;
  pending->begun = *ready = true;
  if (socket.process != nullptr) return true;
  char first = 0;
  const ssize_t peeked = recv(socket.fd.get(), &first, 1, MSG_PEEK);
  if (peeked < 0 && WouldBlock()) {
    pending->begun = *ready = false;
    return true;
  }
  if (peeked <= 0) return false;
  auto credentials = CurrentTlsCredentials();
  if (credentials == nullptr && first == kTlsHandshake) {
    NoteRefusal(*pending, "TLS: the other side uses TLS, and this side is plain");
    Refuse(socket, EncodeFrame(FrameType::kChallenge, ""));
    return false;
  }
  if (credentials == nullptr) return true;
  if (first != kTlsHandshake) {
    NoteRefusal(*pending, BeginsFrame({&first, 1})
                              ? "TLS: the other side is plain, and this side requires TLS"
                              : "TLS: no handshake, but other data");
    Refuse(socket, std::string(kRefusingAlert, sizeof(kRefusingAlert)));
    return false;
  }
  return TlsTransport::Accept(socket.fd.get(), std::move(credentials), &socket.tls).ok();
}

bool Acceptor::CompleteHandshake(PendingConnection* pending, bool* ready) {
  const PeerSocket& socket = pending->socket;
  if (socket.tls == nullptr || socket.tls->connected()) return true;
  if (const Status s = socket.tls->Handshake(); !s.ok()) {
    NoteRefusal(*pending, s.message());
    return false;
  }
  *ready = socket.tls->connected();
  return !socket.tls->has_output();  // a new socket has room
}

bool Acceptor::Receive(PendingConnection* pending, bool* ready) {
  const FrameType type = pending->challenged ? FrameType::kProof : FrameType::kHello;
  const size_t length = pending->challenged ? kProofBytes : kHelloBytes;
  // At most one frame: bytes after the PROOF belong to the owner of the connection.
  const std::vector<iovec> rest = {
      {pending->bytes.data() + pending->received, kFrameHeaderBytes + length - pending->received}};
  size_t read = 0;
  const PeerSocket& socket = pending->socket;
  const Status status = socket.tls != nullptr ? socket.tls->Read(rest, &read)
                                              : PlainTransport(socket.fd.get()).Read(rest, &read);
  if (!status.ok()) {
    if (socket.tls != nullptr) NoteRefusal(*pending, status.message());
    return false;
  }
  pending->received += read;
  *ready = pending->received == kFrameHeaderBytes + length;
  if (pending->received < kFrameHeaderBytes) return true;
  FrameHeader header;
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
  const PeerSocket& socket = pending->socket;
  if (socket.tls == nullptr) return Answer(socket, challenge);
  const std::vector<iovec> pieces = {{const_cast<char*>(challenge.data()), challenge.size()}};
  return socket.tls->Write(pieces) == challenge.size() && !socket.tls->has_output();
}

bool Acceptor::IsForUs(const PendingConnection& pending) const {
  const Hello& hello = pending.handshake.hello();
  return pending.handshake.Verify(PayloadOf(pending, kProofBytes)) &&
         hello.generation == generation_ && hello.to == to_;
}

std::string_view Acceptor::PayloadOf(const PendingConnection& pending, size_t length) {
  return {pending.bytes.data() + kFrameHeaderBytes, length};
}

void Acceptor::NoteRefusal(const PendingConnection& pending, const std::string& why) {
  const std::string peer = PeerName(pending.socket.fd);
  ProcessRefusals().Note(peer, listener_.port(), why, Clock::now());
  const std::lock_guard<std::mutex> lock(refusal_mutex_);
  last_refusal_ = StrCat(peer, ": ", why);
}

std::string Acceptor::last_refusal() const {
  const std::lock_guard<std::mutex> lock(refusal_mutex_);
  return last_refusal_;
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
