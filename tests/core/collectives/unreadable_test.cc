// Memory that a rank exposes and the kernel does not let its peers read: the values are sent
// instead, the result is exact, and no more memory is exposed in that direction.
//
// Two true causes. Secret memory (memfd_secret(2)) is readable by its process only, as memory that
// a device driver has mapped is. A system call filter, as container engines install, refuses
// process_vm_readv.
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstring>
#include <functional>

#include "collectives/calls.h"
#include "collectives/jobs.h"
#include "core/net/fd.h"

namespace tfdist::testing::unreadable_test {
namespace {

constexpr size_t kCount = 150000;  // of a block: three chunks

// In a process of its own: neither filters nor secret pages can be taken back.
void InChild(const std::function<void()>& test) {
  const pid_t child = fork();
  REQUIRE(child >= 0);
  if (child == 0) EndAfter(test);
  int status = -1;
  CHECK((waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0));
}

// From now on process_vm_readv fails in all threads: with any pieces, or with more than one, which
// leaves a canary readable.
void Forbid(int error, bool canaries) {
  const auto offset = static_cast<uint32_t>(offsetof(seccomp_data, args[2]));  // local pieces
  sock_filter filter[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, static_cast<uint32_t>(offsetof(seccomp_data, nr))),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_process_vm_readv, 0, 3),
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offset),
      BPF_JUMP(BPF_JMP | BPF_JGT | BPF_K, canaries ? 0u : 1u, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | static_cast<uint32_t>(error)),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
  const sock_fprog program{sizeof(filter) / sizeof(filter[0]), filter};
  CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
  CHECK(syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &program) == 0);
}

// Null where the kernel or the limit of locked memory does not permit it.
void* MapSecret(void* at, size_t bytes) {
  constexpr long kMemfdSecret = 447;  // older headers lack it
  const Fd fd(static_cast<int>(syscall(kMemfdSecret, 0)));
  if (!fd.valid() || ftruncate(fd.get(), static_cast<off_t>(bytes)) != 0) return nullptr;
  void* const mapped = mmap(at, bytes, PROT_READ | PROT_WRITE,
                            MAP_SHARED | (at == nullptr ? 0 : MAP_FIXED), fd.get(), 0);
  return mapped == MAP_FAILED ? nullptr : mapped;
}

bool HasSecretMemory() {
  constexpr size_t kBytes = 64 << 20;
  void* const memory = MapSecret(nullptr, kBytes);
  if (memory != nullptr) munmap(memory, kBytes);
  return memory != nullptr;
}

// Replaces the pages of an operand except the first and the last quarter. Some chunks then are
// readable, some are not, and some are in part.
void KeepSecret(std::string* operand) {
  const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE)), quarter = operand->size() / 4;
  const auto address = reinterpret_cast<uintptr_t>(operand->data());
  const uintptr_t begin = (address + quarter + page - 1) / page * page;
  const uintptr_t end = (address + operand->size() - quarter) / page * page;
  if (begin >= end) return;
  char* const pages = reinterpret_cast<char*>(begin);
  const std::string content(pages, end - begin);
  CHECK(MapSecret(pages, content.size()) == pages);
  std::memcpy(pages, content.data(), content.size());
}

uint64_t Resent(const Ranks& comms) {
  uint64_t chunks = 0;
  for (const auto& comm : comms) chunks += comm->stats().chunks_resent;
  return chunks;
}

std::vector<Job> Jobs(int size, void (*prepare)(std::string*)) {
  std::vector<Job> jobs;
  for (const Method& method : kMethods) {
    Job job;
    job.kind = method.kind;
    job.algorithm = method.algorithm;
    job.size = size;
    job.key = jobs.size() + 1;
    job.count = kCount;
    job.even = true;
    job.root = size - 1;
    job.prepare = prepare;
    jobs.push_back(job);
  }
  return jobs;
}

