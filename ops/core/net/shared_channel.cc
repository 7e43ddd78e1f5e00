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

// How a reader sleeps.
constexpr uint32_t kAwake = 0, kLightly = 1, kSoundly = 2;

// Calls copy(place in the ring, piece, bytes) for each run of up to `most` bytes of `pieces` that
// lies in one piece in the ring as well, from byte number `at` on. Returns how many bytes it were.
template <typename Copy>
size_t ForEachRun(uint64_t at, size_t most, const std::vector<iovec>& pieces, const Copy& copy) {
  constexpr size_t kCapacity = SharedChannel::kCapacity;
  size_t done = 0;
  for (const iovec& piece : pieces) {
    for (size_t from = 0; from < piece.iov_len && done < most;) {
      const size_t place = (at + done) % kCapacity;
      const size_t run = std::min({piece.iov_len - from, most - done, kCapacity - place});
      copy(place, static_cast<char*>(piece.iov_base) + from, run);
      from += run;
      done += run;
    }
  }
  return done;
}

}  // namespace

std::unique_ptr<SharedChannel> SharedChannel::Create() {
  Fd fd(memfd_create("tfdist", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  // All of it at once: memory that is missing later would end us.
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

// Fresh memory is all zeros, which is how both rings begin.
SharedChannel::SharedChannel(Fd fd, Memory* memory, bool creator)
    : fd_(std::move(fd)),
      memory_(memory),
      out_(&memory->rings[creator ? 0 : 1]),
      in_(&memory->rings[creator ? 1 : 0]) {}

SharedChannel::~SharedChannel() { munmap(memory_, sizeof(Memory)); }

// Every index and flag is sequentially consistent: whoever moves an index then looks at the flag,
// and whoever sets the flag then looks at the index, so one of the two sees what the other has
// done.

size_t SharedChannel::Room() const {
  const uint64_t used = tail_ - out_->head.load();
  return used > kCapacity ? 0 : kCapacity - used;  // a reader that lies gets nothing more
}

size_t SharedChannel::Write(const std::vector<iovec>& pieces) {
  size_t room = Room();
  if (room == 0) {
    out_->writer_waits.store(1);
    room = Room();
    if (room == 0) return 0;
  }
  const size_t written =
      ForEachRun(tail_, room, pieces, [this](size_t place, const char* from, size_t bytes) {
        std::memcpy(out_->bytes + place, from, bytes);
      });
  tail_ += written;
  out_->tail.store(tail_);
  return written;
}

ssize_t SharedChannel::Read(const std::vector<iovec>& pieces) {
  const uint64_t filled = in_->tail.load() - head_;
  if (filled == 0) return 0;
  if (filled > kCapacity) return -1;
  const size_t read = ForEachRun(
      head_, filled, pieces,
      [this](size_t place, char* to, size_t bytes) { std::memcpy(to, in_->bytes + place, bytes); });
  head_ += read;
  in_->head.store(head_);
  return static_cast<ssize_t>(read);
}

bool SharedChannel::HasBytes() const { return in_->tail.load() != head_; }

bool SharedChannel::Sleep(bool soundly) {
  in_->reader_sleeps.store(soundly ? kSoundly : kLightly);
  return !HasBytes();
}

void SharedChannel::StayAwake() { in_->reader_sleeps.store(kAwake, std::memory_order_relaxed); }

bool SharedChannel::ReaderSleeps(bool urgent) {
  uint32_t how = out_->reader_sleeps.load();
  while (how != kAwake && (urgent || how != kSoundly)) {
    if (out_->reader_sleeps.compare_exchange_weak(how, kAwake)) return true;
  }
  return false;
}

bool SharedChannel::WriterWaits() {
  return in_->writer_waits.load() != 0 && in_->writer_waits.exchange(0) != 0;
}

}  // namespace tfdist
