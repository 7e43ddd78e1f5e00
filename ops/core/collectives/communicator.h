// A fixed set of ranks, numbered 0 to size-1, that run collectives together.
//
// Any thread may start a collective: it is checked and planned there, and handed to the progress
// engine, which moves its frames.
//
// A communicator belongs to one generation of a job and fails as a whole. After the first failure
// every collective, pending or later, ends with that status, and the peers are told why.
#ifndef TFDIST_OPS_CORE_COLLECTIVES_COMMUNICATOR_H_
#define TFDIST_OPS_CORE_COLLECTIVES_COMMUNICATOR_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/base/flat_view.h"
#include "core/collectives/collective.h"
#include "core/collectives/group.h"
#include "core/collectives/progress_engine.h"
#include "core/math/combine.h"

namespace tfdist {

class Communicator {
 public:
  // Listens on `port` (0: the kernel chooses) of `interface`, a numeric address of this host
  // (empty: all there are). `Connect` makes it usable. Without `shared_memory` ranks of one machine
  // talk through TCP only.
  static Status Create(int rank, int size, const std::string& interface, int port,
                       std::unique_ptr<Communicator>* out, bool shared_memory = true);
  ~Communicator();

  int rank() const { return group_.rank; }
  int size() const { return group_.size; }
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
  // `input` has the block for each rank in order, `output` gets the block from each rank. Not the
  // same memory.
  void AllToAll(CollectiveOptions options, DType dtype, const std::vector<size_t>& send_bytes,
                const std::vector<size_t>& receive_bytes, FlatView input, FlatView output);
  // Ends when all ranks have started it.
  void Barrier(CollectiveOptions options);
  // `buffer` is read on `root` and written on the others.
  void Broadcast(CollectiveOptions options, DType dtype, int root, FlatView buffer);
  // Takes part in the others' collectives, contributing nothing, until all have joined; see join.h.
  // To be called when this rank's own collectives have ended. `*last_rank` is the rank that joined
  // last, the highest of several that joined together. The number in options.id is given back.
  void Join(CollectiveOptions options, int* last_rank);

  // Gives up a collective that has not ended: it ends as cancelled, and the communicator with it.
  // It may come before the start.
  void Cancel(const CollectiveId& id);

  // Ends everything with `status` and tells the peers.
  void Abort(const Status& status);

  // Tells the peers that this rank starts no further collective. Connections stay until the
  // communicator is closed.
  void Leave();

  // Ends pending collectives, closes the connections and waits for the thread. Not to be called
  // from a `done`.
  void Close();

  // A sentence that names the oldest collective, its age and the missing ranks, if it has waited
  // for longer than `seconds`; else empty.
  std::string Waiting(double seconds);

  // The failure that ended this communicator, or OK.
  Status status() const;
  CommunicatorStats stats() const;
  // See CollectiveTable::WaitedFor.
  uint64_t WaitedFor(int peer) const { return engine_.table().WaitedFor(peer); }
  // See CollectiveTable for these, too.
  std::string TakeLongestWait(int peer) { return engine_.table().TakeLongestWait(peer); }
  uint64_t BytesSentTo(int peer) const { return engine_.table().BytesSentTo(peer); }
  uint64_t BytesReceivedFrom(int peer) const { return engine_.table().BytesReceivedFrom(peer); }

 private:
  Communicator(int rank, int size, Listener listener, bool shared_memory);

  Status DialPeer(int peer, const Key& key, uint64_t generation, TimePoint deadline,
                  PeerSocket* socket, Welcome* welcome) const;
  bool SharesWith(int peer) const;
  Status CheckStart(const Signature& signature, int root, Algorithm algorithm, size_t input_bytes,
                    size_t output_bytes) const;
  void Start(CollectiveOptions options, int root, FlatView input, FlatView output,
             std::shared_ptr<void> kept = nullptr);
  void Submit(std::unique_ptr<Collective> collective);

  Group group_;
  const int port_;
  const bool shared_memory_;
  ProgressEngine engine_;
};

}  // namespace tfdist

#endif  // TFDIST_OPS_CORE_COLLECTIVES_COMMUNICATOR_H_