// Runs a job on new connections until a chunk is refused: a chunk for which the connection's shared
// buffer has room, because the peer empties it fast, is not exposed at all.
bool IsRefused(int size, const Job& job) {
  constexpr int kAttempts = 200;
  for (int i = 0; i < kAttempts; ++i) {
    Ranks comms = Connected(size);
    RunJobs(comms, {job});
    if (Resent(comms) > 0) return true;
    // A barrier has no chunks.
    if (job.kind == CollectiveKind::kBarrier) return false;
  }
  return false;
}

// Each algorithm alone with new connections, on which the first refusal is its own; then all of
// them at once; and then again, when no memory is exposed any more.
void TestEveryCollective(int size, void (*prepare)(std::string*)) {
  for (const Job& job : Jobs(size, prepare)) {
    // Recursive doubling may send nothing but memory of its own.
    if (prepare != nullptr && job.algorithm == Algorithm::kRecursiveDoubling) {
      Ranks comms = Connected(size);
      RunJobs(comms, {job});
      continue;
    }
    if (IsRefused(size, job) == (job.kind != CollectiveKind::kBarrier)) continue;
    std::fprintf(stderr, "kind %d by %s: expected chunks to be sent again\n",
                 static_cast<int>(job.kind), Name(job.algorithm));
    std::abort();
  }
  Ranks comms = Connected(size);
  RunJobs(comms, Jobs(size, prepare));
  const uint64_t resent = Resent(comms);
  CHECK(resent > 0);
  for (Job& job : Jobs(size, prepare)) {
    job.key += 100;
    RunJobs(comms, {job});
  }
  CHECK((prepare != nullptr || Resent(comms) == resent));
}

void TestSecretMemory() { TestEveryCollective(Rounds(4) < 4 ? 2 : 4, KeepSecret); }

void TestForbiddenReads() {
  Forbid(EFAULT, /*canaries=*/false);
  TestEveryCollective(3, nullptr);
}

// A filter that comes in the middle of a job, and hides canaries too.
void TestForbiddenInMidJob() {
  Ranks comms = Connected(2);
  const std::vector<Job> jobs = Jobs(2, nullptr);
  RunJobs(comms, jobs);
  CHECK(Resent(comms) == 0);
  Forbid(EPERM, /*canaries=*/true);
  for (Job job : jobs) {
    job.key += 100;
    RunJobs(comms, {job});
  }
  CHECK(Resent(comms) > 0);
}

// A chunk of many pieces behind an exposed one: the addresses do not fit into a frame, and it is
// exposed as a copy, in its order.
void TestManyPieces() {
  Forbid(EFAULT, /*canaries=*/false);
  Ranks comms = Connected(2);
  OnRanks(2, [&](int rank) {
    constexpr size_t kPieces = 1500, kFew = 1 << 18;
    std::vector<float> values(2 * (kFew + kPieces * 100), static_cast<float>(rank + 1));
    std::vector<iovec> pieces;
    float* at = values.data();
    for (const size_t count : {kFew, kFew}) {
      pieces.push_back({at, count * sizeof(float)});
      at += count;
      for (size_t i = 0; i < kPieces; ++i, at += 100) pieces.push_back({at, 100 * sizeof(float)});
    }
    auto [options, ending] = Prepare(*comms[rank], {1, "t", "", 20, Algorithm::kRing});
    comms[rank]->AllReduce(std::move(options), FlatView(pieces), FlatView(pieces), DType::kFloat32,
                           ReduceOp::kSum);
    CHECK_OK(Wait(ending));
    CHECK(values == std::vector<float>(values.size(), 3));
  });
  CHECK(Resent(comms) > 0);
}

TEST_CASE("secret memory") {
  if (HasSecretMemory()) InChild(TestSecretMemory);
}

TEST_CASE("forbidden reads") { InChild(TestForbiddenReads); }

TEST_CASE("forbidden in mid job") { InChild(TestForbiddenInMidJob); }

TEST_CASE("many pieces") { InChild(TestManyPieces); }

}  // namespace
}  // namespace tfdist::testing::unreadable_test
