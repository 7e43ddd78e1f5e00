// Unauthenticated connections at the data ports of two ranks that all-reduce continuously: ten
// thousand connections with invalid data do not disturb them.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/resource.h>
#include <unistd.h>

#include <atomic>
#include <ctime>
#include <random>

#include "collectives/raw_peer.h"

namespace tfdist::testing::data_port_test {
namespace {

using Random = std::mt19937_64;

// Two ranks that all-reduce continuously, and check every sum, until Stop.
class BusyPair {
 public:
  BusyPair() : comms_(Connected(2)) {
    for (int rank = 0; rank < 2; ++rank) threads_.emplace_back([this, rank] { Work(rank); });
  }

  int port(int rank) const { return comms_[rank]->port(); }
  uint64_t rejected() const {
    return comms_[0]->stats().rejected_connections + comms_[1]->stats().rejected_connections;
  }
  uint64_t steps() const { return steps_; }

  void Stop() {
    stop_ = true;
    for (std::thread& thread : threads_) thread.join();
    for (auto& comm : comms_) CHECK_OK(comm->status());
  }

 private:
  void Work(int rank) {
    for (int32_t step = 0;; ++step) {
      const size_t sizes[] = {1, 100, 40000};  // sent eagerly, and after the peer's OPEN
      std::vector<int32_t> values(sizes[step % 3] + 1, step + rank);
      values.back() = stop_ ? 1 : 0;  // both ranks see it in the same step
      Ending ending = AllReduce(*comms_[rank], values, {1, "busy"}, DType::kInt32);
      CHECK_OK(Wait(ending));
      const bool last = values.back() > 0;
      values.pop_back();
      CHECK_ALL(values, 2 * step + 1);
      ++steps_;
      if (last) return;
    }
  }

