// One of a server's threads: its epoll, and its share of the connections.
#ifndef TFDIST_OPS_CORE_PS_SERVER_SERVER_THREAD_H_
#define TFDIST_OPS_CORE_PS_SERVER_SERVER_THREAD_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "core/net/acceptor.h"
#include "core/net/event_loop.h"
#include "core/net/socket.h"
#include "core/ps/server/handlers/request_handler.h"
#include "core/ps/server/session.h"

namespace tfdist::ps {

// Counted by all threads of a server.
struct TrafficStats {
  std::atomic<uint64_t> bytes_sent{0}, bytes_received{0}, broken_requests{0}, connections{0};
};

class ServerThread {
 public:
  ServerThread(Store* store, RequestHandler* handler, TrafficStats* stats);
  ~ServerThread();

  Status Create();
  // The thread that has an acceptor also checks the deadlines of the request handler.
  void Start(Acceptor* acceptor);
  void Stop();

  EventLoop* loop() { return &loop_; }

  // Any thread may call these.
  void Adopt(uint64_t session, int worker, PeerSocket socket);
  void Deliver(uint64_t session, Answer answer);
  void Disconnect(uint64_t session);
  void WakeTimer();

 private:
  struct Arrival {
    uint64_t session;
    int worker;
    PeerSocket socket;
  };
  struct Mail {
    std::vector<Arrival> arrivals;
    std::vector<std::pair<uint64_t, Answer>> answers;
    std::vector<uint64_t> disconnected;
    bool timer = false;
    bool lost = false;  // there was no memory for some of it
    bool stop = false;
  };

  template <typename Put>
  void Post(const Put& put);

  // The thread's own, from here on.
  void Run();
  TimePoint NextDeadline() const;
  void HandleEvent(uint64_t tag, uint32_t events);
  // Returns false when the thread is to end.
  bool ReadMail();
  void CheckTime();
  void HandleSession(uint64_t id, uint32_t events);
  void EndAll();
  void Adopt(Arrival* arrival);
  Status OnRequest(Session* session, ClientRequest request);
  void Flush(uint64_t id);
  void Watch(uint64_t id, bool added);
  void Break(uint64_t id, const Status& why);
  void End(uint64_t id, const Status& why);

  Store* const store_;
  RequestHandler* const handler_;
  TrafficStats* const stats_;
  Acceptor* acceptor_ = nullptr;
  EventLoop loop_;
  std::thread thread_;

  std::mutex mutex_;
  Mail mail_;  // guarded by mutex_

  struct Owned {
    std::unique_ptr<Session> session;
    uint32_t watched = 0;                         // events
    uint64_t bytes_sent = 0, bytes_received = 0;  // in stats_ already
  };
  std::unordered_map<uint64_t, Owned> sessions_;
  TimePoint due_ = TimePoint::max();
};

}  // namespace tfdist::ps

#endif  // TFDIST_OPS_CORE_PS_SERVER_SERVER_THREAD_H_
