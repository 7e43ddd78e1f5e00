// A collective in progress on one rank: a state machine that the communicator drives.
//
// A collective never blocks and owns no connection. It says which peers it talks to, names the
// memory where each arriving chunk belongs, and hands chunks that may now leave to a ChunkSender.
#ifndef TFDIST_OPS_CORE_COLLECTIVES_COLLECTIVE_H_
#define TFDIST_OPS_CORE_COLLECTIVES_COLLECTIVE_H_

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "core/base/status.h"
#include "core/collectives/frames.h"
#include "core/math/dtype.h"
#include "core/net/socket.h"

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
bool HasBlocks(CollectiveKind kind);  // of sizes that its callers give
bool Reduces(CollectiveKind kind);

// Whether `rank` ends this collective only when all its peers have opened it. The root of a
// broadcast needs nothing from the others, and could have ended long before one of them turns out
// to mean another collective; so it waits for their OPENs, which they send anyway.
bool AwaitsOpens(const Signature& signature, int rank);

// How a collective is carried out; each has a file of its own.
enum class Algorithm : uint8_t {
  kAuto = 0,  // chosen by choose.h
  kRing = 1,
  kRecursiveDoubling = 2,
  kTwoLevel = 3,
  kTree = 4,
  kChain = 5,
  kBruck = 6,
  kDirect = 7,
  kDissemination = 8,
};

const char* Name(Algorithm algorithm);

// "all_reduce 'dense/kernel'"
std::string Title(const Signature& signature);

// "all_reduce 'dense/kernel' (sum) float[128,10]"
std::string Describe(const Signature& signature);

// Whether rank `rank` and rank `peer` mean the same blocks. Of an all_to_all each knows its own:
// what it sends to every rank, and then what it receives from every rank.
bool BlocksAgree(const Signature& ours, int rank, const Signature& theirs, int peer);

// Below this many bytes a collective sends at once and lets the receiver buffer what it has not
// started; above, it waits for the receiver's OPEN, so that chunks land in their final place and an
// early peer cannot fill our memory.
inline constexpr size_t kEagerBytes = 64 * 1024;

using Done = std::function<void(const Status&)>;

// `key` names the collective, the same on every rank; `sequence` counts its executions.
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
  Done done;  // called exactly once, on any thread; may start the next one
};

class Collective;

class ChunkSender {
 public:
  virtual ~ChunkSender() = default;
  // Queues header + pieces for `peer`. The pieces are borrowed until the chunk has been sent.
  virtual void SendChunk(Collective* collective, int peer, uint16_t step, uint64_t offset,
                         std::vector<iovec> pieces) = 0;
};

class Collective {
 public:
  explicit Collective(CollectiveOptions options) : options_(std::move(options)) {}
  virtual ~Collective() = default;

  // The ranks it exchanges frames with, each once.
  virtual std::vector<int> Peers() const = 0;
  virtual void Start(ChunkSender& sender) = 0;
  // `peer` has started this collective, with a matching signature.
  virtual void PeerOpened(ChunkSender& sender, int peer) = 0;
  // Appends where the payload of this chunk goes. `scratch` has room for one chunk and lasts until
  // Received.
  virtual Status Place(int peer, const FrameHeader& chunk, char* scratch,
                       std::vector<iovec>* target) = 0;
  virtual void Received(ChunkSender& sender, int peer, const FrameHeader& chunk,
                        const char* scratch) = 0;
  // Everything this rank needs has arrived, and everything it owes has been handed to the sender.
  virtual bool Settled() const = 0;
  // The rank that it waits for, as long as it is not settled.
  virtual int WaitingFor() const = 0;

  const CollectiveId& id() const { return options_.id; }
  const Signature& signature() const { return options_.signature; }
  double timeout_seconds() const { return options_.timeout_seconds; }
  // "all_reduce 'dense/kernel'"
  std::string Title() const;
  // Nothing is left to wait for on this rank, but chunks that have not been sent.
  bool Complete() const { return Settled() && (!awaits_opens || Unopened() < 0); }
  // The rank that it waits for, as long as it is not complete.
  int Awaited() const { return Settled() ? Unopened() : WaitingFor(); }
  void Finish(const Status& status) { options_.done(status); }

  // Kept by the communicator.
  TimePoint started{};
  TimePoint deadline = TimePoint::max();
  TimePoint next_check = TimePoint::max();  // when to ask whether the peers wait elsewhere
  size_t unsent_chunks = 0;
  std::vector<int> opened_by;
  bool awaits_opens = false;  // see AwaitsOpens
  int cut_off_by = -1;        // a peer that closed its connection before it was sent everything

 private:
  // The first of its peers that has not opened it, or -1.
  int Unopened() const;

  CollectiveOptions options_;
};

}  // namespace tfdist

#endif  // TFDIST_OPS_CORE_COLLECTIVES_COLLECTIVE_H_
