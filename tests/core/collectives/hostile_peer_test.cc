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
    EXPECT_OK(Communicator::Create(0, 2, "", 0, &comm));
    std::thread connecting(
        [this] { EXPECT_OK(comm->Connect(TestKey(), 1, {"unused:1", "mallory:2"}, 20)); });
    peer = std::make_unique<RawPeer>(comm->port());
    EXPECT(peer->Introduce(1));
    EXPECT(peer->ReceiveHeader().Is(FrameType::kWelcome));
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
    if (before_start) EXPECT(duel.peer->Send(bytes));
    Ending ending = AllReduce(*duel.comm, values, {1, "ours"});
    if (!before_start) EXPECT(duel.peer->Send(bytes));
    const Status status = Wait(ending);
    EXPECT_STATUS(status, code);
    EXPECT_CONTAINS(status.message(), message);
    EXPECT_CONTAINS(status.message(), "rank 1");
    Ending later = AllReduce(*duel.comm, values, {2, "later"});
    EXPECT_STATUS(Wait(later), code);
  }
}

void TestBrokenFrames() {
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
void TestBrokenChunks() {
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
      if (before_start) EXPECT(duel.peer->Send(bytes));
      Ending ending = AllReduce(*duel.comm, values, {1, "ours"});
      if (!before_start) duel.peer->Send(bytes);
      const Status status = Wait(ending);
      EXPECT_STATUS(status, StatusCode::kUnavailable);
      EXPECT_CONTAINS(status.message(), "rank 1");
    }
  }
  // The right first half, two times.
  Duel duel;
  std::vector<float> values(kCount, 1);
  Ending ending = AllReduce(*duel.comm, values, {1, "ours"});
  EXPECT(duel.peer->Send(Open(1, kCount) + Data(1, 0, 0, 0, kHalf)));
  duel.peer->Send(Data(1, 0, 0, 0, kHalf));
  const Status status = Wait(ending);
  EXPECT_STATUS(status, StatusCode::kUnavailable);
  EXPECT_CONTAINS(status.message(), "expected step 1 offset 0");
}

void TestChunksOfOtherCollectives() {
  {  // Of an unknown collective, and too large to be stored.
    Duel duel;
    duel.peer->Send(Data(9, 9, 0, 0, kEagerBytes + 1));
    EXPECT(Eventually([&] { return !duel.comm->status().ok(); }));
    EXPECT_CONTAINS(duel.comm->status().message(),
                    "a chunk of 65537 bytes of a collective that has");
  }
  {  // Of an unknown collective, and small enough: stored up to a limit.
    Duel duel;
    const std::string chunk = Data(9, 9, 0, 0, kEagerBytes);
    size_t sent = 0;
    while (duel.peer->Send(chunk)) EXPECT(++sent < 10000);
    EXPECT(sent > 1000);
    EXPECT_CONTAINS(duel.comm->status().message(), "keeps for collectives that have not started");
  }
  {  // Of a collective that has ended.
    Duel duel;
    std::vector<float> values(2, 1);
    Ending ending = AllReduce(*duel.comm, values, {1, "ours"});
    EXPECT(duel.peer->Send(Open(1, 2) + Data(1, 0, 0, 0, 8)));
    EXPECT_OK(Wait(ending));
    EXPECT(values[0] == 1 && values[1] == 1);
    duel.peer->Send(Data(1, 0, 0, 0, 8));
    EXPECT(Eventually([&] { return !duel.comm->status().ok(); }));
    EXPECT_CONTAINS(duel.comm->status().message(), "a chunk of a collective that has ended");
  }
}

// Chunks of one byte, each of another collective: memory is bounded by what they cost.
void TestSmallChunksOfOtherCollectives() {
  Duel duel;
  const int64_t before = ResidentBytes();
  size_t sent = 0;
  bool open = true;
  while (open) {
    std::string chunks;
    for (int i = 0; i < 1000; ++i) chunks += Data(++sent, 9, 0, 0, 1);
    open = duel.peer->Send(chunks);
    EXPECT(HasGrownLessThan(400, before));
  }
  EXPECT(sent > 100000);
  EXPECT(Eventually([&] { return !duel.comm->status().ok(); }));
  EXPECT_CONTAINS(duel.comm->status().message(), "keeps for collectives that have not started");
  EXPECT_CONTAINS(duel.comm->status().message(), "rank 1");
}

