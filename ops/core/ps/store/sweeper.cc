#include "core/ps/store/sweeper.h"

#include <algorithm>
#include <chrono>
#include <new>

namespace tfdist::ps {
namespace {

constexpr double kMinSeconds = 1, kMaxSeconds = 60;

}  // namespace

double SweepSeconds(const TableConfig& config) {
  if (config.ttl_seconds == 0) return config.min_norm == 0 ? 0 : kMaxSeconds;
  return std::clamp(config.ttl_seconds / 4, kMinSeconds, kMaxSeconds);
}

void Sweeper::Start() {
  thread_ = std::thread([this] { Run(); });
}

void Sweeper::Stop() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    stop_ = true;
  }
  stopping_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void Sweeper::Run() {
  std::unique_lock<std::mutex> lock(mutex_);
  // At the shortest interval, as tables may be created at any time.
  while (!stopping_.wait_for(lock, std::chrono::duration<double>(kMinSeconds),
                             [this] { return stop_; })) {
    lock.unlock();
    try {
      SweepDue();
    } catch (const std::bad_alloc&) {  // the next round tries again
    }
    lock.lock();
  }
}

void Sweeper::SweepDue() {
  for (const auto& table : store_->tables()) {
    const double seconds = SweepSeconds(table->config());
    if (seconds == 0) continue;
    const TimePoint now = Clock::now();
    const auto next = now + DurationOf(seconds);
    const auto [due, is_new] = due_.emplace(table.get(), next);
    if (is_new || due->second > now) continue;
    table->Sweep(store_->clock().Now());
    due->second = next;
  }
}

}  // namespace tfdist::ps
