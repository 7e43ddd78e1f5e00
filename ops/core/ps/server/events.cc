#include "core/ps/server/events.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "core/base/clock.h"

namespace tfdist::ps {
namespace {

constexpr size_t kMaxEvents = 4096;
constexpr double kMaxWaitSeconds = 1e6;  // a larger value might overflow a time point

}  // namespace

void Events::Add(Server::Event event) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (events_.size() == kMaxEvents) events_.pop_front();
  events_.push_back(std::move(event));
  changed_.notify_one();
}

bool Events::Wait(double seconds, Server::Event* event) {
  std::unique_lock<std::mutex> lock(mutex_);
  const std::chrono::duration<double> patience(std::clamp(seconds, 0.0, kMaxWaitSeconds));
  changed_.wait_for(lock, patience, [this] { return closed_ || !events_.empty(); });
  if (events_.empty()) return false;
  *event = std::move(events_.front());
  events_.pop_front();
  return true;
}

void Events::Close() {
  const std::lock_guard<std::mutex> lock(mutex_);
  closed_ = true;
  changed_.notify_all();
}

void Trace::Add(Kind kind, int worker, uint64_t clock, uint64_t slowest) {
  if (capacity_ == 0) return;
  TraceEvent event;
  event.nanoseconds = static_cast<uint64_t>(Nanoseconds(Clock::now()));
  event.worker = static_cast<uint32_t>(worker);
  event.kind = kind;
  event.clock = clock;
  event.slowest = slowest;
  const std::lock_guard<std::mutex> lock(mutex_);
  if (ring_.size() < capacity_) {
    ring_.push_back(event);
  } else {
    ring_[oldest_] = event;
    oldest_ = (oldest_ + 1) % capacity_;
  }
}

std::vector<TraceEvent> Trace::Copy() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  std::vector<TraceEvent> events(ring_.begin() + oldest_, ring_.end());
  events.insert(events.end(), ring_.begin(), ring_.begin() + oldest_);
  return events;
}

}  // namespace tfdist::ps
