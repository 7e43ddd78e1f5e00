#include "core/net/event_loop.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <utility>

namespace tfdist {
namespace {

constexpr int64_t kMaxWaitMilliseconds = 3600 * 1000;

void Control(int epoll, int operation, int fd, uint64_t tag, uint32_t events) {
  epoll_event event{};
  event.events = events;
  event.data.u64 = tag;
  epoll_ctl(epoll, operation, fd, &event);
}

}  // namespace

Status EventLoop::Create() {
  epoll_ = Fd(epoll_create1(EPOLL_CLOEXEC));
  wake_ = Fd(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
  if (!epoll_.valid() || !wake_.valid()) {
    return Status(StatusCode::kUnavailable, StrCat("no descriptors left: ", std::strerror(errno)));
  }
  Add(wake_.get(), kWakeTag, EPOLLIN);
  return Status();
}

void EventLoop::Add(int fd, uint64_t tag, uint32_t events) {
  Control(epoll_.get(), EPOLL_CTL_ADD, fd, tag, events);
}

void EventLoop::Change(int fd, uint64_t tag, uint32_t events) {
  Control(epoll_.get(), EPOLL_CTL_MOD, fd, tag, events);
}

void EventLoop::Remove(int fd) { Control(epoll_.get(), EPOLL_CTL_DEL, fd, 0, 0); }

void EventLoop::Wake() {
  const uint64_t one = 1;
  // Fails only when the counter is full, and then the thread is awake anyway.
  [[maybe_unused]] const ssize_t written = write(wake_.get(), &one, sizeof(one));
}

int EventLoop::Poll(TimePoint deadline) {
  int64_t milliseconds = kMaxWaitMilliseconds;
  if (deadline != TimePoint::max()) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now());
    milliseconds = std::clamp<int64_t>(left.count(), 0, kMaxWaitMilliseconds);
  }
  return epoll_wait(epoll_.get(), events_.data(), static_cast<int>(events_.size()),
                    static_cast<int>(milliseconds));
}

void EventLoop::ClearWake() {
  uint64_t count;
  [[maybe_unused]] const ssize_t drained = read(wake_.get(), &count, sizeof(count));
}

bool CommandQueue::Push(Command command) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (closed_) return false;
  commands_.push_back(std::move(command));
  pending_ = true;
  return true;
}

void CommandQueue::Run() {
  if (!pending_) return;
  std::vector<Command> commands;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    commands.swap(commands_);
    pending_ = false;
  }
  for (const Command& command : commands) command();
}

void CommandQueue::Close() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    closed_ = true;
  }
  Run();
}

}  // namespace tfdist
