// Ring buffers in shared memory: bytes arrive complete and in order for any pieces, and corrupted
// indices do no harm.
#include "core/net/shared_channel.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <random>

#include "collectives/calls.h"

namespace tfdist::testing::shared_channel_test {
namespace {

constexpr size_t kCapacity = SharedChannel::kCapacity;

struct Pair {
  Pair() : creator(SharedChannel::Create()) {
    REQUIRE(creator != nullptr);
    opener = SharedChannel::Open(Fd(dup(creator->fd())));
    REQUIRE(opener != nullptr);
  }
  std::unique_ptr<SharedChannel> creator, opener;
};

std::vector<iovec> Cut(std::vector<char>& bytes, size_t begin, size_t end,
                       std::mt19937_64& random) {
  std::vector<iovec> pieces;
  while (begin < end) {
    const size_t length = std::min<size_t>(end - begin, random() % 5000);
    pieces.push_back({bytes.data() + begin, length});
    begin += length;
  }
  return pieces;
}

// Both rings, wrapping several times, in pieces of random sizes.
TEST_CASE("stream") {
  std::mt19937_64 random(3);
  Pair pair;
  std::vector<char> sent(5 * kCapacity + 77);
  for (char& byte : sent) byte = static_cast<char>(random());
  for (const bool forward : {true, false}) {
    SharedChannel& writer = forward ? *pair.creator : *pair.opener;
    SharedChannel& reader = forward ? *pair.opener : *pair.creator;
    std::vector<char> received(sent.size());
    size_t in = 0, out = 0;
    while (out < sent.size()) {
      const size_t max_bytes = random() % (kCapacity / 2);
      in += writer.Write(Cut(sent, in, std::min(in + max_bytes, sent.size()), random));
      CHECK(reader.HasBytes() == (in > out));
      const size_t room = random() % (kCapacity / 2);
      const ssize_t read =
          reader.Read(Cut(received, out, std::min(out + room, sent.size()), random));
      CHECK(read >= 0);
      out += static_cast<size_t>(read);
      CHECK(out <= in);
    }
    CHECK(received == sent);
    CHECK(!reader.HasBytes());
  }
}

TEST_CASE("full") {
  Pair pair;
  std::vector<char> bytes(kCapacity + 1, 'x');
  CHECK(pair.creator->Write({{bytes.data(), bytes.size()}}) == kCapacity);
  CHECK(pair.creator->Room() == 0);
  CHECK(!pair.opener->WriterWaits());
  CHECK(pair.creator->Write({{bytes.data(), 1}}) == 0);
  CHECK(pair.opener->Read({{bytes.data(), 1}}) == 1);
  CHECK(pair.opener->WriterWaits());
  CHECK(!pair.opener->WriterWaits());
  CHECK(pair.creator->Room() == 1);
  CHECK(pair.creator->Write({{bytes.data(), 2}}) == 1);
}

TEST_CASE("sleep") {
  Pair pair;
  char byte = 'x';
  CHECK(!pair.creator->ReaderSleeps(true));
  CHECK(pair.opener->Sleep(false));
  CHECK(pair.creator->Write({{&byte, 1}}) == 1);
  CHECK(pair.creator->ReaderSleeps(true));
  CHECK(!pair.creator->ReaderSleeps(true));
  CHECK(!pair.opener->Sleep(false));
  pair.opener->StayAwake();
  CHECK(!pair.creator->ReaderSleeps(true));
}

// A reader in deep sleep is woken only by urgent data; it can change to light sleep.
TEST_CASE("deep sleep") {
  Pair pair;
  char byte = 'x';
  CHECK(pair.opener->Sleep(true));
  CHECK(pair.creator->Write({{&byte, 1}}) == 1);
  CHECK(!pair.creator->ReaderSleeps(false));
  CHECK(pair.creator->ReaderSleeps(true));
  CHECK(!pair.creator->ReaderSleeps(true));
  CHECK(pair.opener->Read({{&byte, 1}}) == 1);
  CHECK(pair.opener->Sleep(true));
  CHECK(pair.opener->Sleep(false));
  CHECK(pair.creator->ReaderSleeps(false));
}

// The other process may write anything to the shared memory.
TEST_CASE("corrupted") {
  std::mt19937_64 random(5);
  std::vector<char> bytes(2 * kCapacity);
  for (int turn = 0; turn < 200; ++turn) {
    std::unique_ptr<SharedChannel> channel = SharedChannel::Create();
    const off_t size = lseek(channel->fd(), 0, SEEK_END);
    char* const memory = static_cast<char*>(
        mmap(nullptr, static_cast<size_t>(size), PROT_WRITE, MAP_SHARED, channel->fd(), 0));
    CHECK(memory != MAP_FAILED);
    for (off_t at = 0; at < size; at += 64) {
      const uint64_t word = turn % 2 == 0 ? random() : random() % (2 * kCapacity);
      std::memcpy(memory + at, &word, sizeof(word));
    }
    CHECK(channel->Write({{bytes.data(), bytes.size()}}) <= kCapacity);
    const ssize_t read = channel->Read({{bytes.data(), bytes.size()}});
    CHECK((read >= -1 && read <= static_cast<ssize_t>(kCapacity)));
    if (turn % 2 == 0) CHECK(read == -1);
    munmap(memory, static_cast<size_t>(size));
  }
}

TEST_CASE("open refuses") {
  const auto refused = [](int fd) { return SharedChannel::Open(Fd(dup(fd))) == nullptr; };
  const std::unique_ptr<SharedChannel> channel = SharedChannel::Create();
  const off_t size = lseek(channel->fd(), 0, SEEK_END);
  CHECK(ftruncate(channel->fd(), 0) != 0);
  CHECK(refused(-1));
  int ends[2];
  REQUIRE(pipe(ends) == 0);
  CHECK(refused(ends[0]));
  close(ends[0]);
  close(ends[1]);
  const Fd zeros(open("/dev/zero", O_RDWR));
  CHECK(refused(zeros.get()));
  for (const bool sealed : {true, false}) {
    const Fd other(memfd_create("other", MFD_ALLOW_SEALING));
    CHECK(ftruncate(other.get(), sealed ? size + 1 : size) == 0);
    if (sealed) CHECK(fcntl(other.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) == 0);
    CHECK(refused(other.get()));
  }
}

TEST_CASE("descriptors") {
  const int before = OpenDescriptors();
  {
    Pair pair;
    CHECK(OpenDescriptors() == before + 1);
    pair.creator->CloseFd();
    CHECK(OpenDescriptors() == before);
    char byte = 'x';
    CHECK((pair.creator->Write({{&byte, 1}}) == 1 && pair.opener->Read({{&byte, 1}}) == 1));
  }
  CHECK(OpenDescriptors() == before);
}

}  // namespace
}  // namespace tfdist::testing::shared_channel_test