// A peer that asks again and again and does not read the answers.
void TestUnreadAnswers() {
  Duel duel;
  const int64_t before = ResidentBytes();
  std::string queries;
  for (int i = 0; i < 1000; ++i) queries += Frame(CollectiveFrame::kQuery, "", 8, 8);
  for (size_t sent = 0; duel.peer->Send(queries); ++sent) {
    EXPECT(sent < 1000);  // the kernel's buffers hold far less
    EXPECT(HasGrownLessThan(50, before));
  }
  EXPECT(Eventually([&] { return !duel.comm->status().ok(); }));
  EXPECT_CONTAINS(duel.comm->status().message(), "does not read the answers");
  EXPECT_CONTAINS(duel.comm->status().message(), "rank 1");
}

// A peer that opens collectives without end, for which a joined rank stands in.
void TestCollectivesOfAJoinedRank() {
  Duel duel;
  auto [options, ending] = Prepare(*duel.comm, {1, "join", "", 0});
  int last_rank = 0;
  duel.comm->Join(std::move(options), &last_rank);
  constexpr uint64_t kMost = 1 << 12;
  for (uint64_t key = 1; key <= kMost + 1; ++key) duel.peer->Send(Open(1000 + key, 1));
  const Status status = Wait(ending, 100);
  EXPECT_STATUS(status, StatusCode::kInvalidArgument);
  EXPECT_CONTAINS(status.message(), "stands in for 4096 others already");
  EXPECT_CONTAINS(status.message(), "rank 1");
}

// A peer that opens a collective larger than this machine's memory.
void TestALargeCollectiveOfAJoinedRank() {
  Duel duel;
  auto [options, ending] = Prepare(*duel.comm, {1, "join", "", 0});
  int last_rank = 0;
  duel.comm->Join(std::move(options), &last_rank);
  duel.peer->Send(Open(1000, StandInMemory::Limit() / sizeof(float) + 1));
  const Status status = Wait(ending, 100);
  EXPECT_STATUS(status, StatusCode::kInvalidArgument);
  EXPECT_CONTAINS(status.message(), "has joined and has no memory for it");
}

// All of them together have a limit.
void TestMemoryOfStandIns() {
  StandInMemory memory(1000);
  std::shared_ptr<char> one = memory.Take(600);
  EXPECT(one != nullptr && std::all_of(one.get(), one.get() + 600, [](char c) { return c == 0; }));
  EXPECT(memory.Take(401) == nullptr && memory.Take(1001) == nullptr);
  EXPECT(memory.Take(400) != nullptr);
  one.reset();
  EXPECT(memory.Take(1000) != nullptr && memory.Take(UINT64_MAX) == nullptr);
}

// Unusual but harmless frames.
void TestHarmlessFrames() {
  Duel duel;
  std::vector<float> values(2, 1);
  Ending ending = AllReduce(*duel.comm, values, {1, "ours"});
  const std::string reply = Frame(CollectiveFrame::kReply, Encode(Reply{true, "?"}), 5, 5);
  EXPECT(duel.peer->Send(reply + Open(1, 2) + Open(1, 2) +
                         Frame(CollectiveFrame::kQuery, "odd", 8, 8)));
  EXPECT(duel.peer->Send(Data(1, 0, 0, 0, 8) + Open(1, 2)));
  EXPECT_OK(Wait(ending));
  EXPECT_OK(duel.comm->status());
}

