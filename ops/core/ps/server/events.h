// A server's reports: events for the control plane, and a trace of pushes and pulls.
#ifndef TFDIST_OPS_CORE_PS_SERVER_EVENTS_H_
#define TFDIST_OPS_CORE_PS_SERVER_EVENTS_H_

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <mutex>
#include <vector>

#include "core/ps/server/server.h"

namespace tfdist::ps {

// A queue of bounded size; when it is full, the oldest event is dropped.
class Events {
 public:
  void Add(Server::Event event);
  bool Wait(double seconds, Server::Event* event);
  // Ends all waits.
  void Close();

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Server::Event> events_;
  bool closed_ = false;
};

// The latest `capacity` events. A capacity of 0 costs nothing.
class Trace {
 public:
  enum Kind : uint32_t { kPull = 1, kPush = 2, kDropped = 3, kClosed = 4, kUndone = 5 };

  explicit Trace(size_t capacity) : capacity_(capacity) { ring_.reserve(capacity); }
  void Add(Kind kind, int worker, uint64_t clock, uint64_t slowest);
  std::vector<TraceEvent> Copy() const;

 private:
  const size_t capacity_;
  mutable std::mutex mutex_;
  std::vector<TraceEvent> ring_;
  size_t oldest_ = 0;  // once the ring is full
};

}  // namespace tfdist::ps

#endif  // TFDIST_OPS_CORE_PS_SERVER_EVENTS_H_
