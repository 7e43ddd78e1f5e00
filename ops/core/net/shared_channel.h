// Two ring buffers in memory shared by two processes of one machine, one for each direction.
//
//     bytes      . . . . x x x x x x . . . .      capacity: a power of two
//                        ^ head      ^ tail       both only grow; the position of a byte is its
//                          (reader)    (writer)   number modulo the capacity
//
// The writer copies bytes in and advances `tail`; the reader copies them out and advances `head`.
// Non-blocking. A side that finds the ring empty (full) sets a flag before it sleeps; the peer then
// sends a wakeup byte on the socket beside the rings. A reader in deep sleep is woken only by
// urgent data.
//
// The memory has no name, so it is freed when its processes end. Data from the other process is
// trusted no more than data from a socket. Each side keeps its own index privately and checks the
// other's against it. The memory is sealed against shrinking, because reading truncated memory
// would kill the process.
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

  // Null if the system has no such memory.
  static std::unique_ptr<SharedChannel> Create();
  // Opens the memory that another process has created, by its descriptor. Null if it is not valid.
  static std::unique_ptr<SharedChannel> Open(Fd fd);
  ~SharedChannel();
  SharedChannel(const SharedChannel&) = delete;
  SharedChannel& operator=(const SharedChannel&) = delete;

  int fd() const { return fd_.get(); }
  // To be called when the other side has opened the memory.
  void CloseFd() { fd_.Reset(); }

  // Copies as much of `pieces` as fits and returns the number of bytes. After 0 the reader sends a
  // wakeup byte when it has freed space.
  size_t Write(const std::vector<iovec>& pieces);
  // Fills `pieces` with the available bytes and returns their number; -1 if the other side has
  // corrupted the ring.
  ssize_t Read(const std::vector<iovec>& pieces);

  bool HasBytes() const;
  size_t Room() const;  // bytes that Write would accept

  // Announces that this side is about to sleep. True if it may, because there is nothing to read.
  // `deep`: only urgent data is to wake it.
  bool Sleep(bool deep);
  void StayAwake();

  // Whether to send a wakeup byte, after a Write of `urgent` or other data, or after a Read. After
  // true they return false until the other side sets its flag again.
  bool ReaderSleeps(bool urgent);
  bool WriterWaits();

 private:
  struct Ring {
    alignas(64) std::atomic<uint64_t> tail;
    alignas(64) std::atomic<uint64_t> head;
    alignas(64) std::atomic<uint32_t> reader_sleeps;  // kAwake, kLightSleep or kDeepSleep
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
