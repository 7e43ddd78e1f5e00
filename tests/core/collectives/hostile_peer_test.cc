// A peer that knows the key and violates the protocol: an error that names it, no crash and no
// hang.
#include "collectives/raw_peer.h"
#include "core/collectives/selector.h"

namespace tfdist::testing::hostile_peer_test {
namespace {

constexpr size_t kCount = 30000;  // floats: more than is sent eagerly

// Rank 0 is a communicator; the test sends the frames of rank 1.
struct Duel {
  Duel() {
    REQUIRE_OK(Communicator::Create(0, 2, "", 0, &comm));
    std::thread connecting(
        [this] { REQUIRE_OK(comm->Connect(TestKey(), 1, {"unused:1", "mallory:2"}, 20)); });
    peer = std::make_unique<RawPeer>(comm->port());
    CHECK(peer->Introduce(1));
    CHECK(peer->ReceiveHeader().Is(FrameType::kWelcome));
    connecting.join();
  }

  std::unique_ptr<Communicator> comm;
  std::unique_ptr<RawPeer> peer;
};

std::string Open(uint64_t key, size_t count, const std::string& shapes = "") {
  Signature signature;
  signature.kind = static_cast<uint8_t>(CollectiveKind::kAllReduce);
  signature.dtype = static_cast<uint8_t>(DType::kFloat32);
  signature.reduce_op = static_cast<uint8_t>(ReduceOp::kSum);
  signature.elements = count;
  signature.shape_hash = std::hash<std::string>()(shapes);
  signature.algorithm = static_cast<uint8_t>(SelectAlgorithm(signature, {0, 0}));
  signature.name = "theirs";
  signature.shapes = shapes;
  return Frame(CollectiveFrame::kOpen, Encode(signature), key);
}

std::string Data(uint64_t key, uint64_t sequence, uint16_t step, uint64_t offset, size_t length) {
  FrameHeader header = DataHeader(key, length);
  header.step = step;
  header.sequence = sequence;
  header.offset = offset;
  return Bytes(header, std::string(length, '\0'));
}

// In a ring of two ranks, rank 0 expects one half of the values in step 0 and the other in step 1.
constexpr uint64_t kHalf = kCount / 2 * sizeof(float);

// The status of a collective when these bytes arrive before or after its start.
void TestBytes(const std::string& bytes, StatusCode code, const std::string& message) {
  for (const bool before_start : {false, true}) {
    Duel duel;
    std::vector<float> values(kCount, 1);
    if (before_start) CHECK(duel.peer->Send(bytes));
    Ending ending = AllReduce(*duel.comm, values, {1, "ours"});
    if (!before_start) CHECK(duel.peer->Send(bytes));
    const Status status = Wait(ending);
    CHECK_STATUS(status, code);
    CHECK_CONTAINS(status.message(), message);
    CHECK_CONTAINS(status.message(), "rank 1");
    Ending later = AllReduce(*duel.comm, values, {2, "later"});
    CHECK_STATUS(Wait(later), code);
  }
}

TEST_CASE("broken frames") {
  const auto lost = StatusCode::kUnavailable;
  const std::string open = Open(1, kCount);
  TestBytes(std::string(kFrameHeaderBytes, 'x'), lost, "not a tfdist frame");
  TestBytes(open + HelloFrame(1), lost, "unexpected frame of type 1");
  TestBytes(open + Frame(FrameType::kWelcome, ""), lost, "unexpected frame of type 4");
  TestBytes(Frame(CollectiveFrame::kOpen, "garbage", 1), lost, "malformed OPEN");
  TestBytes(Frame(CollectiveFrame::kOpen, "", 1), lost, "malformed OPEN");
  TestBytes(Frame(CollectiveFrame::kReply, "r"), lost, "malformed REPLY");
  TestBytes(Frame(CollectiveFrame::kAbort, "a"), lost, "malformed ABORT");
  TestBytes(Frame(CollectiveFrame::kAbort, Encode(Abort{StatusCode::kOk, "so there"})), lost,
            "so there");
  FrameHeader header;
  header.type = static_cast<uint8_t>(CollectiveFrame::kOpen);
  header.meta_bytes = kMaxCollectiveMeta + 1;
  TestBytes(Bytes(header), lost, "claims 8193 and 0 bytes");
  header.meta_bytes = 0;
  header.payload_bytes = 1;
  TestBytes(Bytes(header), lost, "claims 0 and 1 bytes");
  TestBytes(Bytes(DataHeader(1, UINT64_MAX)), lost, "claims 0 and 18446744073709551615 bytes");
  TestBytes(open + Bytes(DataHeader(1, 0)), lost, "an empty DATA frame");
  TestBytes(Open(1, kCount + 1), StatusCode::kInvalidArgument, "the ranks disagree");
  Signature unknown;
  unknown.kind = 99;
  unknown.dtype = 77;
  TestBytes(Frame(CollectiveFrame::kOpen, Encode(unknown), 1), StatusCode::kInvalidArgument,
            "the ranks disagree");
  TestBytes(Frame(CollectiveFrame::kGoodbye, ""), lost, "has finished its program");
  TestBytes(open + Frame(CollectiveFrame::kGoodbye, "") + Data(1, 0, 7, 0, 8), lost, "rank 1");
}

// Chunks other than the expected one. They follow the OPEN, so they may be stored until the
// collective starts.
TEST_CASE("broken chunks") {
  struct Case {
    uint16_t step;
    uint64_t offset;
    size_t length;
  };
  const std::vector<Case> cases = {{1, 0, kHalf},     {UINT16_MAX, 0, kHalf}, {0, 4, kHalf},
                                   {0, kHalf, kHalf}, {0, UINT64_MAX, 8},     {0, 0, 8},
                                   {0, 0, kHalf + 4}, {0, 0, kChunkBytes}};
  for (const Case& c : cases) {
    for (const bool before_start : {false, true}) {
      Duel duel;
      std::vector<float> values(kCount, 1);
      const std::string bytes = Open(1, kCount) + Data(1, 0, c.step, c.offset, c.length);
      if (before_start) CHECK(duel.peer->Send(bytes));
      Ending ending = AllReduce(*duel.comm, values, {1, "ours"});
      if (!before_start) duel.peer->Send(bytes);
      const Status status = Wait(ending);
      CHECK_STATUS(status, StatusCode::kUnavailable);
      CHECK_CONTAINS(status.message(), "rank 1");
    }
  }
  // The right first half, two times.
  Duel duel;
  std::vector<float> values(kCount, 1);
  Ending ending = AllReduce(*duel.comm, values, {1, "ours"});
  CHECK(duel.peer->Send(Open(1, kCount) + Data(1, 0, 0, 0, kHalf)));
  duel.peer->Send(Data(1, 0, 0, 0, kHalf));
  const Status status = Wait(ending);
  CHECK_STATUS(status, StatusCode::kUnavailable);
  CHECK_CONTAINS(status.message(), "expected step 1 offset 0");
}

TEST_CASE("chunks of other collectives") {
  {  // Of an unknown collective, and too large to be stored.
    Duel duel;
    duel.peer->Send(Data(9, 9, 0, 0, kEagerBytes + 1));
    CHECK(Eventually([&] { return !duel.comm->status().ok(); }));
    CHECK_CONTAINS(duel.comm->status().message(),
                   "a chunk of 65537 bytes of a collective that has");
  }
  {  // Of an unknown collective, and small enough: stored up to a limit.
    Duel duel;
    const std::string chunk = Data(9, 9, 0, 0, kEagerBytes);
    size_t sent = 0;
    while (duel.peer->Send(chunk)) CHECK(++sent < 10000);
    CHECK(sent > 1000);
    CHECK_CONTAINS(duel.comm->status().message(), "keeps for collectives that have not started");
  }
  {  // Of a collective that has ended.
    Duel duel;
    std::vector<float> values(2, 1);
    Ending ending = AllReduce(*duel.comm, values, {1, "ours"});
    CHECK(duel.peer->Send(Open(1, 2) + Data(1, 0, 0, 0, 8)));
    CHECK_OK(Wait(ending));
    CHECK((values[0] == 1 && values[1] == 1));
    duel.peer->Send(Data(1, 0, 0, 0, 8));
    CHECK(Eventually([&] { return !duel.comm->status().ok(); }));
    CHECK_CONTAINS(duel.comm->status().message(), "a chunk of a collective that has ended");
  }
}

// Chunks of one byte, each of another collective: memory is bounded by their cost.
TEST_CASE("small chunks of other collectives") {
  Duel duel;
  const int64_t before = ResidentBytes();
  size_t sent = 0;
  bool open = true;
  while (open) {
    std::string chunks;
    for (int i = 0; i < 1000; ++i) chunks += Data(++sent, 9, 0, 0, 1);
    open = duel.peer->Send(chunks);
    CHECK(HasGrownLessThan(400, before));
  }
  CHECK(sent > 100000);
  CHECK(Eventually([&] { return !duel.comm->status().ok(); }));
  CHECK_CONTAINS(duel.comm->status().message(), "keeps for collectives that have not started");
  CHECK_CONTAINS(duel.comm->status().message(), "rank 1");
}

// A peer that asks again and again and does not read the answers.
TEST_CASE("unread answers") {
  Duel duel;
  const int64_t before = ResidentBytes();
  std::string queries;
  for (int i = 0; i < 1000; ++i) queries += Frame(CollectiveFrame::kQuery, "", 8, 8);
  for (size_t sent = 0; duel.peer->Send(queries); ++sent) {
    CHECK(sent < 1000);  // the kernel's buffers hold far less
    CHECK(HasGrownLessThan(50, before));
  }
  CHECK(Eventually([&] { return !duel.comm->status().ok(); }));
  CHECK_CONTAINS(duel.comm->status().message(), "does not read the answers");
  CHECK_CONTAINS(duel.comm->status().message(), "rank 1");
}

// A peer that opens collectives without end, for which a joined rank stands in.
TEST_CASE("collectives of a joined rank") {
  Duel duel;
  auto [options, ending] = Prepare(*duel.comm, {1, "join", "", 0});
  int last_rank = 0;
  duel.comm->Join(std::move(options), &last_rank);
  constexpr uint64_t kMost = 1 << 12;
  for (uint64_t key = 1; key <= kMost + 1; ++key) duel.peer->Send(Open(1000 + key, 1));
  const Status status = Wait(ending, 100);
  CHECK_STATUS(status, StatusCode::kInvalidArgument);
  CHECK_CONTAINS(status.message(), "stands in for 4096 others already");
  CHECK_CONTAINS(status.message(), "rank 1");
}

// A peer that opens a collective larger than this machine's memory.
TEST_CASE("a large collective of a joined rank") {
  Duel duel;
  auto [options, ending] = Prepare(*duel.comm, {1, "join", "", 0});
  int last_rank = 0;
  duel.comm->Join(std::move(options), &last_rank);
  duel.peer->Send(Open(1000, StandInMemory::Limit() / sizeof(float) + 1));
  const Status status = Wait(ending, 100);
  CHECK_STATUS(status, StatusCode::kInvalidArgument);
  CHECK_CONTAINS(status.message(), "has joined and has no memory for it");
}

// All of them together have a limit.
TEST_CASE("memory of stand ins") {
  StandInMemory memory(1000);
  std::shared_ptr<char> one = memory.Take(600);
  CHECK((one != nullptr && std::all_of(one.get(), one.get() + 600, [](char c) { return c == 0; })));
  CHECK((memory.Take(401) == nullptr && memory.Take(1001) == nullptr));
  CHECK(memory.Take(400) != nullptr);
  one.reset();
  CHECK((memory.Take(1000) != nullptr && memory.Take(UINT64_MAX) == nullptr));
}

// Unusual but harmless frames.
TEST_CASE("harmless frames") {
  Duel duel;
  std::vector<float> values(2, 1);
  Ending ending = AllReduce(*duel.comm, values, {1, "ours"});
  const std::string reply = Frame(CollectiveFrame::kReply, Encode(Reply{true, "?"}), 5, 5);
  CHECK(duel.peer->Send(reply + Open(1, 2) + Open(1, 2) +
                        Frame(CollectiveFrame::kQuery, "odd", 8, 8)));
  CHECK(duel.peer->Send(Data(1, 0, 0, 0, 8) + Open(1, 2)));
  CHECK_OK(Wait(ending));
  CHECK_OK(duel.comm->status());
}

// The connection closes within a header, a control frame, a chunk and an unexpected chunk.
TEST_CASE("cut off") {
  const std::string open = Open(1, kCount), chunk = Data(1, 0, 0, 0, kHalf);
  const std::string unexpected = Data(1, 0, 0, 0, 600);
  for (const std::string& bytes :
       {open.substr(0, 17), open.substr(0, 50), open + chunk.substr(0, 30),
        open + chunk.substr(0, 20000), open + unexpected.substr(0, 100)}) {
    Duel duel;
    std::vector<float> values(kCount, 1);
    CHECK(duel.peer->Send(bytes));
    Ending ending = AllReduce(*duel.comm, values, {1, "ours"});
    duel.peer.reset();
    const Status status = Wait(ending);
    CHECK(!status.ok());
    CHECK_CONTAINS(status.message(), "rank 1");
  }
}

// The reason of an ABORT is reported even if the peer resets the connection while we write to it.
TEST_CASE("abort before reset") {
  for (int turn = 0; turn < 50; ++turn) {
    Duel duel;
    std::vector<float> values(1 << 20, 1);
    CHECK(duel.peer->Send(Open(1, values.size())));
    Ending ending = AllReduce(*duel.comm, values, {1, "ours"});
    duel.peer->ReceiveHeader();
    CHECK(duel.peer->Send(Frame(CollectiveFrame::kAbort,
                                Encode(Abort{StatusCode::kUnavailable, "the disk is full"}))));
    duel.peer.reset();
    const Status status = Wait(ending);
    CHECK_STATUS(status, StatusCode::kUnavailable);
    CHECK_CONTAINS(status.message(), "the disk is full");
  }
}

// A process at a peer's address that is not the peer.
TEST_CASE("impostor") {
  FrameHeader long_welcome;
  long_welcome.type = static_cast<uint8_t>(FrameType::kWelcome);
  long_welcome.meta_bytes = 8;
  // The answer is sent instead of the CHALLENGE, or after it.
  struct Case {
    bool proves;
    std::string answer, message;
  };
  const std::vector<Case> cases = {
      {false, std::string(kFrameHeaderBytes + kChallengeBytes, 'x'), "not a tfdist frame"},
      {false, Frame(FrameType::kProof, std::string(kChallengeBytes, 'x')), "expected a CHALLENGE"},
      {false, Frame(FrameType::kChallenge, std::string(kChallengeBytes, 'x')),
       "does not know this job's key"},
      {false, "", "closed"},
      {true, std::string(kFrameHeaderBytes, 'x'), "not a tfdist frame"},
      {true, Frame(FrameType::kProof, ""), "expected a WELCOME"},
      {true, Bytes(long_welcome, "surprise"), "expected a WELCOME"},
      {true, Frame(FrameType::kWelcome, Encode(Sharing{})), "expected a WELCOME"},
      {true, "", "closed"}};
  for (const auto& [proves, answer, message] : cases) {
    Listener listener;
    REQUIRE_OK(Listener::Listen("127.0.0.1", 0, false, &listener));
    const int port = listener.port();
    std::unique_ptr<Communicator> comm;
    REQUIRE_OK(Communicator::Create(1, 2, "", 0, &comm));
    std::thread host([&] {
      PeerSocket socket;
      CHECK(Eventually([&] { return Accept(listener.tcp(), &socket); }));
      const TimePoint deadline = Clock::now() + std::chrono::seconds(10);
      std::string greeting(HelloFrame(1).size(), '\0');
      CHECK_OK(ReceiveAll(socket.fd, greeting.data(), greeting.size(), deadline));
      Hello hello;
      CHECK_OK(Decode(std::string_view(greeting).substr(kFrameHeaderBytes), &hello));
      CHECK((hello.generation == 1 && hello.rank == 1 && hello.to == 0));
      if (proves) {
        const Nonce nonce = NewNonce();
        const std::string challenge =
            Frame(FrameType::kChallenge,
                  Encode(Challenge{nonce, AcceptorProof(TestKey(), hello, nonce)}));
        CHECK_OK(SendAll(socket.fd, challenge.data(), challenge.size(), deadline));
        std::string proof(kFrameHeaderBytes + kProofBytes, '\0');
        CHECK_OK(ReceiveAll(socket.fd, proof.data(), proof.size(), deadline));
        CHECK(proof == RawPeer::ProofFrame(DiallerProof(TestKey(), hello, nonce)));
      }
      CHECK_OK(SendAll(socket.fd, answer.data(), answer.size(), deadline));
    });
    const Status status = comm->Connect(TestKey(), 1, {StrCat("127.0.0.1:", port), "unused:1"}, 20);
    host.join();
    CHECK(!status.ok());
    CHECK_CONTAINS(status.message(), "cannot connect to rank 0");
    CHECK_CONTAINS(status.message(), message);
  }
}

}  // namespace
}  // namespace tfdist::testing::hostile_peer_test