  std::vector<std::unique_ptr<Communicator>> comms_;
  std::vector<std::thread> threads_;
  std::atomic<bool> stop_{false};
  std::atomic<uint64_t> steps_{0};
};

std::string Garbage(Random& random, size_t max_bytes) {
  std::string bytes(1 + random() % max_bytes, '\0');
  for (char& byte : bytes) byte = static_cast<char>(random());
  return bytes;
}

std::string RandomFrame(Random& random) {
  FrameHeader header;
  header.type = static_cast<uint8_t>(1 + random() % 24);
  header.step = static_cast<uint16_t>(random());
  header.meta_bytes = static_cast<uint32_t>(random() % 300);
  header.key = random() % 3;
  header.sequence = random() % 100;
  header.offset = random() % 1000;
  return Bytes(header, Garbage(random, 300));
}

std::string HelloWithLength(uint32_t length) {
  std::string bytes = HelloFrame(1);
  std::memcpy(bytes.data() + 8, &length, sizeof(length));
  return bytes;
}

// Bytes that must not be accepted.
std::string Intrusion(Random& random) {
  const std::string hello = HelloFrame(1);
  switch (random() % 9) {
    case 0:
      return Garbage(random, 400);
    case 1: {  // only the magic is right
      std::string bytes = Garbage(random, 400);
      return bytes.replace(0, std::min<size_t>(4, bytes.size()), hello, 0, 4);
    }
    case 2:
      return RandomFrame(random) + RandomFrame(random);
    case 3:
      return HelloFrame(1) + RawPeer::ProofFrame(Sha256(Garbage(random, 40)));
    case 4:
      return HelloFrame(1, 2 + random() % 1000);
    case 5:
      return HelloFrame(static_cast<uint32_t>(random() % 5));  // connected or impossible ranks
    case 6:
      return HelloWithLength(static_cast<uint32_t>(random()));
    case 7: {
      std::string bytes = hello;  // one wrong bit in the magic
      const size_t bit = random() % (8 * 4);
      bytes[bit / 8] ^= static_cast<char>(1 << bit % 8);
      return bytes;
    }
    default:
      return "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n";
  }
}

TEST_CASE("ten thousand connections") {
  BusyPair pair;
  Random random(7);
  const int before = OpenDescriptors();
  const auto all = static_cast<uint64_t>(Rounds(10000));
  uint64_t connections = 0;
  std::vector<std::unique_ptr<RawPeer>> silent;
  for (; connections < all; ++connections) {
    const std::string bytes = Intrusion(random);
    auto peer = std::make_unique<RawPeer>(pair.port(connections % 2));
    const bool is_silent = connections % 100 == 3;
    switch (is_silent ? 3 : random() % 4) {
      case 0:  // sends everything, and waits for the close
        peer->Send(bytes);
        peer->EndSending();
        peer->AwaitClose();
        break;
      case 1:  // sends a part, and waits for the close
        peer->Send(bytes.substr(0, random() % bytes.size()));
        peer->EndSending();
        peer->AwaitClose();
        break;
      case 2:  // sends everything, and resets the connection
        peer->Send(bytes);
        break;
      default:
        if (is_silent) {
          peer->Send(HelloFrame(1).substr(0, random() % 68));
          silent.push_back(std::move(peer));
        }
    }
  }
  CHECK(silent.size() > 3);
  silent.clear();
  CHECK(Eventually([&] { return pair.rejected() == connections; }));
  CHECK(Eventually([&] { return OpenDescriptors() <= before; }));
  const uint64_t steps = pair.steps();
  CHECK(Eventually([&] { return pair.steps() > steps + 10; }));
  pair.Stop();
  CHECK(pair.rejected() == connections);
}

// The number of pending connections is bounded: the oldest are closed, and the ranks are not
// disturbed.
TEST_CASE("many at once") {
  BusyPair pair;
  const int before = OpenDescriptors();
  std::vector<std::unique_ptr<RawPeer>> pending;
  for (int i = 0; i < 400; ++i) {
    pending.push_back(std::make_unique<RawPeer>(pair.port(0)));
    pending.back()->Send(HelloFrame(1).substr(0, 50));
  }
  CHECK(Eventually([&] { return pair.rejected() == 400 - 256; }));
  pending[0]->AwaitClose();
  pending[400 - 256 - 1]->AwaitClose();
  CHECK(Eventually([&] { return OpenDescriptors() == before + 400 + 256; }));
  const uint64_t steps = pair.steps();
  CHECK(Eventually([&] { return pair.steps() > steps + 10; }));
  pending.clear();
  CHECK(Eventually([&] { return pair.rejected() == 400; }));
  CHECK(Eventually([&] { return OpenDescriptors() <= before; }));
  pair.Stop();
}

// A peer that knows the key is rejected as a rank that is connected already, as a rank that should
// be dialled, and if it names another rank or generation.
TEST_CASE("valid proof of a connected rank") {
  BusyPair pair;
  uint64_t refused = 0;
  for (const uint32_t to : {0u, 1u}) {
    for (const uint32_t rank : {0u, 1u, 2u, UINT32_MAX}) {
      RawPeer peer(pair.port(static_cast<int>(to)));
      CHECK(peer.Introduce(Hello{1, rank, to, NewNonce()}));
      peer.AwaitClose();
      ++refused;
      CHECK(Eventually([&] { return pair.rejected() == refused; }));
    }
  }
  pair.Stop();
}

// Rank 1 is not connected: only a proof of the key over both nonces of this connection is accepted.
TEST_CASE("proofs") {
  std::unique_ptr<Communicator> comm;
  REQUIRE_OK(Communicator::Create(0, 2, "", 0, &comm));
  std::thread connecting([&] {
    const std::vector<std::string> addresses = {"unused:1", "elsewhere:2"};
    REQUIRE_OK(comm->Connect(TestKey(), 1, addresses, 20));
  });
  const Hello hello{1, 1, 0, NewNonce()};
  const auto challenge_of = [](RawPeer& peer, const Hello& sent) {
    CHECK(peer.Send(HelloFrame(sent)));
    CHECK(peer.ReceiveHeader().Is(FrameType::kChallenge));
    char bytes[kChallengeBytes];
    peer.Receive(bytes, sizeof(bytes));
    Challenge challenge;
    CHECK_OK(Decode(std::string_view(bytes, sizeof(bytes)), &challenge));
    return challenge;
  };
  uint64_t refused = 0;
  const auto refuses = [&](RawPeer& peer, const std::string& bytes) {
    CHECK(peer.Send(bytes));
    peer.AwaitClose();
    ++refused;
    CHECK(Eventually([&] { return comm->stats().rejected_connections == refused; }));
  };
  Nonce recorded;
  {  // without the key
    RawPeer peer(comm->port());
    recorded = challenge_of(peer, hello).nonce;
    refuses(peer, RawPeer::ProofFrame(DiallerProof(Key{}, hello, recorded)));
  }
  {  // the proof of another connection: a replay
    RawPeer peer(comm->port());
    const Challenge challenge = challenge_of(peer, hello);
    CHECK(challenge.nonce != recorded);
    refuses(peer, RawPeer::ProofFrame(DiallerProof(TestKey(), hello, recorded)));
  }
  {  // the acceptor's own proof
    RawPeer peer(comm->port());
    refuses(peer, RawPeer::ProofFrame(challenge_of(peer, hello).proof));
  }
  // A wrong generation or rank is rejected after the proof only, like a wrong key.
  for (const Hello& other : {Hello{2, 1, 0, hello.nonce}, Hello{1, 1, 1, hello.nonce}}) {
    RawPeer peer(comm->port());
    const Challenge challenge = challenge_of(peer, other);
    refuses(peer, RawPeer::ProofFrame(DiallerProof(TestKey(), other, challenge.nonce)));
  }
  {  // a PROOF without a CHALLENGE
    RawPeer peer(comm->port());
    refuses(peer, RawPeer::ProofFrame(DiallerProof(TestKey(), hello, recorded)));
  }
  RawPeer peer(comm->port());
  CHECK(peer.Introduce(1));
  CHECK(peer.ReceiveHeader().Is(FrameType::kWelcome));
  connecting.join();
}

// A HELLO and a PROOF that arrive byte by byte are accepted.
TEST_CASE("slow hello") {
  std::unique_ptr<Communicator> comm;
  REQUIRE_OK(Communicator::Create(0, 2, "", 0, &comm));
  std::thread connecting([&] {
    const std::vector<std::string> addresses = {"unused:1", "elsewhere:2"};
    REQUIRE_OK(comm->Connect(TestKey(), 1, addresses, 20));
  });
  RawPeer peer(comm->port());
  const Hello hello{1, 1, 0, NewNonce()};
  for (const char byte : HelloFrame(hello)) CHECK(peer.Send(std::string(1, byte)));
  CHECK(peer.ReceiveHeader().Is(FrameType::kChallenge));
  char bytes[kChallengeBytes];
  peer.Receive(bytes, sizeof(bytes));
  Challenge challenge;
  CHECK_OK(Decode(std::string_view(bytes, sizeof(bytes)), &challenge));
  for (const char byte : RawPeer::ProofFrame(DiallerProof(TestKey(), hello, challenge.nonce))) {
    CHECK(peer.Send(std::string(1, byte)));
  }
  CHECK(peer.ReceiveHeader().Is(FrameType::kWelcome));
  connecting.join();
  CHECK(comm->stats().rejected_connections == 0);
}

// Without free descriptors a connection waits, without busy polling, until there is one.
TEST_CASE("no descriptors left") {
  auto comms = Connected(2);
  const Fd socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  rlimit before;
  CHECK(getrlimit(RLIMIT_NOFILE, &before) == 0);
  rlimit none = before;
  none.rlim_cur = static_cast<rlim_t>(dup(socket.get()));  // the first free one
  CHECK(close(static_cast<int>(none.rlim_cur)) == 0);
  CHECK(setrlimit(RLIMIT_NOFILE, &none) == 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(static_cast<uint16_t>(comms[0]->port()));
  REQUIRE(connect(socket.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0);
  const std::clock_t processor = std::clock();
  std::this_thread::sleep_for(std::chrono::milliseconds(1500));  // the measured time
  CHECK(comms[0]->stats().rejected_connections == 0);
  CHECK(std::clock() - processor < CLOCKS_PER_SEC / 2);
  CHECK(setrlimit(RLIMIT_NOFILE, &before) == 0);
  CHECK(send(socket.get(), "?", 1, MSG_NOSIGNAL) == 1);
  CHECK(shutdown(socket.get(), SHUT_WR) == 0);
  CHECK(Eventually([&] { return comms[0]->stats().rejected_connections == 1; }));
  std::vector<float> mine(10, 1), theirs(10, 2);
  Ending first = AllReduce(*comms[0], mine), second = AllReduce(*comms[1], theirs);
  CHECK_OK(Wait(first));
  CHECK_OK(Wait(second));
}

}  // namespace
}  // namespace tfdist::testing::data_port_test