// The connection closes within a header, a control frame, a chunk and an unexpected chunk.
void TestCutOff() {
  const std::string open = Open(1, kCount), chunk = Data(1, 0, 0, 0, kHalf);
  const std::string unexpected = Data(1, 0, 0, 0, 600);
  for (const std::string& bytes :
       {open.substr(0, 17), open.substr(0, 50), open + chunk.substr(0, 30),
        open + chunk.substr(0, 20000), open + unexpected.substr(0, 100)}) {
    Duel duel;
    std::vector<float> values(kCount, 1);
    EXPECT(duel.peer->Send(bytes));
    Ending ending = AllReduce(*duel.comm, values, {1, "ours"});
    duel.peer.reset();
    const Status status = Wait(ending);
    EXPECT(!status.ok());
    EXPECT_CONTAINS(status.message(), "rank 1");
  }
}

// The reason of an ABORT is reported even if the peer resets the connection while we write to it.
void TestAbortBeforeReset() {
  for (int turn = 0; turn < 50; ++turn) {
    Duel duel;
    std::vector<float> values(1 << 20, 1);
    EXPECT(duel.peer->Send(Open(1, values.size())));
    Ending ending = AllReduce(*duel.comm, values, {1, "ours"});
    duel.peer->ReceiveHeader();
    EXPECT(duel.peer->Send(Frame(CollectiveFrame::kAbort,
                                 Encode(Abort{StatusCode::kUnavailable, "the disk is full"}))));
    duel.peer.reset();
    const Status status = Wait(ending);
    EXPECT_STATUS(status, StatusCode::kUnavailable);
    EXPECT_CONTAINS(status.message(), "the disk is full");
  }
}

// A process at a peer's address that is not the peer.
void TestImpostor() {
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
    EXPECT_OK(Listener::Listen("127.0.0.1", 0, false, &listener));
    const int port = listener.port();
    std::unique_ptr<Communicator> comm;
    EXPECT_OK(Communicator::Create(1, 2, "", 0, &comm));
    std::thread host([&] {
      PeerSocket socket;
      EXPECT(Eventually([&] { return Accept(listener.tcp(), &socket); }));
      const TimePoint deadline = Clock::now() + std::chrono::seconds(10);
      std::string greeting(HelloFrame(1).size(), '\0');
      EXPECT_OK(ReceiveAll(socket.fd, greeting.data(), greeting.size(), deadline));
      Hello hello;
      EXPECT_OK(Decode(std::string_view(greeting).substr(kFrameHeaderBytes), &hello));
      EXPECT(hello.generation == 1 && hello.rank == 1 && hello.to == 0);
      if (proves) {
        const Nonce nonce = NewNonce();
        const std::string challenge =
            Frame(FrameType::kChallenge,
                  Encode(Challenge{nonce, AcceptorProof(TestKey(), hello, nonce)}));
        EXPECT_OK(SendAll(socket.fd, challenge.data(), challenge.size(), deadline));
        std::string proof(kFrameHeaderBytes + kProofBytes, '\0');
        EXPECT_OK(ReceiveAll(socket.fd, proof.data(), proof.size(), deadline));
        EXPECT(proof == RawPeer::ProofFrame(DiallerProof(TestKey(), hello, nonce)));
      }
      EXPECT_OK(SendAll(socket.fd, answer.data(), answer.size(), deadline));
    });
    const Status status = comm->Connect(TestKey(), 1, {StrCat("127.0.0.1:", port), "unused:1"}, 20);
    host.join();
    EXPECT(!status.ok());
    EXPECT_CONTAINS(status.message(), "cannot connect to rank 0");
    EXPECT_CONTAINS(status.message(), message);
  }
}

void Main() {
  TestBrokenFrames();
  TestBrokenChunks();
  TestChunksOfOtherCollectives();
  TestSmallChunksOfOtherCollectives();
  TestUnreadAnswers();
  TestCollectivesOfAJoinedRank();
  TestALargeCollectiveOfAJoinedRank();
  TestMemoryOfStandIns();
  TestHarmlessFrames();
  TestCutOff();
  TestAbortBeforeReset();
  TestImpostor();
  std::puts("hostile peer: ok");
}

REGISTER_TEST(Main);

}  // namespace
}  // namespace tfdist::testing::hostile_peer_test
