// Moves the frames of a communicator's collectives.
//
// The thread that holds the engine's mutex drives it. A thread that starts a collective sends the
// first frames itself and polls for the answers for a moment, because waking another thread costs
// more than a small collective. A thread that finds the mutex taken leaves a command to the holder
// and does not wait. The engine's own thread sleeps until a connection or a deadline needs it, and
// does the rest. `done` of a collective is called by the thread that brought its end, without the
// mutex.
#ifndef TFDIST_OPS_CORE_COLLECTIVES_PROGRESS_ENGINE_H_
#define TFDIST_OPS_CORE_COLLECTIVES_PROGRESS_ENGINE_H_

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "core/collectives/collective_table.h"
#include "core/collectives/group.h"
#include "core/net/acceptor.h"
#include "core/net/event_loop.h"
#include "core/net/message_stream.h"

namespace tfdist {

// The WELCOME that a dialling side has received.
struct Welcome {
  std::string meta;
  Fd descriptor;
};

class ProgressEngine : private CollectiveTable::Connections {
 public:
  // `group` must outlive the engine. Without `share_memory` ranks of one machine use TCP only.
  ProgressEngine(const Group* group, Listener listener, bool share_memory);
  ~ProgressEngine() override;
  Status Create();

  // Any thread may call these.

  // Starts to accept ranks above this one, and the engine's thread.
  void Start(const Key& key, uint64_t generation);
  bool running() const { return running_; }
  // Adopts the connection to a peer that was dialled.
  void AddDialled(int peer, PeerSocket socket, Welcome welcome);
  // Waits until all peers are connected, and returns the peers that are missing at the deadline.
  std::vector<int> WaitForPeers(TimePoint deadline);

  // Begins a collective, and drives the engine for as long as that pays.
  void Submit(std::unique_ptr<Collective> collective);
  void Cancel(const CollectiveId& id);
  void Abort(const Status& status);
  void Leave();
  void Close();
  std::string Waiting(double seconds);
  uint64_t rejected_connections() const { return acceptor_.rejected(); }
  std::string last_refusal() const { return acceptor_.last_refusal(); }

  // Only for methods that any thread may call.
  CollectiveTable& table() { return table_; }
  const CollectiveTable& table() const { return table_; }

 private:
  using Lock = std::unique_lock<std::mutex>;

  // The connection to one rank.
  class Peer final : public StreamHandler {
   public:
    void Open(CollectiveTable* table, int rank, PeerSocket socket, bool share_memory);
    Status OnFrame(const FrameHeader& header, std::string_view meta) override;
    Status OnPayload(const FrameHeader& header, uint64_t received,
                     std::vector<iovec>* target) override;
    Status OnFrameEnd(const FrameHeader& header) override;
    void OnSent(void* token, uint64_t payload_bytes) override;
    void OnUnreadable(const FrameHeader& header, std::vector<iovec> target) override;
    void OnResent(size_t payloads) override;

    std::unique_ptr<MessageStream> stream;  // null: not connected, or lost
    int pollers = 0;                        // threads that look at the stream
    uint32_t watched = 0;                   // the events that the loop reports

   private:
    CollectiveTable* table_ = nullptr;
    int rank_ = 0;
    std::unique_ptr<char[]> scratch_;  // for one chunk
    // A chunk that was not readable in the peer's memory, and comes again. Its memory stays valid
    // until then: without it the collective does not end, and no other chunk of it is taken.
    struct Unreadable {
      FrameHeader header;
      std::vector<iovec> target;
    };
    std::optional<Unreadable> unreadable_;
  };

  // Without the mutex.
  void Post(CommandQueue::Command command);
  void Drive();
  void Poll(const std::vector<int>& peers, const std::function<bool()>& over);
  // Releases the engine: sends queued frames, makes sure that some thread receives the next data,
  // and calls `done` of the ended collectives. False if more data has already arrived.
  bool Release(Lock engine);

  // The engine's thread.
  void Run();
  void Linger();

  // With the mutex.
  TimePoint NextDue() const;
  bool AllSent() const;
  bool IsQuiescent(int peer);
  bool MayPoll();
  void BeginPolling(const std::vector<int>& peers);
  void EndPolling(const std::vector<int>& peers);
  void HandleEvents(int peer, uint32_t events);
  bool ReceiveFrom(int peer);
  // `welcome` is of a peer that was dialled; others are welcomed here.
  void Adopt(int peer, PeerSocket socket, std::optional<Welcome> welcome);
  void NoteConnected(int peer);
  void Lose(int peer, const std::string& how);
  void Watch(int peer);
  void Wake();

  bool IsConnected(int peer) const override { return peers_[peer].stream != nullptr; }
  void Send(int peer, const FrameHeader& header, std::string meta, std::vector<iovec> payload,
            void* token) override;
  void Flush() override;
  void Break(int peer, const std::string& why) override { Lose(peer, why); }
  void AbortStreams(const Status& reason) override;

  const Group* const group_;
  const bool share_memory_;
  EventLoop loop_;
  Acceptor acceptor_;
  CommandQueue commands_;
  std::thread thread_;
  std::atomic<bool> running_{false};
  std::atomic<bool> awake_{false};  // the engine's thread is about to take the engine
  bool oversubscribed_ = false;     // this host has more ranks than processors

  std::mutex connected_mutex_;
  std::condition_variable connected_changed_;
  std::vector<bool> connected_;  // guarded by connected_mutex_

  // Guards all that follows; never held while anything else is waited for.
  std::mutex mutex_;
  CollectiveTable table_;
  std::vector<Peer> peers_;  // by rank; the own entry stays empty
  // Broken ones, kept until no call on them can be active.
  std::vector<std::unique_ptr<MessageStream>> lost_;
  bool stop_ = false;
  int skipped_ = 0, to_skip_ = 0;              // polls to skip: last time, and now
  bool own_turn_ = false;                      // the engine's thread has the engine
  TimePoint sleeps_until_ = TimePoint::max();  // and when it will look at deadlines
  uint64_t looked_ = 0;                        // table_.begun() when all peers were last looked at
};

}  // namespace tfdist

#endif  // TFDIST_OPS_CORE_COLLECTIVES_PROGRESS_ENGINE_H_
