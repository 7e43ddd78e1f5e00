// Reading the memory of another process: what it says is there, only while it lends, and nothing
// of anybody else.
#include "core/peer_memory.h"

#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <numeric>
#include <optional>

#include "calls.h"

namespace tfdist::testing {
namespace {

constexpr size_t kCount = 100000;

// Fills the whole of an object from a pipe, or the other way round.
template <typename T>
void ReadWhole(int fd, T* value) {
  EXPECT(read(fd, value, sizeof(T)) == sizeof(T));
}
template <typename T>
void WriteWhole(int fd, const T& value) {
  EXPECT(write(fd, &value, sizeof(T)) == sizeof(T));
}

// A process that lends 0, 1, 2, ... and withdraws when told to.
class OtherProcess {
 public:
  OtherProcess() {
    int to_child[2], to_parent[2];
    EXPECT(pipe(to_child) == 0 && pipe(to_parent) == 0);
    child_ = fork();
    EXPECT(child_ >= 0);
    if (child_ == 0) Lend(to_child[0], to_parent[1]);
    told_ = to_child[1];
    telling_ = to_parent[0];
    close(to_child[0]);
    close(to_parent[1]);
    ReadWhole(telling_, &info);
    ReadWhole(telling_, &address);
  }
  ~OtherProcess() {
    Kill();
    close(told_);
    close(telling_);
  }

  void Withdraw() {
    WriteWhole(told_, 'w');
    char done = 0;
    ReadWhole(telling_, &done);
  }
  void Kill() {
    if (child_ == 0) return;
    kill(child_, SIGKILL);
    EXPECT(waitpid(std::exchange(child_, 0), nullptr, 0) > 0);
  }

  LenderInfo info;
  char* address = nullptr;

 private:
  [[noreturn]] static void Lend(int told, int telling) {
    std::vector<int32_t> values(kCount);
    std::iota(values.begin(), values.end(), 0);
    std::optional<Lender> lender(std::in_place);
    WriteWhole(telling, lender->info());
    WriteWhole(telling, reinterpret_cast<char*>(values.data()));
    char word = 0;
    ReadWhole(told, &word);
    lender.reset();
    std::fill(values.begin(), values.end(), -1);
    WriteWhole(telling, word);
    for (;;) pause();
  }

  pid_t child_ = 0;
  int told_ = -1, telling_ = -1;
};

void TestAnotherProcess() {
  OtherProcess other;
  const PeerMemory peer(other.info);
  EXPECT(peer.IsReadable());
  std::vector<int32_t> values(kCount, -2);
  const std::vector<iovec> all{{values.data(), kCount * sizeof(int32_t)}};
  const std::vector<iovec> there{{other.address, kCount * sizeof(int32_t)}};
  EXPECT_OK(peer.Read(all, there));
  for (size_t i = 0; i < kCount; ++i) EXPECT(values[i] == static_cast<int32_t>(i));

  // In pieces that do not match, more than go into a system call; one of nothing among them.
  std::fill(values.begin(), values.end(), -2);
  std::vector<iovec> here, lent;
  char* const data = reinterpret_cast<char*>(values.data());
  const size_t bytes = kCount * sizeof(int32_t);
  for (size_t at = 0; at < bytes; at += 301)
    here.push_back({data + at, std::min<size_t>(301, bytes - at)});
  for (size_t at = 0; at < bytes; at += 577) {
    lent.push_back({other.address + at, std::min<size_t>(577, bytes - at)});
    lent.push_back({nullptr, 0});
  }
  Borrowed borrowed(peer, lent);
  EXPECT_OK(borrowed.Read(here.data(), 100));
  EXPECT_OK(borrowed.Read(here.data() + 100, here.size() - 100));
  for (size_t i = 0; i < kCount; ++i) EXPECT(values[i] == static_cast<int32_t>(i));
  EXPECT_CONTAINS(borrowed.Read(here.data(), 1).message(), "less was lent than is to be read");

  other.Withdraw();
  EXPECT(!peer.IsReadable());
  const Status withdrawn = peer.Read(all, there);
  EXPECT(withdrawn.code() == StatusCode::kUnavailable);
  EXPECT_CONTAINS(withdrawn.message(), "withdrawn");
}

void TestWhoeverIsGone() {
  OtherProcess other;
  const PeerMemory peer(other.info);
  other.Kill();
  EXPECT(!peer.IsReadable());
  char byte;
  EXPECT(peer.Read({{&byte, 1}}, {{other.address, 1}}).code() == StatusCode::kUnavailable);
}

void TestWhatCannotBeRead() {
  const Lender lender;
  const PeerMemory here(lender.info());
  EXPECT(here.IsReadable());
  char bytes[8];
  void* const closed = mmap(nullptr, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  EXPECT(closed != MAP_FAILED);
  for (void* const address :
       {static_cast<void*>(nullptr), closed, reinterpret_cast<void*>(~uintptr_t{4095})}) {
    const Status status = here.Read({{bytes, 8}}, {{address, 8}});
    EXPECT(status.code() == StatusCode::kFailedPrecondition);
    EXPECT_CONTAINS(status.message(), StrCat("cannot read 8 bytes that process ", getpid()));
  }
  munmap(closed, 4096);
}

// Somebody on another machine, whose number is by chance that of a process here.
void TestOthersOfTheSameNumber() {
  const Lender lender;
  LenderInfo info = lender.info();
  info.seal[1] ^= 1;
  EXPECT(!PeerMemory(info).IsReadable());
  info = lender.info();
  info.seal_address = 8;
  EXPECT(!PeerMemory(info).IsReadable());
  info = lender.info();
  info.process = 0;
  EXPECT(!PeerMemory(info).IsReadable());
  info.process = -1;
  EXPECT(!PeerMemory(info).IsReadable());
  const Lender second;
  EXPECT(second.info().seal != lender.info().seal);
}

void Main() {
  TestAnotherProcess();  // forks, so before there are threads
  TestWhoeverIsGone();
  TestWhatCannotBeRead();
  TestOthersOfTheSameNumber();
  std::puts("peer memory: ok");
}

}  // namespace
}  // namespace tfdist::testing

int main() { tfdist::testing::Main(); }
