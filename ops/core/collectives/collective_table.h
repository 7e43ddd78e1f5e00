// The collectives of one rank: the pending ones, messages for collectives that have not started
// here, a history of the ended ones, and a check for waits that are too long.
//
// Not thread-safe, except where noted: the progress engine guards it.
#ifndef TFDIST_OPS_CORE_COLLECTIVES_COLLECTIVE_TABLE_H_
#define TFDIST_OPS_CORE_COLLECTIVES_COLLECTIVE_TABLE_H_

#include <atomic>
#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "core/collectives/collective.h"
#include "core/collectives/group.h"
#include "core/collectives/history.h"
#include "core/collectives/join.h"
#include "core/collectives/pending_time.h"
#include "core/collectives/stall_check.h"
#include "core/collectives/unexpected_messages.h"
#include "core/collectives/wait_causes.h"

namespace tfdist {

struct CommunicatorStats {
  uint64_t collectives = 0;  // finished successfully
  uint64_t bytes_sent = 0;   // payload of chunks, without headers
  uint64_t bytes_received = 0;
  uint64_t busy_nanoseconds = 0;  // wall time during which at least one collective was pending
  uint64_t rejected_connections = 0;
  uint64_t chunks_sent = 0;
  uint64_t bytes_sent_to_other_hosts = 0;  // of bytes_sent
  uint64_t chunks_resent = 0;              // a peer could not read them in this process's memory
};

class CollectiveTable : private ChunkSender {
 public:
  // The table's interface to the connections; implemented by the progress engine.
  class Connections {
   public:
    virtual ~Connections() = default;
    virtual bool IsConnected(int peer) const = 0;
    // Queues a frame. With a `token`, OnChunkSent tells when the payload has left.
    virtual void Send(int peer, const FrameHeader& header, std::string meta,
                      std::vector<iovec> payload, void* token) = 0;
    virtual void Flush() = 0;
    // Gives up the connection to a peer that has broken the protocol.
    virtual void Break(int peer, const std::string& why) = 0;
    // Lets go of all memory of collectives. Tells the peers why, unless `reason` is OK.
    virtual void AbortStreams(const Status& reason) = 0;
  };

  struct Ended {
    std::unique_ptr<Collective> collective;
    Status status;
  };

  // `group` and `connections` must outlive the table. The stand-ins of a joined rank take at most
  // `stand_in_limit` bytes together.
  CollectiveTable(const Group* group, Connections* connections,
                  uint64_t stand_in_limit = StandInMemory::Limit());

  // Any thread.

  // The number of this execution of the collective `key`, counted from 0.
  uint64_t NextSequence(uint64_t key);
  // The failure that ended all collectives, or OK.
  Status failure() const;
  // How many joins have ended.
  uint32_t joins() const { return joins_; }
  void AddTo(CommunicatorStats* stats) const;
  // The wall time, in nanoseconds, during which a collective was pending here that `peer`, which
  // takes part, had not started.
  uint64_t WaitedFor(int peer) const { return waits_[peer].nanoseconds(); }
  // The collective in which it has waited longest for `peer` since the last call, by its title;
  // empty if it has not waited.
  std::string TakeLongestWait(int peer) { return wait_causes_[peer].TakeLongest(); }
  // The payload of chunks that were queued for `peer`, and that have come from it, in bytes.
  uint64_t BytesSentTo(int peer) const { return sent_to_[peer].load(std::memory_order_relaxed); }
  uint64_t BytesReceivedFrom(int peer) const {
    return received_from_[peer].load(std::memory_order_relaxed);
  }

  // Sets the times of a collective that is about to begin, and records it in the flight recorder;
  // on the thread that starts it.
  void Submit(Collective* collective) const;

  // The life of a collective.

  void Begin(std::unique_ptr<Collective> collective);
  // A collective without peers, as on the only rank of a group; any thread.
  void EndAlone(std::unique_ptr<Collective> collective);
  // Begins a join; see join.h. Any thread makes it, Begin starts it.
  std::unique_ptr<Collective> MakeJoin(CollectiveOptions options, int* last_rank);
  void Cancel(const CollectiveId& id);
  // Ends every pending collective with `status`. `tell_peers` OK: the peers know already. That the
  // communicator `closes` is no failure for the flight recorder.
  void Fail(const Status& status, const Status& tell_peers, bool closes = false);
  Collective* Find(const CollectiveId& id);
  // Takes the ended collectives, to notify their callers.
  std::vector<Ended> TakeEnded();
  bool has_ended() const { return !ended_.empty(); }
  bool empty() const { return pending_.empty(); }
  size_t size() const { return pending_.size(); }
  bool failed() const { return failed_; }
  uint64_t begun() const { return begun_; }  // collectives, also as a stand-in

