#include "core/net/shared_channel.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "core/base/status.h"

namespace tfdist {
namespace {

constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

// Values of Ring::reader_sleeps.
constexpr uint32_t kAwake = 0, kLightSleep = 1, kDeepSleep = 2;

// Calls copy(position, address, bytes) for each range that is contiguous both in `pieces` and in
// the ring, for up to `max_bytes` bytes, from byte number `at` of the ring on. Returns the number
// of bytes.
template <typename Copy>
size_t ForEachRun(uint64_t at, size_t max_bytes, const std::vector<iovec>& pieces,
                  const Copy& copy) {
  constexpr size_t kCapacity = SharedChannel::kCapacity;
  size_t done = 0;
  for (const iovec& piece : pieces) {
    for (size_t from = 0; from < piece.iov_len && done < max_bytes;) {
      const size_t position = (at + done) % kCapacity;
      const size_t run = std::min({piece.iov_len - from, max_bytes - done, kCapacity - position});
      copy(position, static_cast<char*>(piece.iov_base) + from, run);
      from += run;
      done += run;
    }
  }
  return done;
}

}  // namespace

std::unique_ptr<SharedChannel> SharedChannel::Create() {
  Fd fd(memfd_create("tfdist", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  // Allocates all pages now: a page that is missing later would kill the process.
  if (!fd.valid() || fallocate(fd.get(), 0, 0, sizeof(Memory)) != 0 ||
      fcntl(fd.get(), F_ADD_SEALS, kSeals) != 0) {
    return nullptr;
  }
  return Map(std::move(fd), true);
}

std::unique_ptr<SharedChannel> SharedChannel::Open(Fd fd) {
  struct stat about{};
  if (!fd.valid() || fstat(fd.get(), &about) != 0 || !S_ISREG(about.st_mode) ||
      about.st_size != sizeof(Memory)) {
    return nullptr;
  }
  const int seals = fcntl(fd.get(), F_GET_SEALS);
  if (seals < 0 || (seals & kSeals) != kSeals) return nullptr;
  std::unique_ptr<SharedChannel> channel = Map(std::move(fd), false);
  if (channel != nullptr) channel->CloseFd();
  return channel;
}

std::unique_ptr<SharedChannel> SharedChannel::Map(Fd fd, bool creator) {
  void* const address =
      mmap(nullptr, sizeof(Memory), PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
  if (address == MAP_FAILED) return nullptr;
  return std::unique_ptr<SharedChannel>(
      new SharedChannel(std::move(fd), static_cast<Memory*>(address), creator));
}

// New memory is all zeros, which is the initial state of both rings.
SharedChannel::SharedChannel(Fd fd, Memory* memory, bool creator)
    : fd_(std::move(fd)),
      memory_(memory),
      out_(&memory->rings[creator ? 0 : 1]),
      in_(&memory->rings[creator ? 1 : 0]) {}

SharedChannel::~SharedChannel() { munmap(memory_, sizeof(Memory)); }

// All accesses to indices and flags are sequentially consistent. One side writes an index and then
// reads the flag; the other writes the flag and then reads the index. So at least one of them sees
// the other's write.

size_t SharedChannel::Room() const {
  const uint64_t used = tail_ - out_->head.load();
  return used > kCapacity ? 0 : kCapacity - used;  // the reader has corrupted its index
}

size_t SharedChannel::Write(const std::vector<iovec>& pieces) {
  size_t room = Room();
  if (room == 0) {
    out_->writer_waits.store(1);
    room = Room();
    if (room == 0) return 0;
  }
  const size_t written =
      ForEachRun(tail_, room, pieces, [this](size_t position, const char* from, size_t bytes) {
        std::memcpy(out_->bytes + position, from, bytes);
      });
  tail_ += written;
  out_->tail.store(tail_);
  return written;
}

ssize_t SharedChannel::Read(const std::vector<iovec>& pieces) {
  const uint64_t filled = in_->tail.load() - head_;
  if (filled == 0) return 0;
  if (filled > kCapacity) return -1;
  const size_t read =
      ForEachRun(head_, filled, pieces, [this](size_t position, char* to, size_t bytes) {
        std::memcpy(to, in_->bytes + position, bytes);
      });
  head_ += read;
  in_->head.store(head_);
  return static_cast<ssize_t>(read);
}

bool SharedChannel::HasBytes() const { return in_->tail.load() != head_; }

bool SharedChannel::Sleep(bool deep) {
  in_->reader_sleeps.store(deep ? kDeepSleep : kLightSleep);
  return !HasBytes();
}

void SharedChannel::StayAwake() { in_->reader_sleeps.store(kAwake, std::memory_order_relaxed); }

bool SharedChannel::ReaderSleeps(bool urgent) {
  uint32_t how = out_->reader_sleeps.load();
  while (how != kAwake && (urgent || how != kDeepSleep)) {
    if (out_->reader_sleeps.compare_exchange_weak(how, kAwake)) return true;
  }
  return false;
}

bool SharedChannel::WriterWaits() {
  return in_->writer_waits.load() != 0 && in_->writer_waits.exchange(0) != 0;
}

}  // namespace tfdist
