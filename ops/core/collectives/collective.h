// A collective in progress on one rank: a state machine that the communicator drives.
//
// A collective never blocks and owns no connection. It lists its peers, names the destination of
// each arriving chunk, and passes chunks that may leave to a ChunkSender.
#ifndef TFDIST_OPS_CORE_COLLECTIVES_COLLECTIVE_H_
#define TFDIST_OPS_CORE_COLLECTIVES_COLLECTIVE_H_

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "core/base/clock.h"
#include "core/base/status.h"
#include "core/collectives/frames.h"
#include "core/math/dtype.h"
#include "core/trace/event_ring.h"

namespace tfdist {

enum class CollectiveKind : uint8_t {
  kAllReduce = 1,
  kAllGather = 2,
  kBroadcast = 3,
  kReduce = 4,
  kReduceScatter = 5,
  kGather = 6,
  kScatter = 7,
  kAllToAll = 8,
  kBarrier = 9,
  kJoin = 10,
};

bool HasRoot(CollectiveKind kind);
bool HasBlocks(CollectiveKind kind);  // blocks whose sizes the caller gives
bool Reduces(CollectiveKind kind);

// Whether `rank` completes this collective only after all its peers have opened it. The root of a
// broadcast needs no data from the others, and could complete long before a mismatch with one of
// them is detected. So it waits for their OPENs, which they send anyway.
bool AwaitsOpens(const Signature& signature, int rank);

// The algorithms; each has its own file in core/algorithms.
enum class Algorithm : uint8_t {
  kAuto = 0,  // chosen by selector.h
  kRing = 1,
  kRecursiveDoubling = 2,
  kTwoLevel = 3,
  kTree = 4,
  kChain = 5,
  kBruck = 6,
  kDirect = 7,
  kDissemination = 8,
  kHalvingDoubling = 9,
  kDoubleTree = 10,
};

const char* Name(Algorithm algorithm);
const char* KindName(uint8_t kind);  // of a CollectiveKind

// "all_reduce 'dense/kernel'"
std::string Title(const Signature& signature);

// "all_reduce 'dense/kernel' (sum) float[128,10]"
std::string Describe(const Signature& signature);

// Whether ranks `rank` and `peer` have matching blocks. In an all_to_all each rank knows only its
// own: first the bytes that it sends to every rank, then the bytes that it receives from every
// rank.
bool BlocksAgree(const Signature& ours, int rank, const Signature& theirs, int peer);

// Up to this number of bytes a collective sends at once (eagerly), and a receiver that has not
// started it buffers the chunks. Above, it waits for the receiver's OPEN, so that chunks are
// received into their final memory and a peer that is ahead cannot fill ours.
inline constexpr size_t kEagerBytes = 64 * 1024;

using Done = std::function<void(const Status&)>;

// `key` identifies the collective and is the same on every rank; `sequence` counts its executions.
struct CollectiveId {
  uint64_t key = 0;
  uint64_t sequence = 0;
  bool operator<(const CollectiveId& other) const {
    return key != other.key ? key < other.key : sequence < other.sequence;
  }
  bool operator==(const CollectiveId& other) const {
    return key == other.key && sequence == other.sequence;
  }
};

struct CollectiveOptions {
  CollectiveId id;
  Signature signature;
  double timeout_seconds = 0;  // 0: no deadline
  Algorithm algorithm = Algorithm::kAuto;
  Done done;  // called exactly once, on any thread; may start another collective
};

class Collective;

// Implemented by the collective table, which hands chunks on to the progress engine.
class ChunkSender {
 public:
  virtual ~ChunkSender() = default;
  // Queues header and pieces for `peer`. The pieces must stay valid until the chunk has been sent.
  virtual void SendChunk(Collective* collective, int peer, uint16_t step, uint64_t offset,
                         std::vector<iovec> pieces) = 0;
};

class Collective {
 public:
  explicit Collective(CollectiveOptions options) : options_(std::move(options)) {}
  virtual ~Collective() = default;

  // The ranks with which it exchanges frames, each once.
  virtual const std::vector<int>& Peers() const = 0;
  virtual void Start(ChunkSender& sender) = 0;
  // `peer` has started this collective, with a matching signature.
  virtual void PeerOpened(ChunkSender& sender, int peer) = 0;
  // Appends the destination of this chunk's payload to `target`. `scratch` has space for one chunk
  // and stays valid until Received.
  virtual Status Place(int peer, const FrameHeader& chunk, char* scratch,
                       std::vector<iovec>* target) = 0;
  virtual void Received(ChunkSender& sender, int peer, const FrameHeader& chunk,
                        const char* scratch) = 0;
  // Whether everything that this rank needs has arrived, and everything that it has to send has
  // been passed to the sender.
  virtual bool Settled() const = 0;
  // A rank that it waits for, while it is not settled.
  virtual int WaitingFor() const = 0;

  const CollectiveId& id() const { return options_.id; }
  const Signature& signature() const { return options_.signature; }
  // Once it has ended.
  Signature TakeSignature() { return std::move(options_.signature); }
  double timeout_seconds() const { return options_.timeout_seconds; }
  // "all_reduce 'dense/kernel'"
  std::string Title() const;
  // Whether this rank waits for nothing but its queued chunks to be sent.
  bool Complete() const { return Settled() && (!awaits_opens || Unopened() < 0); }
  // A rank that it waits for, while it is not complete.
  int Awaited() const { return Settled() ? Unopened() : WaitingFor(); }
  void Finish(const Status& status) {
    if (event != 0) RecordEnd(status, Clock::now());
    options_.done(status);
  }

  // In the flight recorder, each once.
  void RecordStart();
  void RecordEnd(const Status& status, TimePoint at);

  // State of the communicator.
  TimePoint started{};
  TimePoint deadline = TimePoint::max();
  TimePoint next_check = TimePoint::max();  // time of the next stall check
  size_t unsent_chunks = 0;
  std::vector<int> opened_by;
  std::vector<int> waits_for;  // peers that had not opened it when it began, and have not yet
  bool awaits_opens = false;   // see AwaitsOpens
  int cut_off_by = -1;         // a peer that closed its connection before all was sent to it
  EventId event = 0;           // 0 also once it has ended

 private:
  // The first peer that has not opened it, or -1.
  int Unopened() const;

  CollectiveOptions options_;
  bool moves_ = false;  // its first chunk has been sent or received
};

}  // namespace tfdist

#endif  // TFDIST_OPS_CORE_COLLECTIVES_COLLECTIVE_H_
