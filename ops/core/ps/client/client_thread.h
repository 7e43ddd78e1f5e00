// The thread of a client: it owns every connection, and every operation from when it is submitted
// until it has ended.
//
// Requests to a server are numbered and sent in order. If a connection breaks, unanswered requests
// wait, and are sent again, in order, on a new connection. Replies to a failed operation are read
// and discarded.
#ifndef TFDIST_OPS_CORE_PS_CLIENT_CLIENT_THREAD_H_
#define TFDIST_OPS_CORE_PS_CLIENT_CLIENT_THREAD_H_

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "core/base/status.h"
#include "core/net/event_loop.h"
#include "core/net/message_stream.h"
#include "core/net/socket.h"
#include "core/ps/client/operations/operation.h"

namespace tfdist::ps {

struct ServerTraffic {
  uint64_t bytes_sent = 0, bytes_received = 0;
};

class ClientThread {
 public:
  static Status Create(int servers, double timeout_seconds, std::unique_ptr<ClientThread>* out);
  ~ClientThread();

  // Any thread may call these.

  // Operations begin in the order in which they are submitted.
  void Submit(OperationPtr operation);
  // Releases the server's connection, if it has one, and reports the server's state.
  Status Disconnect(int server, ServerView* view);
  // Takes a new connection, on which nothing is under way.
  Status Adopt(int server, PeerSocket socket, const std::string& welcome, const ServerView& view);
  void GiveUp(int server, const Status& status);
  // Takes back GiveUp: the server may be connected again.
  void Readmit(int server);
  // The server that has not answered for the longest time over `seconds`; -1 if there is none.
  int Silent(double seconds);
  // Calls `what` from this thread, after `seconds`; not at all if it has ended by then.
  void CallLater(double seconds, std::function<void()> what);
  int WaitForLost(double seconds);
  // The server that has not answered for longer than `seconds`, with the request and the time; or
  // empty.
  std::string Waiting(double seconds);
  // By server, the payload that was sent to it and received from it; empty once closed.
  std::vector<ServerTraffic> Traffic();
  // Until every push has been answered.
  Status Flush(double timeout_seconds);
  // Ends pending operations as cancelled.
  void Close();

 private:
  // One server.
  struct Remote final : StreamHandler {
    Status OnFrame(const FrameHeader& header, std::string_view meta) override;
    Status OnPayload(const FrameHeader& header, uint64_t received, std::vector<iovec>* to) override;
    Status OnFrameEnd(const FrameHeader& header) override;
    void OnSent(void*, uint64_t) override {}

    ClientThread* thread = nullptr;
    std::unique_ptr<MessageStream> stream;
    ServerView view;
    std::map<uint64_t, RequestPtr> unanswered;  // by id
    std::vector<iovec> target;                  // of the answer that is being received
    bool stale = false;                         // the stream is of no use any more
    Status given_up;
    ServerTraffic former;  // of connections that have ended
  };

  ClientThread(int servers, double timeout_seconds);

  // Any other thread. Post returns false once the thread has ended; Ask waits for the answer.
  bool Post(std::function<void()> command);
  Status Ask(const std::function<Status()>& question);

  // The thread only, from here on.
  void Run();
  TimePoint NextDeadline() const;
  void HandleEvents(int server, uint32_t events);
  void WatchWritable(int server, bool on);
  void FlushConnections();
  void CheckDeadlines();
  void CallWhatIsDue();
  void LoseStale();
  void Lose(int server);
  void Drop(int server);

  void BeginWaiting();
  void Begin(const OperationPtr& operation);
  void Send(const RequestPtr& request);
  void Settle(const RequestPtr& request, const Status& status);
  void Fail(const OperationPtr& operation, const Status& status);
  void EndIfSettled(const OperationPtr& operation);
  void CancelAll(const Status& status);
  void NotePushEnd();
  void NotePushFailure(const Status& status);
  Status TakePushFailure();
  std::string ServersOwingPushes() const;

  Status OnAnswer(Remote* remote, const FrameHeader& header, std::string_view meta);
  void OnAnswerEnd(Remote* remote, const FrameHeader& header);

  const double timeout_seconds_;
  EventLoop loop_;
  CommandQueue commands_;
  std::thread thread_;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<int> lost_;      // guarded by mutex_
  uint64_t open_pushes_ = 0;  // guarded by mutex_
  Status push_failure_;       // guarded by mutex_; the next pull's
  bool closing_ = false;      // guarded by mutex_

  std::vector<Remote> remotes_;
  std::multimap<TimePoint, std::function<void()>> later_;
  std::deque<OperationPtr> waiting_;  // submitted, and not begun
  OperationPtr pull_, push_, edit_;   // under way
  uint64_t next_number_ = 1;
  bool stop_ = false;
};

}  // namespace tfdist::ps

#endif  // TFDIST_OPS_CORE_PS_CLIENT_CLIENT_THREAD_H_
