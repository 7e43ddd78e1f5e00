#include "core/gate.h"

#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <string_view>

namespace tfdist {
namespace {

constexpr size_t kMaxGuests = 256;
constexpr auto kHelloTimeout = std::chrono::seconds(10);
constexpr auto kPause = std::chrono::seconds(1);

// Takes the same time wherever the first difference is.
bool SameToken(const Token& a, const Token& b) {
  uint8_t difference = 0;
  for (size_t i = 0; i < a.size(); ++i) difference |= a[i] ^ b[i];
  return difference == 0;
}

void Watch(int epoll, int fd, uint64_t tag) {
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.u64 = tag;
  epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event);
}

}  // namespace

void Gate::Open(int epoll, const Token& token, uint64_t generation, Admit admit,
                Admitted admitted) {
  epoll_ = epoll;
  token_ = token;
  generation_ = generation;
  admit_ = std::move(admit);
  admitted_ = std::move(admitted);
  Watch(epoll_, listener_.get(), kListenerTag);
}

void Gate::Close() {
  guests_.clear();
  listener_.Reset();
}

void Gate::OnListenerReady() {
  for (;;) {
    Fd socket = Accept(listener_);
    if (!socket.valid()) {
      // Out of descriptors: whoever waits goes on waiting, and would wake us again and again.
      if (errno == EMFILE || errno == ENFILE) Pause();
      return;
    }
    if (guests_.size() == kMaxGuests) Reject(guests_.begin());
    guests_.emplace_back();
    Guest& guest = guests_.back();
    guest.tag = next_tag_++;
    guest.socket = std::move(socket);
    guest.deadline = Clock::now() + kHelloTimeout;
    Watch(epoll_, guest.socket.get(), guest.tag);
  }
}

void Gate::OnGuestReady(uint64_t tag) {
  const auto guest =
      std::find_if(guests_.begin(), guests_.end(), [tag](const Guest& g) { return g.tag == tag; });
  if (guest == guests_.end()) return;
  // Never more than a HELLO: what follows it belongs to the link.
  const ssize_t read = recv(guest->socket.get(), guest->bytes.data() + guest->received,
                            guest->bytes.size() - guest->received, 0);
  if (read < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) return;
  if (read <= 0) return Reject(guest);
  guest->received += static_cast<size_t>(read);
  uint32_t rank = 0;
  if (guest->received >= kHeaderBytes) {
    FrameHeader header;
    if (!DecodeHeader(guest->bytes.data(), &header).ok() || header.type != FrameType::kHello ||
        header.length != kHelloBytes) {
      return Reject(guest);
    }
  }
  if (guest->received < guest->bytes.size()) return;
  if (!IsValid(*guest, &rank) || !admit_(rank)) return Reject(guest);
  epoll_ctl(epoll_, EPOLL_CTL_DEL, guest->socket.get(), nullptr);
  Fd socket = std::move(guest->socket);
  guests_.erase(guest);
  admitted_(rank, std::move(socket));
}

bool Gate::IsValid(const Guest& guest, uint32_t* rank) const {
  Hello hello;
  const std::string_view payload(guest.bytes.data() + kHeaderBytes, kHelloBytes);
  if (!Decode(payload, &hello).ok()) return false;
  *rank = hello.rank;
  return SameToken(hello.token, token_) && hello.generation == generation_;
}

void Gate::Reject(std::list<Guest>::iterator guest) {
  rejected_.fetch_add(1, std::memory_order_relaxed);
  guests_.erase(guest);  // closes the socket, which also ends its watch
}

void Gate::Pause() {
  epoll_ctl(epoll_, EPOLL_CTL_DEL, listener_.get(), nullptr);
  paused_until_ = Clock::now() + kPause;
}

void Gate::CheckTime(TimePoint now) {
  if (paused_until_ <= now) {
    paused_until_ = TimePoint::max();
    Watch(epoll_, listener_.get(), kListenerTag);
  }
  while (!guests_.empty() && guests_.front().deadline <= now) Reject(guests_.begin());
}

TimePoint Gate::NextDeadline() const {
  return guests_.empty() ? paused_until_ : std::min(paused_until_, guests_.front().deadline);
}

}  // namespace tfdist
