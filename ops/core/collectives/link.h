// One authenticated connection to one peer: a queue of frames going out, a parser of frames coming
// in. Non-blocking.
//
// Between ranks of one machine and user, which a unix socket connects, the frames go through memory
// that both share (shared_channel.h), and large chunks for which there is no room stay where they
// are until the peer has copied them (net/peer_memory.h). The side that was dialled offers it; what
// happens on the socket:
//
//     dialled side                                     dialling side
//     WELCOME (its canary) and a descriptor  ->        opens the memory; if it cannot: joined = no
//                                            <-        SHARED (joined, reads, its canary)
//     SHARED (reads)                         ->
//
// A side's SHARED is its last frame on the socket: it sends the following ones through the memory,
// and what then comes on the socket are single bytes, knocks at a sleeping peer. The socket stays
// to tell of the peer's end.
#ifndef TFDIST_OPS_CORE_COLLECTIVES_LINK_H_
#define TFDIST_OPS_CORE_COLLECTIVES_LINK_H_

#include <sys/uio.h>

#include <cstddef>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/base/status.h"
#include "core/collectives/collective.h"
#include "core/net/frame.h"
#include "core/net/peer_memory.h"
#include "core/net/shared_channel.h"
#include "core/net/socket.h"

namespace tfdist {

// Told by a link what arrives and what has left. An error that it returns breaks the link.
class FrameHandler {
 public:
  virtual ~FrameHandler() = default;
  virtual Status OnControl(int peer, const FrameHeader& header, std::string_view payload) = 0;
  // Appends to `target` exactly header.length bytes of memory that stay valid until OnDataEnd.
  virtual Status OnDataBegin(int peer, const FrameHeader& header, char* scratch,
                             std::vector<iovec>* target) = 0;
  virtual Status OnDataEnd(int peer, const FrameHeader& header, const char* scratch) = 0;
  virtual void OnChunkSent(Collective* collective, size_t bytes) = 0;
};

class Link {
 public:
  Link(int peer, PeerSocket socket);

  int fd() const { return socket_.get(); }
  bool blocked() const { return blocked_; }  // nothing more can be written for now
  // Whether a blocked link is unblocked by EPOLLOUT (and else by a knock).
  bool writes_socket() const { return !out_shared_; }
  bool shares() const { return in_shared_; }
  bool idle() const { return outgoing_.empty(); }
  bool has_chunks() const;  // queued, and not sent or not yet copied by the peer

  void QueueControl(FrameType type, const CollectiveId& id, const std::string& payload);
  void QueueChunk(Collective* collective, const FrameHeader& header, std::vector<iovec> pieces);

  // Sends the WELCOME of the side that was dialled, which offers to share memory where the socket
  // is of this machine. Before any other frame.
  void Welcome();
  // Answers the WELCOME of a peer that was dialled, and the descriptor that came with it: joins in
  // where there is something to join.
  Status OnWelcome(std::string_view payload, Fd descriptor);
  // Whether it is decided over what the frames go.
  bool settled() const { return !settling_; }

  // Writes what there is room for. A broken connection is left for Receive to find, behind the
  // peer's last words.
  void Flush(FrameHandler& handler);
  void Unblock() { blocked_ = false; }

  // Reads what has arrived, up to a budget so that one peer cannot keep the thread from the others.
  // `any` tells whether it was anything.
  Status Receive(FrameHandler& handler, bool* any = nullptr);
  // What the socket has to say, once no frames come on it: knocks, or the end.
  void ReadKnocks();
  // Before nobody looks at the link any more: true if whatever comes from now on makes the socket
  // readable, false if something is there to be received. `idle`: OPEN frames and chunks wait until
  // somebody looks again, while there is room for them.
  bool Rest(bool idle);

  // Forgets all borrowed memory: drops unsent chunks, keeps the rest of a half-sent one as a copy
  // so that a following frame is still understood, and from now on throws away what arrives.
  void Detach();

 private:
  struct Outgoing {
    HeaderBytes header;
    std::string payload;        // control frames
    std::vector<iovec> pieces;  // chunks
    size_t bytes = 0;           // header + payload or pieces
    Collective* collective = nullptr;
    size_t lent_bytes = 0;        // of a chunk of which only the addresses travel
    bool last_on_socket = false;  // SHARED
    bool urgent = true;           // an idle peer must look at it
  };
  struct LentChunk {
    Collective* collective;
    size_t bytes;
  };

  bool HasRoom(size_t bytes) const;
  size_t Write();
  void Written(size_t bytes, FrameHandler& handler);

  Status Read(size_t* received);
  Status Consume(FrameHandler& handler);
  Status OnControl(FrameHandler& handler, const FrameHeader& header, std::string_view payload);
  Status FillTarget(FrameHandler& handler, size_t* received);

  // In link_sharing.cc.
  void Knock();
  Status OnShared(std::string_view payload);
  void QueueShared(const Shared& shared);
  Status OnLend(FrameHandler& handler, const FrameHeader& header, std::string_view payload);
  Status OnReturn(FrameHandler& handler);

  const int peer_;
  const std::shared_ptr<const PeerProcess> process_;  // where the socket is of this machine
  Fd socket_;

  std::deque<Outgoing> outgoing_;
  size_t front_sent_ = 0;  // bytes of outgoing_.front() already written
  bool blocked_ = false;
  bool detached_ = false;
  std::vector<iovec> batch_;  // of one read or write

  std::vector<char> buffer_;  // headers, control frames, and the first bytes of chunks
  size_t begin_ = 0, end_ = 0;
  std::unique_ptr<char[]> scratch_;
  FrameHeader chunk_;          // the chunk being received
  std::vector<iovec> target_;  // what is left of its memory, from target_next_ on
  size_t target_next_ = 0;

  bool offered_ = false;   // and the peer is to answer
  bool settling_ = false;  // the peer's SHARED is still to come
  std::unique_ptr<SharedChannel> channel_;
  bool out_shared_ = false, in_shared_ = false;  // which directions have left the socket
  bool rests_ = false;                           // the peer has been told to knock,
  bool idle_ = false;                            // but not for everything
  bool hung_up_ = false;                         // the socket has ended
  std::unique_ptr<ExposedMemory> exposed_;
  bool peer_reads_ = false;  // what we lend
  std::optional<PeerMemory> peer_memory_;
  std::deque<LentChunk> lent_;  // oldest first
  bool withdrawn_ = false;      // the peer lends no more; it is about to say why
};

}  // namespace tfdist

#endif  // TFDIST_OPS_CORE_COLLECTIVES_LINK_H_