  // What arrives.

  Status OnFrame(int peer, const FrameHeader& header, std::string_view meta);
  // Appends memory for a chunk. `scratch` has room for one, and lasts until OnChunk.
  Status PlaceChunk(int peer, const FrameHeader& header, char* scratch, std::vector<iovec>* target);
  Status OnChunk(int peer, const FrameHeader& header, const char* scratch);
  void OnChunkSent(Collective* collective, uint64_t bytes);
  void NoteResent(uint64_t chunks) { resent_.fetch_add(chunks, std::memory_order_relaxed); }
  // The connection to a peer is gone. `owed`: it has not taken all that was meant for it.
  void PeerLost(int peer, bool owed, const std::string& how);
  // Fails collectives that need a peer which has left.
  void CheckGone();

  // Time.

  void CheckDeadlines();
  TimePoint NextDue() const;
  // A sentence that names the oldest collective, its age and the rank it waits for, if it has
  // waited for longer than `seconds`; else empty.
  std::string Waiting(double seconds) const;

 private:
  void SendControl(int peer, CollectiveFrame type, const CollectiveId& id, std::string meta);
  void SendChunk(Collective* collective, int peer, uint16_t step, uint64_t offset,
                 std::vector<iovec> pieces) override;
  Status OnOpen(int peer, const CollectiveId& id, std::string_view meta);
  Status OnQuery(int peer, const CollectiveId& id);
  Status OnReply(int peer, const CollectiveId& id, std::string_view meta);
  Status OnAbort(int peer, std::string_view meta);
  void OnGoodbye(int peer);

  void StandIn(const CollectiveId& id);
  bool NoteKeyOfOthers(const CollectiveId& id);
  void StandInForUnexpected();
  void Replay(Collective* collective);
  Status CheckOpen(Collective* collective, int peer, const Signature& theirs);
  Status Compare(const Signature& ours, int peer, const Signature& theirs) const;
  void GiveUp(const Collective& collective);
  void NoteWaits(Collective* collective);
  void NoteOpened(Collective* collective, int peer);
  void EndWait(const Collective& collective, int peer, TimePoint at);
  void FinishIfComplete(Collective* collective);
  void Finish(Collective* collective, const Status& status);
  void OpenStallCheck(const Collective& collective);
  void CloseStallCheck();

  const Group* const group_;
  Connections* const connections_;
  StandInMemory stand_in_memory_;
  std::list<std::unique_ptr<Collective>> pending_;  // in order of their start
  std::vector<Ended> ended_;                        // to be told
  UnexpectedMessages unexpected_;
  History history_;
  std::optional<StallCheck> stall_check_;
  std::vector<bool> left_;  // peers that start nothing further
  bool gone_ = false;       // some peer has left and closed its connection
  bool failed_ = false;
  uint64_t begun_ = 0;
  size_t keys_of_others_ = 0;       // for which it has stood in, and which it had not used itself
  PendingTime busy_;                // at least one collective
  std::vector<PendingTime> waits_;  // by rank
  std::vector<WaitCauses> wait_causes_;
  std::vector<std::atomic<uint64_t>> sent_to_, received_from_;

  Collective* join_ = nullptr;      // the pending one
  CollectiveId join_named_;         // as its caller knows it
  std::atomic<uint32_t> joins_{0};  // that have ended

  mutable std::mutex mutex_;
  std::unordered_map<uint64_t, uint64_t> sequences_;  // guarded by mutex_
  Status failure_;                                    // guarded by mutex_

  std::atomic<uint64_t> finished_{0}, bytes_sent_{0}, chunks_sent_{0}, far_bytes_sent_{0},
      resent_{0};
};

}  // namespace tfdist

#endif  // TFDIST_OPS_CORE_COLLECTIVES_COLLECTIVE_TABLE_H_
