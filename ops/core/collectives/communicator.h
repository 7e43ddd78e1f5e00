// A fixed set of ranks, numbered 0 to size-1, that run collectives together.
//
// Connections and collectives in progress are the engine. Whoever holds its mutex drives it: the
// thread that starts a collective sends its first frames itself, and looks for the answers for a
// moment, because waking another thread costs more than a small collective does. Whoever finds the
// mutex taken leaves a command to the holder instead of waiting. A thread of the communicator's own
// sleeps until a connection or a deadline needs it, and does all the rest. `done` is called by
// whichever thread brought the end, without the mutex.
//
// A communicator belongs to one generation of a job and dies as a whole: after the first failure
// every collective, pending or later, ends with that status, and the peers are told why.
#ifndef TFDIST_OPS_CORE_COLLECTIVES_COMMUNICATOR_H_
#define TFDIST_OPS_CORE_COLLECTIVES_COMMUNICATOR_H_

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "core/base/flat_view.h"
#include "core/collectives/collective.h"
#include "core/collectives/history.h"
#include "core/collectives/link.h"
#include "core/collectives/stall_check.h"
#include "core/collectives/unexpected_messages.h"
#include "core/net/acceptor.h"

namespace tfdist {

struct CommunicatorStats {
  uint64_t collectives = 0;  // finished successfully
  uint64_t bytes_sent = 0;   // payload of chunks, without headers
  uint64_t bytes_received = 0;
  uint64_t busy_nanoseconds = 0;  // wall time during which at least one collective was pending
  uint64_t rejected_connections = 0;
  uint64_t chunks_sent = 0;
  uint64_t bytes_sent_to_other_hosts = 0;  // of bytes_sent
};

class Communicator : private FrameHandler, private ChunkSender {
 public:
  // Listens on `port` (0: the kernel chooses) of `interface`, a numeric address of this host
  // (empty: all there are). `Connect` makes it usable. Without `shared_memory` ranks of one machine
  // talk through TCP only.
  static Status Create(int rank, int size, const std::string& interface, int port,
                       std::unique_ptr<Communicator>* out, bool shared_memory = true);
  ~Communicator() override;

  int rank() const { return rank_; }
  int size() const { return size_; }
  int port() const { return port_; }

  // Connects to every other rank. `addresses` are "host:port", one per rank. Names the ranks that
  // are missing at the deadline.
  Status Connect(const Key& key, uint64_t generation, const std::vector<std::string>& addresses,
                 double timeout_seconds);

  // The number of this execution of the collective `key`, counted from 0.
  uint64_t NextSequence(uint64_t key);

  // Start a collective and return soon; options.done is called when it has ended, which may be
  // before the return. The memory must outlive that call. `options.signature` needs name, shapes
  // and shape_hash; the rest is filled in.
  void AllReduce(CollectiveOptions options, FlatView input, FlatView output, DType dtype,
                 ReduceOp reduce_op);
  // `output` is empty except on `root`.
  void Reduce(CollectiveOptions options, FlatView input, FlatView output, DType dtype,
              ReduceOp reduce_op, int root);
  // `input` holds one block per rank; `output`, block rank(), reduced.
  void ReduceScatter(CollectiveOptions options, FlatView input, FlatView output, DType dtype,
                     ReduceOp reduce_op, const std::vector<size_t>& block_bytes);
  // `output` holds one block per rank; this rank's own is in place.
  void AllGather(CollectiveOptions options, DType dtype, const std::vector<size_t>& block_bytes,
                 FlatView output);
  // `input` is block rank(); `output`, all blocks, is empty except on `root`.
  void Gather(CollectiveOptions options, DType dtype, const std::vector<size_t>& block_bytes,
              int root, FlatView input, FlatView output);
  // `input`, all blocks, is empty except on `root`; `output` is block rank().
  void Scatter(CollectiveOptions options, DType dtype, const std::vector<size_t>& block_bytes,
               int root, FlatView input, FlatView output);
  // `input` is what goes to each rank in order, `output` what comes from each. Not the same memory.
  void AllToAll(CollectiveOptions options, DType dtype, const std::vector<size_t>& send_bytes,
                const std::vector<size_t>& receive_bytes, FlatView input, FlatView output);
  // Ends when all ranks have started it.
  void Barrier(CollectiveOptions options);
  // `buffer` is read on `root` and written on the others.
  void Broadcast(CollectiveOptions options, DType dtype, int root, FlatView buffer);
  // Takes part in what the others start, contributing nothing, until all have joined; see join.h.
  // To be called when this rank's own collectives have ended. `*last_rank` is the rank that joined
  // last, the highest of those that did so together. The number in options.id is given back.
  void Join(CollectiveOptions options, int* last_rank);

