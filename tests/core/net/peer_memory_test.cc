// Reads of another process's memory: the exposed content, only while it is exposed, and only of the
// right process.
#include "core/net/peer_memory.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <numeric>
#include <optional>

#include "collectives/calls.h"
#include "core/net/socket.h"

namespace tfdist::testing::peer_memory_test {
namespace {

constexpr size_t kCount = 100000;

// Read a whole object from a descriptor, or write it.
template <typename T>
void ReadWhole(int fd, T* value) {
  EXPECT(read(fd, value, sizeof(T)) == sizeof(T));
}
template <typename T>
void WriteWhole(int fd, const T& value) {
  EXPECT(write(fd, &value, sizeof(T)) == sizeof(T));
}

// A process at the other end of a unix socket that exposes 0, 1, 2, ... until Withdraw.
class OtherProcess {
 public:
  OtherProcess() {
    Listener listener;
    EXPECT_OK(Listener::Listen("127.0.0.1", 0, true, &listener));
    child_ = fork();
    EXPECT(child_ >= 0);
    if (child_ == 0) Expose(StrCat("127.0.0.1:", listener.port()));
    PeerSocket accepted;
    EXPECT(Eventually([&] { return Accept(listener.local(), &accepted); }));
    EXPECT(accepted.process != nullptr && accepted.process->id() == child_);
    socket_ = std::move(accepted.fd);
    process = std::move(accepted.process);
    EXPECT(fcntl(socket_.get(), F_SETFL, 0) == 0);  // blocking
    ReadWhole(socket_.get(), &canary);
    ReadWhole(socket_.get(), &address);
  }
  ~OtherProcess() { Kill(); }

  PeerMemory memory() const { return PeerMemory(process, canary); }
  void Withdraw() {
    WriteWhole(socket_.get(), 'w');
    char done = 0;
    ReadWhole(socket_.get(), &done);
  }
  void Kill() {
    if (child_ == 0) return;
    kill(child_, SIGKILL);
    EXPECT(waitpid(std::exchange(child_, 0), nullptr, 0) > 0);
  }

  std::shared_ptr<const PeerProcess> process;
  CanaryInfo canary;
  char* address = nullptr;

 private:
  [[noreturn]] static void Expose(const std::string& to) {
    PeerSocket socket;
    EXPECT_OK(Dial(to, true, Clock::now() + std::chrono::seconds(10), &socket));
    EXPECT(socket.process != nullptr && socket.process->id() == getppid());
    EXPECT(fcntl(socket.fd.get(), F_SETFL, 0) == 0);
    std::vector<int32_t> values(kCount);
    std::iota(values.begin(), values.end(), 0);
    std::optional<ExposedMemory> exposed(std::in_place);
    WriteWhole(socket.fd.get(), exposed->canary());
    WriteWhole(socket.fd.get(), reinterpret_cast<char*>(values.data()));
    char word = 0;
    ReadWhole(socket.fd.get(), &word);
    exposed.reset();
    std::fill(values.begin(), values.end(), -1);
    WriteWhole(socket.fd.get(), word);
    for (;;) pause();
  }

