// One authenticated connection that carries frames (frame.h): a queue going out, a parser coming
// in. Non-blocking.
//
// Between processes of one machine and user, which a unix socket connects, payloads may stay in the
// sender's memory until the peer has copied them (peer_memory.h). Frames may go through memory that
// both share (shared_channel.h). The accepting side offers both:
//
//     accepting side                                  dialling side
//     WELCOME (its canary) [+ descriptor]    ->       opens the memory, if it can
//                                            <-       SHARED (joined, reads, its canary)
//     SHARED (joined, reads)                 ->
//
// With shared memory, a side's SHARED is its last frame on the socket. The following frames go
// through the memory, and from then on the socket carries single bytes, which wake a side that
// sleeps. The socket stays to tell of the peer's end.
//
// The kernel may refuse to read a payload in the sender's memory: pages of a device driver, secret
// memory (memfd_secret(2)), a system call filter that came later. The receiver then answers REFUSE,
// once, and passes over all that is exposed to it from then on. The sender exposes nothing more,
// and sends the exposed payloads that were not released, before all that it has not sent yet. To
// keep the order of a token's payloads, those behind an exposed one are exposed too, however small.
#ifndef TFDIST_OPS_CORE_NET_MESSAGE_STREAM_H_
#define TFDIST_OPS_CORE_NET_MESSAGE_STREAM_H_

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/base/status.h"
#include "core/net/frame.h"
#include "core/net/peer_memory.h"
#include "core/net/shared_channel.h"
#include "core/net/socket.h"
#include "core/net/transport.h"

namespace tfdist {

// Notified of arriving and of sent data of a stream. An error that it returns breaks the stream. It
// may queue frames, and must not destroy the stream.
class StreamHandler {
 public:
  virtual ~StreamHandler() = default;
  // A frame has begun: its header and its meta are there.
  virtual Status OnFrame(const FrameHeader& header, std::string_view meta) = 0;
  // Appends to `target` memory for the payload's bytes from `received` on: at least one byte, at
  // most the missing ones. It stays valid until OnFrameEnd. Appends nothing to have the rest
  // discarded.
  virtual Status OnPayload(const FrameHeader& header, uint64_t received,
                           std::vector<iovec>* target) = 0;
  // All of the payload is there, or was discarded; also called when there is none.
  virtual Status OnFrameEnd(const FrameHeader& header) = 0;
  // A payload that was queued with this token has been sent, or the peer has copied it.
  virtual void OnSent(void* token, uint64_t payload_bytes) = 0;
  // The payload could not be read from the peer's memory, and `target` may have been written to.
  // The peer sends the frame again; until then no frame with the same token comes.
  virtual void OnUnreadable(const FrameHeader&, std::vector<iovec> /*target*/) {}
  // The peer could not read this number of payloads in this process's memory: they are sent again.
  virtual void OnResent(size_t /*payloads*/) {}
};

// The meta of WELCOME and SHARED.
struct Sharing {
  bool joined = false;  // the sender uses what was offered
  bool reads = false;   // and what is exposed to it
  CanaryInfo canary;    // of its own exposed memory

  template <typename Message, typename Visitor>
  static void Fields(Message& m, Visitor& visit) {
    visit(m.joined, m.reads, m.canary.address, m.canary.value);
  }
};
std::string Encode(const Sharing& sharing);
Status Decode(std::string_view bytes, const char* what, Sharing* sharing);

struct StreamOptions {
  LimitsOf limits_of = nullptr;     // of the protocol's frames
  size_t buffer_bytes = 16 << 10;   // at first; grows to hold a whole meta
  size_t receive_budget = 1 << 20;  // bytes of one Receive, so that other streams have their turn
  uint64_t min_exposed = 48 << 10;  // smaller payloads are sent
  size_t max_exposed_frames = SIZE_MAX;  // more are sent
  size_t max_exposed_pieces = 256;       // of a payload; one of more is sent
  size_t max_outgoing = SIZE_MAX;        // frames; with more, nothing is received
  // Of payloads: with more queued nothing is received, and with more exposed they are sent.
  uint64_t max_waiting_bytes = UINT64_MAX;
  bool share_memory = false;  // frames go through shared memory where they can
  // Whether a peer that withdraws its exposed memory then says why; else its stream breaks.
  bool awaits_reason = false;
};

class MessageStream {
 public:
  MessageStream(PeerSocket socket, const StreamOptions& options);

  int fd() const { return socket_.get(); }
  // Nothing more can be written for now.
  bool blocked() const { return blocked_; }
  // Whether EPOLLOUT unblocks it; else a byte on the socket does.
  bool writes_socket() const { return !out_shared_; }
  bool shares_memory() const { return in_shared_; }
  bool idle() const { return outgoing_.empty() && !transport_->has_output(); }
  // Whether a payload is queued, and neither sent nor copied by the peer.
  bool has_payloads() const;
  // Frames of this type that wait to be sent.
  size_t Waiting(uint8_t type) const;
  // Whether received input waits, because there was too much to send.
  bool stalled() const { return stalled_ || transport_->has_input(); }
  bool wants_input() const {
    return outgoing_.size() < options_.max_outgoing && outgoing_bytes_ < options_.max_waiting_bytes;
  }

  // Payload bytes so far; a partly received or sent frame counts with its bytes so far.
  uint64_t bytes_received() const { return bytes_received_; }
  uint64_t bytes_sent() const { return bytes_sent_; }
  // Of the payload that is being received: bytes that are there, and bytes whose memory may have
  // been written to.
  uint64_t payload_received() const { return payload_received_; }
  uint64_t payload_touched() const { return payload_touched_; }

