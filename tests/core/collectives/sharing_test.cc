// Ranks of one machine that share memory: offers that are accepted or declined, exposed memory,
// wakeups of idle ranks, and peers that violate the protocol or die.
#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <optional>

#include "collectives/raw_peer.h"

namespace tfdist::testing::sharing_test {
namespace {

const size_t kSharingBytes = Encode(Sharing{}).size();

// Rank 0 is a communicator; the test sends the frames of rank 1, which uses the shared memory.
class Sharer {
 public:
  explicit Sharer(bool reads = true) {
    REQUIRE_OK(Communicator::Create(0, 2, "", 0, &comm));
    std::thread connecting([this] {
      const Status status = comm->Connect(TestKey(), 1, {"here:1", "here:2"}, 20);
      CHECK_OK(status);
    });
    peer = std::make_unique<RawPeer>(comm->port(), true);
    CHECK(peer->Introduce(1));
    Fd descriptor;
    const std::string welcome =
        peer->ReceiveWithDescriptor(kFrameHeaderBytes + kSharingBytes, &descriptor);
    FrameHeader header;
    CHECK_OK(Decode(welcome.data(), LimitsOfConnection, &header));
    CHECK((header.Is(FrameType::kWelcome) && header.meta_bytes == kSharingBytes));
    Sharing offer;
    CHECK_OK(Decode(std::string_view(welcome).substr(kFrameHeaderBytes), "WELCOME", &offer));
    CHECK(PeerMemory(peer->process, offer.canary).IsReadable());
    channel = SharedChannel::Open(std::move(descriptor));
    REQUIRE(channel != nullptr);
    CHECK(peer->Send(Frame(FrameType::kShared, Encode(Sharing{true, reads, exposed->canary()}))));
    CHECK(peer->ReceiveHeader().Is(FrameType::kShared));
    connecting.join();
  }

  // Returns when rank 0 has opened the collective, which permits large chunks.
  Ending StartAllReduce(std::vector<float>& values) {
    Ending ending = AllReduce(*comm, values);
    CHECK(Eventually([&] { return channel->HasBytes(); }));
    return ending;
  }

  void Send(const std::string& bytes) {
    std::string copy = bytes;
    CHECK(channel->Write({{copy.data(), copy.size()}}) == copy.size());
    if (channel->ReaderSleeps(true)) peer->Send("!");
  }

