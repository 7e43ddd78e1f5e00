// Messages that arrive before or during the start of their collective.
#include "core/collectives/unexpected_messages.h"

#include "collectives/raw_peer.h"
#include "core/collectives/selector.h"

namespace tfdist::testing::unexpected_messages_test {
namespace {

constexpr size_t kSmall = 8, kLarge = 2 * kEagerBytes;  // bytes of rank 1's and rank 2's block
const std::vector<size_t> kBlocks = {0, kSmall, kLarge};

std::string Open() {
  Signature signature;
  signature.kind = static_cast<uint8_t>(CollectiveKind::kGather);
  signature.dtype = static_cast<uint8_t>(DType::kBytes);
  signature.shape_hash = std::hash<std::string>()("");
  signature.algorithm = static_cast<uint8_t>(Algorithm::kDirect);
  signature.blocks.assign(kBlocks.begin(), kBlocks.end());
  return Frame(CollectiveFrame::kOpen, Encode(signature), 1);
}

std::string Data(const std::string& content) {
  return Bytes(DataHeader(1, content.size()), content);
}

// While an unexpected chunk of one peer is still arriving, another peer, which has received this
// rank's OPEN, sends a chunk larger than the limit of unexpected ones.
TEST_CASE("large chunk beside an unexpected one") {
  std::unique_ptr<Communicator> comm;
  REQUIRE_OK(Communicator::Create(0, 3, "", 0, &comm));
  std::thread connecting(
      [&] { REQUIRE_OK(comm->Connect(TestKey(), 1, {"unused:1", "one:2", "two:3"}, 20)); });
  std::vector<std::unique_ptr<RawPeer>> peers;
  for (const uint32_t rank : {1, 2}) {
    peers.push_back(std::make_unique<RawPeer>(comm->port()));
    CHECK(peers.back()->Introduce(rank));
    CHECK(peers.back()->ReceiveHeader().Is(FrameType::kWelcome));
  }
  connecting.join();
  const std::string small(kSmall, 's'), large(kLarge, 'l'), of_one = Open() + Data(small);
  const size_t cut = of_one.size() - kSmall / 2;
  CHECK(peers[0]->Send(of_one.substr(0, cut)));
  const TimePoint deadline = Clock::now() + std::chrono::seconds(20);
  while (comm->stats().bytes_received < kSmall) CHECK(Clock::now() < deadline);

  std::string gathered(kSmall + kLarge, '.');
  auto [options, ending] = Prepare(*comm, {});
  comm->Gather(std::move(options), DType::kBytes, kBlocks, 0, FlatView(),
               FlatView({{gathered.data(), gathered.size()}}));
  CHECK(peers[1]->Send(Open() + Data(large)));
  while (comm->stats().bytes_received < kSmall + kLarge) CHECK(Clock::now() < deadline);
  CHECK(peers[0]->Send(of_one.substr(cut)));
  CHECK_OK(Wait(ending));
  CHECK(gathered == small + large);
}

// A rank that is thousands of small collectives ahead of another: all of them end, exactly.
TEST_CASE("far ahead") {
  Ranks comms = Connected(2);
  const int count = Rounds(5000);
  std::vector<std::vector<float>> ahead(count), behind(count);
  std::vector<Ending> endings, last;
  for (int i = 0; i < count; ++i) {
    ahead[i].assign(2, static_cast<float>(i));
    endings.push_back(AllReduce(*comms[1], ahead[i], {static_cast<uint64_t>(i + 1), "t", "", 0}));
  }
  CHECK(StillRuns(endings.front(), 0));
  for (int i = 0; i < count; ++i) {
    behind[i].assign(2, 1);
    last.push_back(AllReduce(*comms[0], behind[i], {static_cast<uint64_t>(i + 1), "t", "", 0}));
  }
  for (int i = 0; i < count; ++i) {
    CHECK_OK(Wait(endings[i], 100));
    CHECK_OK(Wait(last[i], 100));
    const float sum = static_cast<float>(i + 1);
    CHECK((ahead[i] == std::vector<float>(2, sum) && behind[i] == ahead[i]));
  }
}

FrameHeader OfBytes(uint64_t bytes, uint32_t exposed = 0) {
  FrameHeader header = DataHeader(1, bytes);
  header.exposed = exposed;
  return header;
}

// A message that is taken out is no longer charged, and one costs more than it carries.
TEST_CASE("charges") {
  UnexpectedMessages messages;
  std::vector<iovec> target;
  for (uint64_t key = 0; key < 100; ++key) {
    const CollectiveId id{key % 10, 0};
    CHECK_OK(messages.AddOpen(id, {1, Signature()}));
    const size_t before = messages.bytes();
    CHECK_OK(messages.AddChunk(id, 1, OfBytes(1), &target));
    CHECK(messages.bytes() - before > sizeof(UnexpectedMessages::Chunk));
    CHECK((messages.CompleteChunk(id, 1) && !messages.CompleteChunk(id, 1)));
    const size_t between = messages.bytes();
    CHECK_OK(messages.AddChunk(id, 2, OfBytes(1, 1), &target));
    CHECK(messages.bytes() - between > messages.bytes() - before - (messages.bytes() - between));
    CHECK(messages.CompleteChunk(id, 2));
  }
  for (uint64_t key = 0; key < 10; ++key) {
    CHECK(messages.TakeOpens({key, 0}).size() == 10);
    UnexpectedMessages::Chunk chunk;
    while (messages.TakeChunk({key, 0}, &chunk)) {
    }
  }
  CHECK(messages.bytes() == 0);
}

}  // namespace
}  // namespace tfdist::testing::unexpected_messages_test
