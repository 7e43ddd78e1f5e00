// One authenticated connection to one peer: a queue of frames going out, a parser of frames coming
// in. Non-blocking.
#ifndef TFDIST_OPS_CORE_LINK_H_
#define TFDIST_OPS_CORE_LINK_H_

#include <sys/uio.h>

#include <cstddef>
#include <deque>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/collective.h"
#include "core/frame.h"
#include "core/socket.h"
#include "core/status.h"

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
  Link(int peer, Fd socket);

  int fd() const { return socket_.get(); }
  bool blocked() const { return blocked_; }  // the kernel takes no more until EPOLLOUT
  bool idle() const { return outgoing_.empty(); }
  bool has_chunks() const;  // queued and not sent

  void QueueControl(FrameType type, const CollectiveId& id, const std::string& payload);
  void QueueChunk(Collective* collective, const FrameHeader& header, std::vector<iovec> pieces);

  // Writes what the kernel takes. A broken connection is left for Receive to find, behind the
  // peer's last words.
  void Flush(FrameHandler& handler);
  void Unblock() { blocked_ = false; }

  // Reads what has arrived, up to a budget so that one peer cannot keep the thread from the others.
  Status Receive(FrameHandler& handler);

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
  };

  Status Consume(FrameHandler& handler);
  Status FillTarget(FrameHandler& handler, size_t* received);

  const int peer_;
  Fd socket_;

  std::deque<Outgoing> outgoing_;
  size_t front_sent_ = 0;  // bytes of outgoing_.front() already written
  bool blocked_ = false;
  bool detached_ = false;

  std::vector<char> buffer_;  // headers, control frames, and the first bytes of chunks
  size_t begin_ = 0, end_ = 0;
  std::unique_ptr<char[]> scratch_;
  FrameHeader chunk_;          // the chunk being received
  std::vector<iovec> target_;  // what is left of its memory, from target_next_ on
  size_t target_next_ = 0;
};

}  // namespace tfdist

#endif  // TFDIST_OPS_CORE_LINK_H_