  std::optional<ExposedMemory> exposed{std::in_place};
  std::unique_ptr<Communicator> comm;
  std::unique_ptr<RawPeer> peer;
  std::unique_ptr<SharedChannel> channel;
};

// Chunks that do not fit into the shared memory and are exposed.
constexpr uint64_t kHalf = kChunkBytes;
constexpr size_t kCount = 2 * kHalf / sizeof(float);

std::string Open(uint64_t key, size_t count = kCount) {
  Signature signature;
  signature.kind = static_cast<uint8_t>(CollectiveKind::kAllReduce);
  signature.dtype = static_cast<uint8_t>(DType::kFloat32);
  signature.reduce_op = static_cast<uint8_t>(ReduceOp::kSum);
  signature.algorithm = static_cast<uint8_t>(Algorithm::kRing);
  signature.elements = count;
  signature.shape_hash = std::hash<std::string>()("");
  return Frame(CollectiveFrame::kOpen, Encode(signature), key);
}

std::string ExposedFrame(uint16_t step, const std::vector<iovec>& pieces, uint64_t offset = 0) {
  FrameHeader header = DataHeader(1, 0);
  header.step = step;
  header.offset = offset;
  for (const iovec& piece : pieces) header.payload_bytes += piece.iov_len;
  std::string meta;
  AppendExposed(pieces, &header, &meta);
  return Bytes(header, meta);
}

// A process that is killed during a collective, with unread frames. First, as it forks.
TEST_CASE("killed") {
  for (const size_t count : {10, 1000000}) {
    std::unique_ptr<Communicator> comm;
    int ports[2], to_child[2], to_parent[2];
    REQUIRE((pipe(to_child) == 0 && pipe(to_parent) == 0));
    const pid_t child = fork();
    REQUIRE(child >= 0);
    const auto connect = [&](int rank) {
      REQUIRE_OK(Communicator::Create(rank, 2, "", 0, &comm));
      ports[rank] = comm->port();
      const int to = (rank == 0 ? to_child : to_parent)[1];
      const int from = (rank == 0 ? to_parent : to_child)[0];
      REQUIRE(write(to, &ports[rank], sizeof(int)) == sizeof(int));
      REQUIRE(read(from, &ports[1 - rank], sizeof(int)) == sizeof(int));
      const std::vector<std::string> addresses = {StrCat("127.0.0.1:", ports[0]),
                                                  StrCat("127.0.0.1:", ports[1])};
      REQUIRE_OK(comm->Connect(TestKey(), 1, addresses, 20));
    };
    std::vector<float> values(count, 1), others(count, 2);
    if (child == 0) {
      EndAfter([&] {
        connect(1);
        // Rank 0 takes part only in the first.
        Ending first = AllReduce(*comm, values);
        REQUIRE_OK(Wait(first));
        Ending last = AllReduce(*comm, others, {2});
        const char ready = 'r';
        REQUIRE(write(to_parent[1], &ready, 1) == 1);
        for (;;) pause();
      });
    }
    connect(0);
    Ending first = AllReduce(*comm, values);
    CHECK_OK(Wait(first));
    char ready = 0;
    CHECK(read(to_parent[0], &ready, 1) == 1);
    Ending never = AllReduce(*comm, values, {3, "never"});
    const TimePoint killed = Clock::now();
    CHECK(kill(child, SIGKILL) == 0);
    const Status status = Wait(never);
    CHECK_STATUS(status, StatusCode::kUnavailable);
    CHECK_CONTAINS(status.message(), "lost " + Rank(1));
    CHECK(SecondsSince(killed) < 10);
    CHECK(waitpid(child, nullptr, 0) == child);
    for (const int fd : {to_child[0], to_child[1], to_parent[0], to_parent[1]}) close(fd);
  }
}

TEST_CASE("lending") {
  Sharer sharer;
  std::vector<float> ours(kCount, 1), theirs(kCount, 2);
  Ending ending = sharer.StartAllReduce(ours);
  char* const bytes = reinterpret_cast<char*>(theirs.data());
  // Step 0 in two pieces, step 1 in one.
  sharer.Send(Open(1) + ExposedFrame(0, {{bytes + kHalf, 4}, {bytes + kHalf + 4, kHalf - 4}}) +
              ExposedFrame(1, {{bytes, kHalf}}));
  // Rank 0 exposes memory too, and ends when it has been released.
  CHECK(StillRuns(ending, 0.05));
  sharer.Send(Frame(FrameType::kRelease, "") + Frame(FrameType::kRelease, ""));
  CHECK_OK(Wait(ending));
  CHECK((ours[0] == 2 && ours[kCount - 1] == 3));
}

// An OPEN does not wake an idle rank; a QUERY does.
TEST_CASE("idle") {
  Sharer sharer;
  constexpr size_t kCapacity = SharedChannel::kCapacity;
  uint64_t key = 1;
  const bool waits = Eventually([&] {  // until the other side is idle
    std::string open = Open(key++);
    CHECK(sharer.channel->Write({{open.data(), open.size()}}) == open.size());
    CHECK(!sharer.channel->ReaderSleeps(false));
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    return sharer.channel->Room() < kCapacity;
  });
  CHECK(waits);
  sharer.Send(Frame(CollectiveFrame::kQuery, "", 1));
  CHECK(Eventually([&] { return sharer.channel->Room() == kCapacity; }));
}

// A rank ahead of an idle peer is not blocked when the shared memory is full, whether the next
// chunk waits for space in it (40 KB) or is exposed (64 KB).
TEST_CASE("runs ahead") {
  for (const size_t count : {10000, 16384}) {
    Ranks comms = Connected(2);
    std::vector<float> values(2 * count, 1);
    const TimePoint start = Clock::now();
    for (uint64_t key = 1; key <= 20; ++key) {
      Ending ending = Scatter(*comms[0], values, 0, {key});
      CHECK_OK(Wait(ending));
    }
    CHECK(SecondsSince(start) < 10);
    for (uint64_t key = 1; key <= 20; ++key) {
      std::vector<float> received(count);
      Ending ending = Scatter(*comms[1], received, 0, {key});
      CHECK_OK(Wait(ending));
      CHECK(received == std::vector<float>(count, 1));
    }
  }
}

// A peer that withdraws exposed memory with an ABORT: its reason is reported, not the failed read.
TEST_CASE("withdrawn") {
  for (const bool says_why : {true, false}) {
    Sharer sharer;
    std::vector<float> ours(kCount, 1), theirs(kCount, 2);
    char* const bytes = reinterpret_cast<char*>(theirs.data());
    Ending ending = sharer.StartAllReduce(ours);
    sharer.exposed.reset();
    sharer.Send(Open(1) + ExposedFrame(0, {{bytes + kHalf, kHalf}}));
    if (says_why) {
      const Abort abort{StatusCode::kUnavailable, "the disk is full"};
      sharer.Send(Frame(CollectiveFrame::kAbort, Encode(abort)));
    }
    sharer.peer.reset();
    const Status status = Wait(ending);
    CHECK_STATUS(status, StatusCode::kUnavailable);
    CHECK_CONTAINS(status.message(), says_why ? "the disk is full" : "lost " + Rank(1));
  }
}

// A frame from rank 0 except QUERY, and its payload unless that is exposed.
struct Received {
  FrameHeader header;
  std::string payload;
};
Received Receive(Sharer& sharer) {
  const auto read = [&sharer](size_t size) {
    std::string bytes(size, '\0');
    for (size_t got = 0; got < size;) {
      ssize_t part = 0;
      CHECK(Eventually([&] {
        part = sharer.channel->Read({{bytes.data() + got, size - got}});
        return part != 0;
      }));
      CHECK(part > 0);
      if (sharer.channel->WriterWaits()) sharer.peer->Send("!");
      got += static_cast<size_t>(part);
    }
    return bytes;
  };
  Received received;
  do {
    CHECK_OK(Decode(read(kFrameHeaderBytes).data(), LimitsOfCollectives, &received.header));
    read(received.header.meta_bytes);
    if (received.header.exposed == 0) received.payload = read(received.header.payload_bytes);
    // Rank 0 asks for this rank's waits, when the test is slow.
  } while (received.header.type == static_cast<uint8_t>(CollectiveFrame::kQuery));
  return received;
}

std::string InlineFrame(uint16_t step, uint64_t offset, const float* values, uint64_t bytes) {
  FrameHeader header = DataHeader(1, bytes);
  header.step = step;
  header.offset = offset;
  return Bytes(header, std::string(reinterpret_cast<const char*>(values), bytes));
}

const auto kNowhere = reinterpret_cast<char*>(uint64_t{4096});

// Rank 0 cannot read memory exposed to it: it says so once, and passes over all exposed memory from
// then on. It takes the values when they come.
TEST_CASE("unreadable") {
  Sharer sharer;
  constexpr uint64_t kPart = kHalf / 2;  // the rings have less room than a whole chunk needs
  std::vector<float> ours(kCount / 2, 1), theirs(kCount / 2, 2);
  Ending ending = AllReduce(*sharer.comm, ours, {1, "t", "", 20, Algorithm::kRing});
  CHECK(Receive(sharer).header.type == static_cast<uint8_t>(CollectiveFrame::kOpen));
  char* const bytes = reinterpret_cast<char*>(theirs.data());
  sharer.Send(Open(1, kCount / 2));
  const Received first = Receive(sharer);
  CHECK((first.header.step == 0 && first.header.payload_bytes == kPart));
  // Not at all, in part, and what could be read.
  sharer.Send(ExposedFrame(0, {{bytes + kPart, 4}, {kNowhere, kPart - 4}}));
  CHECK(Receive(sharer).header.Is(FrameType::kRefuse));
  for (int i = 0; i < 100; ++i) {
    sharer.Send(ExposedFrame(0, {{kNowhere, kPart}}) + ExposedFrame(1, {{bytes, kPart}}));
  }
  sharer.Send(InlineFrame(0, 0, theirs.data(), kPart));
  const Received second = Receive(sharer);
  CHECK(second.header.step == 1);  // and no other REFUSE
  sharer.Send(InlineFrame(1, 0, theirs.data(), kPart));
  if (second.header.exposed > 0) sharer.Send(Frame(FrameType::kRelease, ""));
  CHECK_OK(Wait(ending));
  CHECK((ours[0] == 2 && ours.back() == 3));
}

// A rank that cannot read rank 0's exposed memory is sent the values, in order, and from then on
// rank 0 exposes nothing to it. It is believed once, and only about memory exposed to it.
TEST_CASE("refused") {
  for (const auto& [lie, message] :
       {std::pair<std::string, std::string>{"", ""},
        {Frame(FrameType::kRefuse, ""), "an unexpected REFUSE frame"},
        {Frame(FrameType::kRelease, ""), "an unexpected RELEASE frame"}}) {
    Sharer sharer;
    constexpr size_t kChunks = 5;  // of each half
    constexpr size_t kValues = 2 * kChunks * kChunkBytes / sizeof(float);
    std::vector<float> ours(kValues, 1), theirs(kValues, 2);
    Ending ending = AllReduce(*sharer.comm, ours, {1, "t", "", 20, Algorithm::kRing});
    sharer.Send(Open(1, kValues));
    CHECK(Receive(sharer).header.type == static_cast<uint8_t>(CollectiveFrame::kOpen));
    for (size_t i = 0; i < kChunks; ++i) CHECK(Receive(sharer).header.exposed > 0);
    sharer.Send(Frame(FrameType::kRefuse, ""));
    for (size_t i = 0; i < kChunks; ++i) {
      const Received again = Receive(sharer);
      CHECK((again.header.exposed == 0 && again.header.step == 0 && again.header.meta_bytes == 0));
      CHECK(again.header.offset == i * kChunkBytes);
      CHECK(again.payload.size() == kChunkBytes);
      CHECK(std::memcmp(again.payload.data(), ours.data(), kChunkBytes) == 0);
    }
    CHECK(sharer.comm->stats().chunks_resent == kChunks);
    if (!message.empty()) {
      sharer.Send(lie);
      const Status status = Wait(ending);
      CHECK_STATUS(status, StatusCode::kUnavailable);
      CHECK_CONTAINS(status.message(), message);
      CHECK_CONTAINS(status.message(), "rank 1");
      continue;
    }
    const char* const bytes = reinterpret_cast<const char*>(theirs.data());
    for (const uint16_t step : {uint16_t{0}, uint16_t{1}}) {
      for (size_t i = 0; i < kChunks; ++i) {
        const iovec chunk{const_cast<char*>(bytes), kChunkBytes};
        sharer.Send(ExposedFrame(step, {chunk}, i * kChunkBytes));
        CHECK(Receive(sharer).header.Is(FrameType::kRelease));
        if (step > 0) continue;
        const Received reduced = Receive(sharer);
        CHECK((reduced.header.exposed == 0 && reduced.header.step == 1));
      }
    }
    CHECK_OK(Wait(ending));
    CHECK((ours[0] == 2 && ours.back() == 3));
  }
}

// After a refusal other bytes than those refused come first: nothing is written where those belong.
TEST_CASE("wrong bytes after refusal") {
  for (const bool started : {true, false}) {
    Sharer sharer;
    constexpr uint64_t kBytes = 4096;
    std::vector<float> ours(2 * kBytes / sizeof(float), 1);
    Ending ending;
    if (started) ending = AllReduce(*sharer.comm, ours, {1, "t", "", 20, Algorithm::kRing});
    sharer.Send(Open(1, ours.size()) + ExposedFrame(0, {{kNowhere, kBytes}}) +
                InlineFrame(1, 0, ours.data(), kBytes) + InlineFrame(0, 0, ours.data(), kBytes) +
                Frame(CollectiveFrame::kQuery, "", 1));
    if (!started) ending = AllReduce(*sharer.comm, ours, {1, "t", "", 20, Algorithm::kRing});
    const Status status = Wait(ending);
    CHECK_STATUS(status, StatusCode::kUnavailable);
    CHECK_CONTAINS(status.message(), "ahead of an earlier one");
    CHECK_CONTAINS(status.message(), "rank 1");
  }
}

TEST_CASE("broken rules") {
  std::vector<float> theirs(2 * kCount, 2);
  char* const bytes = reinterpret_cast<char*>(theirs.data());
  const std::string open = Open(1);
  FrameHeader odd = DataHeader(1, kHalf);
  odd.meta_bytes = 3;
  odd.exposed = 1;
  const std::vector<std::pair<std::string, std::string>> cases = {
      {open + ExposedFrame(0, {}), "an empty DATA frame"},
      {open + ExposedFrame(0, {{bytes, 0}}), "an empty DATA frame"},
      {open + ExposedFrame(0, {{bytes, kChunkBytes + 1}}), "claims 16 and 262145 bytes"},
      {open + ExposedFrame(0, {{bytes, SIZE_MAX}, {bytes, kHalf + 1}}),
       "malformed list of exposed"},
      {open + ExposedFrame(0, {{bytes, kHalf - 4}}), "expected step 0"},
      {open + ExposedFrame(1, {{bytes, kHalf}}), "expected step 0"},
      {open + Bytes(odd, "odd"), "malformed frame header"},
      {Frame(FrameType::kRelease, ""), "an unexpected RELEASE frame"},
      {Frame(FrameType::kRefuse, ""), "an unexpected REFUSE frame"},
      {Frame(FrameType::kShared, Encode(Sharing{true, true, {}})), "an unexpected SHARED frame"},
      {Frame(FrameType::kShared, ""), "malformed SHARED"},
      {std::string(kFrameHeaderBytes, 'x'), "not a tfdist frame"}};
  for (const auto& [sent, message] : cases) {
    Sharer sharer;
    std::vector<float> ours(kCount, 1);
    Ending ending = sharer.StartAllReduce(ours);
    sharer.Send(sent);
    const Status status = Wait(ending);
    CHECK_STATUS(status, StatusCode::kUnavailable);
    CHECK_CONTAINS(status.message(), message);
    CHECK_CONTAINS(status.message(), "rank 1");
  }
}

// Rank 0 by hand: accepts rank 1 by the unix socket or by TCP, and sends a WELCOME.
PeerSocket WelcomeByHand(const Listener& listener, bool local, const std::string& payload,
                         int descriptor) {
  PeerSocket socket;
  const Fd& where = local ? listener.local() : listener.tcp();
  CHECK(Eventually([&] { return Accept(where, &socket); }));
  const TimePoint deadline = Clock::now() + std::chrono::seconds(10);
  std::string bytes(HelloFrame(1).size(), '\0');
  CHECK_OK(ReceiveAll(socket.fd, bytes.data(), bytes.size(), deadline));
  Hello hello;
  CHECK_OK(Decode(std::string_view(bytes).substr(kFrameHeaderBytes), &hello));
  const Nonce nonce = NewNonce();
  const std::string challenge = Frame(
      FrameType::kChallenge, Encode(Challenge{nonce, AcceptorProof(TestKey(), hello, nonce)}));
  CHECK_OK(SendAll(socket.fd, challenge.data(), challenge.size(), deadline));
  std::string proof(kFrameHeaderBytes + kProofBytes, '\0');
  CHECK_OK(ReceiveAll(socket.fd, proof.data(), proof.size(), deadline));
  const std::string welcome = Frame(FrameType::kWelcome, payload);
  if (descriptor < 0) {
    CHECK_OK(SendAll(socket.fd, welcome.data(), welcome.size(), deadline));
  } else {
    CHECK_OK(SendWithDescriptor(socket.fd, welcome, descriptor, deadline));
  }
  return socket;
}

// A dialling rank declines an offer without valid shared memory, and uses the socket. A malformed
// offer, or one over TCP, is an error.
TEST_CASE("false offers") {
  const ExposedMemory exposed;
  const std::string offer = Encode(Sharing{false, false, exposed.canary()});
  const Fd zeros(open("/dev/zero", O_RDWR));
  struct Case {
    bool local;
    std::string payload;
    int descriptor;
    bool declined;
  };
  for (const auto& [local, payload, descriptor, declined] :
       {Case{true, offer, -1, true}, Case{true, offer, zeros.get(), true},
        Case{true, std::string(kSharingBytes - 1, 'x'), zeros.get(), false},
        Case{false, offer, -1, false}}) {
    Listener listener;
    REQUIRE_OK(Listener::Listen("127.0.0.1", 0, local, &listener));
    std::unique_ptr<Communicator> comm;
    REQUIRE_OK(Communicator::Create(1, 2, "", 0, &comm));
    PeerSocket socket;
    std::thread host([&] { socket = WelcomeByHand(listener, local, payload, descriptor); });
    const Status status =
        comm->Connect(TestKey(), 1, {StrCat("127.0.0.1:", listener.port()), "127.0.0.1:1"}, 20);
    host.join();
    CHECK(status.ok() == declined);
    if (!declined) continue;
    const std::string expected = Frame(FrameType::kShared, Encode(Sharing{}));
    std::string bytes(expected.size(), '\0');
    CHECK_OK(
        ReceiveAll(socket.fd, bytes.data(), bytes.size(), Clock::now() + std::chrono::seconds(10)));
    CHECK(bytes == expected);
  }
}

// A wrong canary: the memory is shared, but exposed memory is not read.
TEST_CASE("false canary") {
  const std::unique_ptr<SharedChannel> channel = SharedChannel::Create();
  Sharing offer;
  offer.canary = {4096, {1, 2}};
  Listener listener;
  REQUIRE_OK(Listener::Listen("127.0.0.1", 0, true, &listener));
  std::unique_ptr<Communicator> comm;
  REQUIRE_OK(Communicator::Create(1, 2, "", 0, &comm));
  PeerSocket socket;
  std::string answer(Frame(FrameType::kShared, Encode(Sharing{})).size(), '\0');
  std::thread host([&] {
    socket = WelcomeByHand(listener, true, Encode(offer), channel->fd());
    CHECK_OK(ReceiveAll(socket.fd, answer.data(), answer.size(),
                        Clock::now() + std::chrono::seconds(10)));
    const std::string shared = Frame(FrameType::kShared, Encode(Sharing{true, false, {}}));
    CHECK_OK(
        SendAll(socket.fd, shared.data(), shared.size(), Clock::now() + std::chrono::seconds(10)));
  });
  REQUIRE_OK(
      comm->Connect(TestKey(), 1, {StrCat("127.0.0.1:", listener.port()), "127.0.0.1:1"}, 20));
  host.join();
  Sharing shared;
  CHECK_OK(Decode(std::string_view(answer).substr(kFrameHeaderBytes), "SHARED", &shared));
  CHECK((shared.joined && !shared.reads));
}

// Over TCP a peer cannot send addresses: LEND, SHARED and RETURN end the connection.
TEST_CASE("no memory is exposed over tcp") {
  std::vector<float> theirs(kCount, 2);
  char* const bytes = reinterpret_cast<char*>(theirs.data());
  const ExposedMemory exposed;
  for (const std::string& sent :
       {Open(1) + ExposedFrame(0, {{bytes + kHalf, kHalf}}),
        Frame(FrameType::kShared, Encode(Sharing{true, true, exposed.canary()})),
        Frame(FrameType::kRelease, "")}) {
    std::unique_ptr<Communicator> comm;
    REQUIRE_OK(Communicator::Create(0, 2, "", 0, &comm));
    std::thread connecting(
        [&] { REQUIRE_OK(comm->Connect(TestKey(), 1, {"here:1", "here:2"}, 20)); });
    RawPeer peer(comm->port());
    CHECK(peer.Introduce(1));
    const FrameHeader welcome = peer.ReceiveHeader();
    CHECK((welcome.Is(FrameType::kWelcome) && welcome.meta_bytes == 0));
    connecting.join();
    std::vector<float> ours(kCount, 1);
    Ending ending = AllReduce(*comm, ours);
    CHECK(peer.Send(sent));
    const Status status = Wait(ending);
    CHECK_STATUS(status, StatusCode::kUnavailable);
    CHECK_CONTAINS(status.message(), "an unexpected");
  }
}

// One rank without shared memory among others with it.
TEST_CASE("mixed") {
  for (int odd = 0; odd < 3; ++odd) {
    Ranks comms(3);
    std::vector<std::string> addresses;
    for (int rank = 0; rank < 3; ++rank) {
      REQUIRE_OK(Communicator::Create(rank, 3, "", 0, &comms[rank], rank != odd));
      addresses.push_back(StrCat("127.0.0.1:", comms[rank]->port()));
    }
    OnRanks(3, [&](int rank) {
      REQUIRE_OK(comms[rank]->Connect(TestKey(), 1, addresses, 20));
      for (const size_t count : {1, 1000, 300000}) {
        std::vector<float> values(count, rank + 1);
        Ending ending = AllReduce(*comms[rank], values);
        CHECK_OK(Wait(ending));
        CHECK(values == std::vector<float>(count, 6));
      }
    });
  }
}

}  // namespace
}  // namespace tfdist::testing::sharing_test