  // Gives up a collective that has not ended: it ends as cancelled, and the communicator with it.
  // It may come before the start.
  void Cancel(const CollectiveId& id);

  // Ends everything with `status` and tells the peers.
  void Abort(const Status& status);

  // Tells the peers that this rank starts no further collective. Connections stay until the
  // communicator is closed.
  void Leave();

  // Ends what is pending, closes the connections and waits for the thread. Not to be called from a
  // `done`.
  void Close();

  // A sentence that names the oldest collective, its age and the missing ranks, if it has waited
  // for longer than `seconds`; else empty.
  std::string Waiting(double seconds);

  // The failure that ended this communicator, or OK.
  Status status() const;
  CommunicatorStats stats() const;

 private:
  // Links have their rank; the acceptor's tags are larger.
  static constexpr uint64_t kWakeTag = uint64_t{1} << 39;

  using Command = std::function<void()>;
  using EngineLock = std::unique_lock<std::mutex>;

  // What came in a WELCOME.
  struct Welcome {
    std::string payload;
    Fd descriptor;
  };
  struct Ended {
    std::unique_ptr<Collective> collective;
    Status status;
  };

  Communicator(int rank, int size, Listener listener, bool shared_memory);

  // Any thread, without the engine.
  Status DialPeer(int peer, const Key& key, uint64_t generation, TimePoint deadline,
                  PeerSocket* socket, Welcome* welcome) const;
  void Enqueue(Command command);
  void Post(Command command);
  void Drive();
  Status CheckStart(const Signature& signature, int root, Algorithm algorithm, size_t input_bytes,
                    size_t output_bytes) const;
  void Start(CollectiveOptions options, int root, FlatView input, FlatView output,
             std::shared_ptr<void> kept = nullptr);
  void Wake();
  void Submit(std::unique_ptr<Collective> collective);
  bool Rests(int peer);
  bool MayPoll();
  void Poll(const std::vector<int>& peers, const std::function<bool()>& over);
  // Lets go of the engine: sends what is queued, sees to it that somebody will look at what comes
  // next, and then calls those who wait for collectives that have ended. False if there is more to
  // be received at once.
  bool Release(EngineLock engine);
  // How long a collective with this timeout waits between looks at whether the ranks wait in
  // different ones.
  static double CheckSeconds(double timeout_seconds);

  // The communicator's thread only.
  void Run();
  void Linger();

  // With the engine, from here on.
  TimePoint NextDue() const;
  bool Said() const;
  void RunCommands();
  void HandleLink(int peer, uint32_t events);
  bool ReceiveFrom(int peer);
  // `welcome` is of a peer that was dialled; others are welcomed here.
  void AdoptLink(int peer, PeerSocket socket, std::optional<Welcome> welcome);
  void NoteLinked(int peer);
  bool SharesWith(int peer) const;
  void FlushLinks();
  void Watch(int peer);
  void BeginPolling(const std::vector<int>& peers);
  void EndPolling(const std::vector<int>& peers);

