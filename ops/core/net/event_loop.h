// Event loop over epoll(7) with a wakeup descriptor, and a queue of commands from other threads.
#ifndef TFDIST_OPS_CORE_NET_EVENT_LOOP_H_
#define TFDIST_OPS_CORE_NET_EVENT_LOOP_H_

#include <sys/epoll.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <mutex>
#include <vector>

#include "core/base/status.h"
#include "core/net/fd.h"
#include "core/net/socket.h"

namespace tfdist {

class EventLoop {
 public:
  // Fails if the process has no descriptors left.
  Status Create();

  // Any thread. `events` as in epoll_ctl(2); `tag` comes back with each event.
  void Add(int fd, uint64_t tag, uint32_t events);
  void Change(int fd, uint64_t tag, uint32_t events);
  void Remove(int fd);
  // Ends the current Wait, or the next one at once.
  void Wake();

  // Waits for events until `deadline` (TimePoint::max(): an hour), and calls on_event(tag, events)
  // for each. One thread only.
  template <typename OnEvent>
  void Wait(TimePoint deadline, const OnEvent& on_event) {
    const int ready = Poll(deadline);
    for (int i = 0; i < ready; ++i) {
      if (events_[i].data.u64 == kWakeTag) {
        ClearWake();
      } else {
        on_event(events_[i].data.u64, events_[i].events);
      }
    }
  }

 private:
  static constexpr uint64_t kWakeTag = ~uint64_t{0};

  int Poll(TimePoint deadline);
  void ClearWake();

  Fd epoll_, wake_;
  std::array<epoll_event, 64> events_;
};

// Commands of any threads, run in their order by the thread that owns the changed state.
class CommandQueue {
 public:
  using Command = std::function<void()>;

  // False once the queue was closed.
  bool Push(Command command);
  // Whether there may be commands; cheap.
  bool pending() const { return pending_; }
  void Run();
  // Takes no more commands, and runs the queued ones.
  void Close();

 private:
  std::mutex mutex_;
  std::vector<Command> commands_;  // guarded by mutex_
  bool closed_ = false;            // guarded by mutex_
  std::atomic<bool> pending_{false};
};

}  // namespace tfdist

#endif  // TFDIST_OPS_CORE_NET_EVENT_LOOP_H_
