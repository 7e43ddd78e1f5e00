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
  CHECK(read(fd, value, sizeof(T)) == sizeof(T));
}
template <typename T>
void WriteWhole(int fd, const T& value) {
  CHECK(write(fd, &value, sizeof(T)) == sizeof(T));
}

// A process at the other end of a unix socket that exposes 0, 1, 2, ... until Withdraw.
class OtherProcess {
 public:
  OtherProcess() {
    Listener listener;
    REQUIRE_OK(Listener::Listen("127.0.0.1", 0, true, &listener));
    child_ = fork();
    REQUIRE(child_ >= 0);
    if (child_ == 0) EndAfter([&] { Expose(StrCat("127.0.0.1:", listener.port())); });
    PeerSocket accepted;
    CHECK(Eventually([&] { return Accept(listener.local(), &accepted); }));
    CHECK((accepted.process != nullptr && accepted.process->id() == child_));
    socket_ = std::move(accepted.fd);
    process = std::move(accepted.process);
    CHECK(fcntl(socket_.get(), F_SETFL, 0) == 0);  // blocking
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
    CHECK(waitpid(std::exchange(child_, 0), nullptr, 0) > 0);
  }

  std::shared_ptr<const PeerProcess> process;
  CanaryInfo canary;
  char* address = nullptr;

 private:
  [[noreturn]] static void Expose(const std::string& to) {
    PeerSocket socket;
    CHECK_OK(Dial(to, true, Clock::now() + std::chrono::seconds(10), &socket));
    CHECK((socket.process != nullptr && socket.process->id() == getppid()));
    CHECK(fcntl(socket.fd.get(), F_SETFL, 0) == 0);
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

TEST_CASE("another process") {
  OtherProcess other;
  const PeerMemory peer = other.memory();
  CHECK(peer.IsReadable());
  std::vector<int32_t> values(kCount, -2);
  const std::vector<iovec> all{{values.data(), kCount * sizeof(int32_t)}};
  const std::vector<iovec> there{{other.address, kCount * sizeof(int32_t)}};
  CHECK_OK(peer.Read(all, there));
  for (size_t i = 0; i < kCount; ++i) CHECK(values[i] == static_cast<int32_t>(i));

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
  CHECK_OK(remote.Read(here.data(), 100));
  CHECK_OK(remote.Read(here.data() + 100, here.size() - 100));
  for (size_t i = 0; i < kCount; ++i) CHECK(values[i] == static_cast<int32_t>(i));
  CHECK_CONTAINS(remote.Read(here.data(), 1).message(), "exposes less than is to be read");

  other.Withdraw();
  CHECK(!peer.IsReadable());
  const Status withdrawn = peer.Read(all, there);
  CHECK(withdrawn.code() == StatusCode::kUnavailable);
  CHECK_CONTAINS(withdrawn.message(), "exposes its memory no more");
}

TEST_CASE("ended process") {
  OtherProcess other;
  const PeerMemory peer = other.memory();
  other.Kill();
  CHECK(!peer.IsReadable());
  char byte;
  CHECK(peer.Read({{&byte, 1}}, {{other.address, 1}}).code() == StatusCode::kUnavailable);
}

// This process at both ends of a socket.
std::shared_ptr<const PeerProcess> Myself() {
  int ends[2];
  REQUIRE(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
  const Fd one(ends[0]), other(ends[1]);
  auto process = PeerProcess::Of(one);
  CHECK((process != nullptr && process->id() == getpid() && process->IsAlive()));
  return process;
}

TEST_CASE("unreadable addresses") {
  const ExposedMemory exposed;
  const PeerMemory here(Myself(), exposed.canary());
  CHECK(here.IsReadable());
  char bytes[8];
  void* const closed = mmap(nullptr, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  CHECK(closed != MAP_FAILED);
  for (void* const address :
       {static_cast<void*>(nullptr), closed, reinterpret_cast<void*>(~uintptr_t{4095})}) {
    const Status status = here.Read({{bytes, 8}}, {{address, 8}});
    CHECK(status.code() == StatusCode::kFailedPrecondition);
    CHECK_CONTAINS(status.message(), StrCat("cannot read 8 bytes that process ", getpid()));
  }
  munmap(closed, 4096);
}

TEST_CASE("false canaries") {
  const ExposedMemory exposed, second;
  CanaryInfo canary = exposed.canary();
  canary.value[1] ^= 1;
  CHECK(!PeerMemory(Myself(), canary).IsReadable());
  canary = exposed.canary();
  canary.address = 8;
  CHECK(!PeerMemory(Myself(), canary).IsReadable());
  CHECK(!PeerMemory(Myself(), {}).IsReadable());
  CHECK(!PeerMemory(nullptr, exposed.canary()).IsReadable());
  CHECK(second.canary().value != exposed.canary().value);
}

// The identity of the peer comes from the kernel alone.
TEST_CASE("peers") {
  Listener listener;
  REQUIRE_OK(Listener::Listen("127.0.0.1", 0, true, &listener));
  const std::string address = StrCat("127.0.0.1:", listener.port());
  const TimePoint deadline = Clock::now() + std::chrono::seconds(10);
  PeerSocket dialled, accepted;
  CHECK_OK(Dial(address, false, deadline, &dialled));
  CHECK(Eventually([&] { return Accept(listener.tcp(), &accepted); }));
  CHECK((dialled.process == nullptr && accepted.process == nullptr));
  CHECK(PeerProcess::Of(dialled.fd) == nullptr);
  CHECK_OK(Dial(address, true, deadline, &dialled));
  CHECK((!Accept(listener.tcp(), &accepted) && Accept(listener.local(), &accepted)));
  CHECK(accepted.process->id() == getpid());
  dialled.fd.Reset();  // after a hang-up the process id may have been reused
  CHECK(PeerProcess::Of(accepted.fd) == nullptr);
  // A local name without a listener: TCP reports the error.
  listener.Close();
  CHECK(!Dial(address, true, deadline, &dialled).ok());
  // A listener on all addresses is found by each of them.
  REQUIRE_OK(Listener::Listen("", 0, true, &listener));
  CHECK_OK(Dial(StrCat("127.0.0.1:", listener.port()), true, deadline, &dialled));
  REQUIRE(dialled.process != nullptr);
}

// A process of another user is neither accepted nor trusted.
TEST_CASE("other users") {
  if (geteuid() != 0) return;  // only root can change its user
  Listener listener;
  REQUIRE_OK(Listener::Listen("127.0.0.1", 0, true, &listener));
  const std::string address = StrCat("127.0.0.1:", listener.port());
  const pid_t child = fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    EndAfter([&] {
      REQUIRE(setresuid(65533, 65533, 65533) == 0);
      PeerSocket socket;
      // The name exists but belongs to root, so TCP is used.
      REQUIRE_OK(Dial(address, true, Clock::now() + std::chrono::seconds(10), &socket));
      CHECK(socket.process == nullptr);
    });
  }
  PeerSocket accepted;
  CHECK(Eventually([&] { return Accept(listener.local(), &accepted); }));
  CHECK((!accepted.fd.valid() && accepted.process == nullptr));
  int status = -1;
  CHECK((waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0));
}

}  // namespace
}  // namespace tfdist::testing::peer_memory_test