  void Begin(std::unique_ptr<Collective> collective);
  void StandIn(const CollectiveId& id);
  void StandInForEarly();
  void ReplayEarly(Collective* collective);
  Status CheckOpen(Collective* collective, int peer, const Signature& theirs);
  Status Compare(const Signature& ours, int peer, const Signature& theirs) const;
  void GiveUp(const Collective& collective);
  void FinishIfComplete(Collective* collective);
  void Finish(Collective* collective, const Status& status);

  void CheckDeadlines();
  void OpenInquiry(const Collective& collective);
  void CloseInquiry();
  void PeerLeft(int peer);
  void PeerLost(int peer, const std::string& how);
  void CheckGone();
  void Fail(const Status& status, const Status& tell_peers);

  Status OnControl(int peer, const FrameHeader& header, std::string_view payload) override;
  Status OnDataBegin(int peer, const FrameHeader& header, char* scratch,
                     std::vector<iovec>* target) override;
  Status OnDataEnd(int peer, const FrameHeader& header, const char* scratch) override;
  void OnChunkSent(Collective* collective, size_t bytes) override;
  void SendChunk(Collective* collective, int peer, uint16_t step, uint64_t offset,
                 std::vector<iovec> pieces) override;

  Collective* Find(const CollectiveId& id);
  std::string Who() const;
  std::string PeerName(int peer) const;

  const int rank_, size_, port_;
  const bool shared_memory_;
  Fd epoll_, wake_;
  Acceptor acceptor_;
  std::vector<std::string> addresses_;
  std::vector<int> hosts_;  // of each rank, numbered
  bool crowded_ = false;    // this host has more ranks than processors
  std::thread thread_;

  mutable std::mutex mutex_;  // never held while anything else is waited for
  std::condition_variable connected_;
  std::vector<Command> commands_;                     // guarded by mutex_
  std::unordered_map<uint64_t, uint64_t> sequences_;  // guarded by mutex_
  std::vector<bool> linked_;                          // guarded by mutex_
  Status failure_;                                    // guarded by mutex_
  std::atomic<bool> running_{false};
  std::atomic<bool> commanded_{false};  // there are commands
  std::atomic<bool> awake_{false};      // the communicator's thread is about to take the engine

  // All that follows is the engine, guarded by its mutex.
  std::mutex engine_;
  std::vector<std::unique_ptr<Link>> links_;  // by rank; own entry empty
  std::vector<std::unique_ptr<Link>>
      lost_;  // broken ones, kept until no call on them can be active
  std::vector<bool> left_;
  std::vector<int> polled_;                         // by rank: threads that look at its link
  std::vector<uint32_t> watched_;                   // by rank: what epoll reports of its link
  std::list<std::unique_ptr<Collective>> pending_;  // in order of their start
  std::vector<Ended> ended_;                        // to be told
  UnexpectedMessages early_;
  History history_;
  std::optional<StallCheck> inquiry_;
  bool gone_ = false;  // some peer has left and closed its connection
  bool failed_ = false;
  bool stop_ = false;
  TimePoint busy_since_{};
  int skipped_ = 0, to_skip_ = 0;              // times that nobody polls: last time, and now
  bool own_turn_ = false;                      // the communicator's thread has the engine
  TimePoint sleeps_until_ = TimePoint::max();  // and when it will look at deadlines

  uint64_t begun_ = 0;              // collectives, also as a stand-in
  uint64_t looked_ = 0;             // of them, when somebody last looked at all links
  Collective* join_ = nullptr;      // the pending one
  CollectiveId join_named_;         // as its caller knows it
  std::atomic<uint32_t> joins_{0};  // that have ended

  std::atomic<uint64_t> finished_{0}, bytes_sent_{0}, bytes_received_{0}, busy_nanoseconds_{0};
  std::atomic<uint64_t> chunks_sent_{0}, far_bytes_sent_{0};
};

}  // namespace tfdist

#endif  // TFDIST_OPS_CORE_COLLECTIVES_COMMUNICATOR_H_
