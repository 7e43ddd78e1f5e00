// Two rings of bytes in memory that two processes of one machine share, one for each direction.
//
//     bytes      . . . . x x x x x x . . . .      capacity: a power of two
//                        ^ head      ^ tail       both only ever grow; a byte's place is its
//                          (reader)    (writer)   number modulo the capacity
//
// The writer copies bytes in and moves `tail`, the reader copies them out and moves `head`. Nobody
// waits here: who finds a ring empty (or full) says so in it before it goes to sleep, and the other
// side then knocks, which is a byte on the connection beside the rings; at a reader that sleeps
// soundly only for what is urgent.
//
// The memory has no name, so that nothing is left of it when its processes are gone. What the other
// process writes into it is believed no more than what comes out of a socket: each side keeps its
// own index to itself, checks the other's against it, and the memory is sealed against shrinking,
// without which reading it could end us.
#ifndef TFDIST_OPS_CORE_NET_SHARED_CHANNEL_H_
#define TFDIST_OPS_CORE_NET_SHARED_CHANNEL_H_

#include <sys/uio.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "core/net/fd.h"

namespace tfdist {

class SharedChannel {
 public:
  static constexpr size_t kCapacity = 256 * 1024;  // of each ring

  // Null where the system has no such memory.
  static std::unique_ptr<SharedChannel> Create();
  // What another process has created and sent the descriptor of. Null if it is not what it should
  // be.
  static std::unique_ptr<SharedChannel> Open(Fd fd);
  ~SharedChannel();
  SharedChannel(const SharedChannel&) = delete;
  SharedChannel& operator=(const SharedChannel&) = delete;

  int fd() const { return fd_.get(); }
  // Once the other side has opened it.
  void CloseFd() { fd_.Reset(); }

  // Copies as much of `pieces` as there is room for, and says how much; 0: after this, the reader
  // knocks when it has made room.
  size_t Write(const std::vector<iovec>& pieces);
  // The same the other way. -1: the other side has broken the ring.
  ssize_t Read(const std::vector<iovec>& pieces);

  bool HasBytes() const;
  size_t Room() const;  // bytes that Write would take

  // Announces that this side goes to sleep; true if there is nothing to read, so that it may.
  // `soundly`: only what is urgent is to wake it.
  bool Sleep(bool soundly);
  void StayAwake();

  // Whether to knock after a Write, of something `urgent` or not, or a Read. After true they are
  // false until the other side says so again.
  bool ReaderSleeps(bool urgent);
  bool WriterWaits();

 private:
  struct Ring {
    alignas(64) std::atomic<uint64_t> tail;
    alignas(64) std::atomic<uint64_t> head;
    alignas(64) std::atomic<uint32_t> reader_sleeps;  // kAwake, kLightly or kSoundly
    std::atomic<uint32_t> writer_waits;
    alignas(64) char bytes[kCapacity];
  };
  struct Memory {
    Ring rings[2];
  };
  static_assert(std::atomic<uint64_t>::is_always_lock_free);

  SharedChannel(Fd fd, Memory* memory, bool creator);
  static std::unique_ptr<SharedChannel> Map(Fd fd, bool creator);

  Fd fd_;
  Memory* const memory_;
  Ring* const out_;
  Ring* const in_;
  uint64_t tail_ = 0;  // of out_
  uint64_t head_ = 0;  // of in_
};

}  // namespace tfdist

#endif  // TFDIST_OPS_CORE_NET_SHARED_CHANNEL_H_