  pid_t child_ = 0;
  Fd socket_;
};

void TestAnotherProcess() {
  OtherProcess other;
  const PeerMemory peer = other.memory();
  EXPECT(peer.IsReadable());
  std::vector<int32_t> values(kCount, -2);
  const std::vector<iovec> all{{values.data(), kCount * sizeof(int32_t)}};
  const std::vector<iovec> there{{other.address, kCount * sizeof(int32_t)}};
  EXPECT_OK(peer.Read(all, there));
  for (size_t i = 0; i < kCount; ++i) EXPECT(values[i] == static_cast<int32_t>(i));

  // In pieces of different sizes, some of them empty, and more than fit into a system call.
  std::fill(values.begin(), values.end(), -2);
  std::vector<iovec> here, exposed;
  char* const data = reinterpret_cast<char*>(values.data());
  const size_t bytes = kCount * sizeof(int32_t);
  for (size_t at = 0; at < bytes; at += 301)
    here.push_back({data + at, std::min<size_t>(301, bytes - at)});
  for (size_t at = 0; at < bytes; at += 577) {
    exposed.push_back({other.address + at, std::min<size_t>(577, bytes - at)});
    exposed.push_back({nullptr, 0});
  }
  RemoteRead remote(peer, exposed);
  EXPECT_OK(remote.Read(here.data(), 100));
  EXPECT_OK(remote.Read(here.data() + 100, here.size() - 100));
  for (size_t i = 0; i < kCount; ++i) EXPECT(values[i] == static_cast<int32_t>(i));
  EXPECT_CONTAINS(remote.Read(here.data(), 1).message(), "exposes less than is to be read");

  other.Withdraw();
  EXPECT(!peer.IsReadable());
  const Status withdrawn = peer.Read(all, there);
  EXPECT(withdrawn.code() == StatusCode::kUnavailable);
  EXPECT_CONTAINS(withdrawn.message(), "exposes its memory no more");
}

void TestEndedProcess() {
  OtherProcess other;
  const PeerMemory peer = other.memory();
  other.Kill();
  EXPECT(!peer.IsReadable());
  char byte;
  EXPECT(peer.Read({{&byte, 1}}, {{other.address, 1}}).code() == StatusCode::kUnavailable);
}

// This process at both ends of a socket.
std::shared_ptr<const PeerProcess> Myself() {
  int ends[2];
  EXPECT(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
  const Fd one(ends[0]), other(ends[1]);
  auto process = PeerProcess::Of(one);
  EXPECT(process != nullptr && process->id() == getpid() && process->IsAlive());
  return process;
}

void TestUnreadableAddresses() {
  const ExposedMemory exposed;
  const PeerMemory here(Myself(), exposed.canary());
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

void TestFalseCanaries() {
  const ExposedMemory exposed, second;
  CanaryInfo canary = exposed.canary();
  canary.value[1] ^= 1;
  EXPECT(!PeerMemory(Myself(), canary).IsReadable());
  canary = exposed.canary();
  canary.address = 8;
  EXPECT(!PeerMemory(Myself(), canary).IsReadable());
  EXPECT(!PeerMemory(Myself(), {}).IsReadable());
  EXPECT(!PeerMemory(nullptr, exposed.canary()).IsReadable());
  EXPECT(second.canary().value != exposed.canary().value);
}

// The identity of the peer comes from the kernel alone.
void TestPeers() {
  Listener listener;
  EXPECT_OK(Listener::Listen("127.0.0.1", 0, true, &listener));
  const std::string address = StrCat("127.0.0.1:", listener.port());
  const TimePoint deadline = Clock::now() + std::chrono::seconds(10);
  PeerSocket dialled, accepted;
  EXPECT_OK(Dial(address, false, deadline, &dialled));
  EXPECT(Eventually([&] { return Accept(listener.tcp(), &accepted); }));
  EXPECT(dialled.process == nullptr && accepted.process == nullptr);
  EXPECT(PeerProcess::Of(dialled.fd) == nullptr);
  EXPECT_OK(Dial(address, true, deadline, &dialled));
  EXPECT(!Accept(listener.tcp(), &accepted) && Accept(listener.local(), &accepted));
  EXPECT(accepted.process->id() == getpid());
  dialled.fd.Reset();  // after a hang-up the process id may have been reused
  EXPECT(PeerProcess::Of(accepted.fd) == nullptr);
  // A local name without a listener: TCP reports the error.
  listener.Close();
  EXPECT(!Dial(address, true, deadline, &dialled).ok());
  // A listener on all addresses is found by each of them.
  EXPECT_OK(Listener::Listen("", 0, true, &listener));
  EXPECT_OK(Dial(StrCat("127.0.0.1:", listener.port()), true, deadline, &dialled));
  EXPECT(dialled.process != nullptr);
}

// A process of another user is neither accepted nor trusted.
void TestOtherUsers() {
  if (geteuid() != 0) return;  // only root can change its user
  Listener listener;
  EXPECT_OK(Listener::Listen("127.0.0.1", 0, true, &listener));
  const std::string address = StrCat("127.0.0.1:", listener.port());
  const pid_t child = fork();
  EXPECT(child >= 0);
  if (child == 0) {
    EXPECT(setresuid(65533, 65533, 65533) == 0);
    PeerSocket socket;
    // The name exists but belongs to root, so TCP is used.
    EXPECT_OK(Dial(address, true, Clock::now() + std::chrono::seconds(10), &socket));
    EXPECT(socket.process == nullptr);
    _exit(0);
  }
  PeerSocket accepted;
  EXPECT(Eventually([&] { return Accept(listener.local(), &accepted); }));
  EXPECT(!accepted.fd.valid() && accepted.process == nullptr);
  int status = -1;
  EXPECT(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

void Main() {
  TestOtherUsers();  // the first three fork, so they run before there are threads
  TestAnotherProcess();
  TestEndedProcess();
  TestUnreadableAddresses();
  TestFalseCanaries();
  TestPeers();
  std::puts("peer memory: ok");
}

REGISTER_TEST(Main);

}  // namespace
}  // namespace tfdist::testing::peer_memory_test