  // Queues a frame; the header's sizes are filled in. The payload is read until it has been sent,
  // or copied by the peer. `owners` keep it: one for each piece, or one for all; they are let go of
  // as their pieces are sent. With a `token` the handler is told; then the memory is the handler's
  // and there are no owners. `urgent`: an idle peer must look at it.
  void Queue(FrameHeader header, std::string meta, std::vector<iovec> payload = {},
             std::vector<std::shared_ptr<const void>> owners = {}, void* token = nullptr,
             bool urgent = true);

  // The accepting side's first frame.
  void Welcome();
  // Takes the WELCOME that the dialling side has received, and the descriptor that came with it.
  Status OnWelcome(std::string_view meta, Fd descriptor);
  // Whether the two sides have agreed on their shared resources.
  bool settled() const { return !settling_; }

  // Writes as much as there is room for. A broken connection is left for Receive to find, behind
  // the peer's last frames.
  void Flush(StreamHandler& handler);
  void Unblock() { blocked_ = false; }

  // Reads the arrived data, within the budget. `any` tells whether it was anything.
  Status Receive(StreamHandler& handler, bool* any = nullptr);

  // With shared memory. Reads the wake-up bytes, and notes the end of the socket.
  void ReadNotifications();
  // Before threads stop polling the stream: true if all later input makes the socket readable,
  // false if there is input now. In `deep_sleep` only urgent frames, and frames for which there is
  // no room, make it readable.
  bool Sleep(bool deep_sleep);

  // Releases all memory of others: drops unsent payloads, copies the rest of a partly sent one, so
  // that following frames are understood, and discards all later input.
  void Detach();

 private:
  struct Outgoing {
    FrameHeader header;
    std::string head;            // header and meta, as they travel
    std::vector<iovec> payload;  // that follows
    std::vector<iovec> exposed;  // that stays
    size_t meta_bytes = 0;       // without addresses of exposed payloads
    std::vector<std::shared_ptr<const void>> owners;
    void* token = nullptr;
    uint64_t bytes = 0;           // that travel
    bool last_on_socket = false;  // SHARED
    bool urgent = true;
  };

  bool HasRoom(uint64_t bytes) const;
  bool ToBeExposed(const Outgoing& frame, size_t pieces) const;
  void Expose(Outgoing* frame, std::vector<iovec> payload, std::string* meta);
  void Released(const Outgoing& frame);
  bool HasExposed(const void* token) const;
  static void WriteHead(std::string_view meta, Outgoing* frame);
  static void SendWhole(Outgoing* frame);
  size_t Write();
  void Advance(size_t bytes, StreamHandler& handler);
  void QueueConnectionFrame(FrameType type, std::string_view meta);

  Status Read(size_t* received);
  Status Consume(StreamHandler& handler);
  Status ConsumeFrame(StreamHandler& handler, std::string_view meta);
  Status FillTarget(StreamHandler& handler, size_t* received);
  Status ExpectPayload(StreamHandler& handler);
  Status CopyExposed(StreamHandler& handler, std::vector<iovec> pieces);

  void Share(const CanaryInfo& canary);
  Status OnShared(std::string_view meta);
  Status OnRelease(StreamHandler& handler);
  Status OnRefuse(StreamHandler& handler);
  void Notify();

  const StreamOptions options_;
  const std::shared_ptr<const PeerProcess> process_;  // of a unix socket
  const std::unique_ptr<Transport> transport_;        // over the socket
  Fd socket_;

  std::deque<Outgoing> outgoing_;
  uint64_t outgoing_bytes_ = 0;  // of their payloads, except exposed ones
  uint64_t front_sent_ = 0;      // bytes of outgoing_.front()
  size_t front_piece_ = 0;       // the first that is not sent whole: 0 is its head
  size_t front_offset_ = 0;      // bytes of that piece
  bool blocked_ = false;
  bool detached_ = false;
  std::vector<iovec> batch_;  // of one read or write
  uint64_t bytes_received_ = 0, bytes_sent_ = 0;

  bool stalled_ = false;
  std::vector<char> buffer_;  // headers, metas, and the first bytes of payloads
  size_t begin_ = 0, end_ = 0;
  FrameHeader incoming_;  // of the payload in progress
  bool in_payload_ = false;
  std::vector<iovec> target_;  // the rest of its memory, from target_next_ on
  size_t target_next_ = 0;
  uint64_t payload_received_ = 0, payload_touched_ = 0;
  bool discards_ = false;              // the rest of the payload
  std::unique_ptr<char[]> discarded_;  // where it goes

  bool offered_ = false;   // and the peer is to answer
  bool settling_ = false;  // the peer's SHARED is still to come
  std::unique_ptr<SharedChannel> channel_;
  bool out_shared_ = false, in_shared_ = false;  // which directions have left the socket
  bool sleeps_ = false, deep_sleep_ = false;     // as the peer was told
  bool hung_up_ = false;                         // the socket has ended
  std::optional<PeerMemory> peer_memory_;
  bool withdrawn_ = false;               // the peer exposes no more; it is about to say why
  bool refuses_ = false;                 // some exposed memory of the peer was not readable
  std::deque<Outgoing> exposed_frames_;  // sent and not released, oldest first
  size_t exposed_count_ = 0;             // including queued ones
  uint64_t exposed_bytes_ = 0;           // of these
  std::vector<std::pair<const void*, size_t>> exposed_tokens_;  // of those, and their numbers
  bool peer_reads_ = false;                                     // exposed memory
  // Goes before what is exposed does.
  std::unique_ptr<ExposedMemory> exposed_;
};

}  // namespace tfdist

#endif  // TFDIST_OPS_CORE_NET_MESSAGE_STREAM_H_
