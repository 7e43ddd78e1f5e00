// Values that a worker and a server of one machine read in each other's memory.
#include <cstring>
#include <optional>

#include "core/net/peer_memory.h"
#include "ps/raw_ps_worker.h"

namespace tfdist::testing::ps_lending_test {
namespace {

constexpr size_t kCount = 1 << 18;  // floats, 1 MB

// A worker that exchanges canaries and lent values by hand.
struct LendingWorker : RawPsWorker {
  explicit LendingWorker(const Server& server) : RawPsWorker(server, 0, 0, true) {
    exposed.emplace();
    LendMessage theirs;
    EXPECT_OK(
        Decode(Ask(MessageType::kLend, Encode(LendMessage{exposed->canary(), true})), &theirs));
    EXPECT(theirs.reads);
    EXPECT(PeerMemory(peer().process, theirs.canary).IsReadable());
    server_memory.emplace(peer().process, theirs.canary);
  }

  // Pulls a shard; the address at which the server lends its value.
  const char* PullLent(uint32_t shard) {
    PullRequest request{false, {{shard, 0}}};
    const uint64_t number = 1000 + ++pulls;
    EXPECT(peer().Send(MessageBytes(MessageType::kPull, number, Encode(request))));
    MessageHeader header;
    const std::string meta = ReceiveHead(&header);
    EXPECT(header.type == MessageType::kOk && header.number == number);
    EXPECT(header.lent == 1 && header.payload_bytes == kCount * sizeof(float));
    std::string_view rest = meta;
    std::vector<iovec> pieces;
    EXPECT_OK(TakeLent(header, &rest, &pieces));
    return static_cast<const char*>(pieces.at(0).iov_base);
  }
  void Copied() { EXPECT(peer().Send(MessageBytes(MessageType::kCopied, 1000 + pulls, ""))); }

  std::string ReceiveHead(MessageHeader* header) {
    char bytes[kMessageHeaderBytes];
    peer().Receive(bytes, sizeof(bytes));
    EXPECT_OK(Decode(bytes, header));
    std::string meta(header->meta_bytes, '\0');
    peer().Receive(meta.data(), meta.size());
    return meta;
  }

  // A push that lends the memory of `pieces` as its payload.
  static std::string LentPush(const PushRequest& push, const std::vector<iovec>& pieces) {
    MessageHeader header;
    header.type = MessageType::kPush;
    header.number = 7;
    std::string meta = Encode(push);
    for (const iovec& piece : pieces) header.payload_bytes += piece.iov_len;
    PutLent(pieces, &header, &meta);
    const auto bytes = Encode(header);
    return std::string(bytes.begin(), bytes.end()) + meta;
  }
  MessageType PushLent(const PushRequest& push, const std::vector<iovec>& pieces) {
    EXPECT(peer().Send(LentPush(push, pieces)));
    MessageHeader header;
    ReceiveHead(&header);
    EXPECT(header.number == 7);
    return header.type;
  }
  PushRequest NewGradient(uint32_t shard) {
    return NewPush({{shard, UpdateKind::kGradient, 0, 0, 0}});
  }

  std::optional<ExposedMemory> exposed;
  std::optional<PeerMemory> server_memory;
  uint64_t pulls = 0;
};

float First(const char* values) {
  float first;
  std::memcpy(&first, values, sizeof(first));
  return first;
}

// A lent value does not change until the worker releases it; then its memory may be reused.
void TestLentValuesStay() {
  const auto server = StartServer(Options(Mode::kAsync, 1));
  LendingWorker worker(*server);
  const uint32_t shard = worker.Create("w", Floats(kCount, 5));
  worker.Bind(Sgd(), shard);
  Floats gradient(kCount, 1);
  const std::vector<iovec> halves{{gradient.data(), 400},
                                  {gradient.data() + 100, kCount * 4 - 400}};

  const char* const first = worker.PullLent(shard);
  EXPECT(First(first) == 5);  // the server is in the same process
  Floats copy(kCount);
  EXPECT_OK(worker.server_memory->Read({{copy.data(), kCount * 4}},
                                       {{const_cast<char*>(first), kCount * 4}}));
  EXPECT(copy == Floats(kCount, 5));
  EXPECT(worker.PushLent(worker.NewGradient(shard), halves) == MessageType::kOk);
  EXPECT(First(first) == 5);

  worker.pulls = 0;
  worker.Copied();
  const char* const second = worker.PullLent(shard);
  EXPECT(second != first && First(second) == 4);
  worker.Copied();
  EXPECT(worker.PushLent(worker.NewGradient(shard), halves) == MessageType::kOk);
  EXPECT(worker.PullLent(shard) == second && First(second) == 3);
  // Bytes of values are counted, sent or lent.
  EXPECT(Eventually([&] { return server->stats().bytes_received == 3 * kCount * 4; }));
  EXPECT(Eventually([&] { return server->stats().bytes_sent == 3 * kCount * 4; }));
}

// The server requests values again that it cannot read.
void TestUnreadableIsSent() {
  const auto server = StartServer(Options(Mode::kAsync, 1));
  LendingWorker worker(*server);
  const uint32_t shard = worker.Create("w", Floats(kCount, 5));
  worker.Bind(Sgd(), shard);
  const PushRequest push = worker.NewGradient(shard);
  EXPECT(worker.PushLent(push, {{nullptr, kCount * 4}}) == MessageType::kResend);
  Floats half(kCount / 2, 1);
  EXPECT(worker.PushLent(push, {{half.data(), kCount * 2}, {nullptr, kCount * 2}}) ==
         MessageType::kResend);
  EXPECT(server->stats().pushes == 0);
  EXPECT(!worker.Push(push, Raw(Floats(kCount, 1))));
  EXPECT(server->stats().pushes == 1);
  EXPECT(First(worker.PullLent(shard)) == 4);
}

// Values that are no longer lent are not applied.
void TestWithdrawn() {
  const auto server = StartServer(Options(Mode::kAsync, 1));
  LendingWorker worker(*server);
  const uint32_t shard = worker.Create("w", Floats(kCount, 5));
  worker.Bind(Sgd(), shard);
  Floats gradient(kCount, 1);
  const PushRequest push = worker.NewGradient(shard);
  worker.exposed.reset();
  EXPECT(worker.peer().Send(LendingWorker::LentPush(push, {{gradient.data(), kCount * 4}})));
  worker.peer().AwaitClose();
  EXPECT(server->stats().pushes == 0);
  EXPECT(server->stats().broken_requests == 0);
}

// A refusal of a request with lent values.
void TestRefused() {
  const auto server = StartServer(Options(Mode::kAsync, 1));
  LendingWorker worker(*server);
  const uint32_t shard = worker.Create("w", Floats(kCount, 5));
  Floats gradient(kCount, 1);
  EXPECT(worker.PushLent(worker.NewGradient(shard), {{gradient.data(), kCount * 4}}) ==
         MessageType::kError);
  EXPECT(worker.Value(worker.Create("v", Floats{1, 2})) == (Floats{1, 2}));
}

void TestClaims() {
  const auto server = StartServer(Options(Mode::kAsync, 1));
  Floats gradient(kCount, 1);
  const iovec all{gradient.data(), kCount * 4};
  uint64_t broken = 0;
  {
    RawPsWorker worker(*server, 0);  // lends without a LEND message
    const uint32_t shard = worker.Create("w", Floats(kCount, 5));
    worker.Bind(Sgd(), shard);
    const PushRequest push = worker.NewPush({{shard, UpdateKind::kGradient, 0, 0, 0}});
    EXPECT(worker.peer().Send(LendingWorker::LentPush(push, {all})));
    worker.peer().AwaitClose();
    ++broken;
  }
  for (int kind = 0; kind < 4; ++kind) {
    LendingWorker worker(*server);
    const uint32_t shard = worker.Create("w", DType::kFloat32, kCount, "");
    std::string bytes = LendingWorker::LentPush(worker.NewGradient(shard), {all});
    MessageHeader header;
    EXPECT_OK(Decode(bytes.data(), &header));
    if (kind == 0) header.lent = 2;                           // not an address
    if (kind == 1) header.payload_bytes += 4;                 // more bytes than are lent
    if (kind == 2) header.payload_bytes -= 4;                 // fewer bytes
    if (kind == 3) header.lent = header.meta_bytes / 16 + 1;  // more pieces than meta has
    const auto head = Encode(header);
    std::copy(head.begin(), head.end(), bytes.begin());
    EXPECT(worker.peer().Send(bytes));
    worker.peer().AwaitClose();
    ++broken;
  }
  for (const MessageType type : {MessageType::kLend, MessageType::kCopied}) {
    LendingWorker worker(*server);
    const std::string meta =
        type == MessageType::kLend ? Encode(LendMessage{worker.exposed->canary(), true}) : "";
    EXPECT(worker.peer().Send(MessageBytes(type, 8, meta, "value")));
    worker.peer().AwaitClose();
    ++broken;
  }
  EXPECT(server->stats().pushes == 0);
  EXPECT(server->stats().broken_requests == broken);
}

// A worker that never releases lent values is sent values in the end.
void TestNeverCopied() {
  const auto server = StartServer(Options(Mode::kAsync, 2));
  LendingWorker worker(*server);
  const uint32_t shard = worker.Create("w", Floats(kCount, 5));
  for (int i = 0; i < 64; ++i) EXPECT(First(worker.PullLent(shard)) == 5);
  EXPECT(worker.Value(shard) == Floats(kCount, 5));
}

// A worker that cannot read, and whose memory cannot be read.
void TestNeitherReads() {
  const auto server = StartServer(Options(Mode::kAsync, 1));
  RawPsWorker worker(*server, 0, 0, true);
  LendMessage theirs;
  CanaryInfo nothing;
  nothing.address = 4096;
  EXPECT_OK(Decode(worker.Ask(MessageType::kLend, Encode(LendMessage{nothing, false})), &theirs));
  EXPECT(!theirs.reads);
  const uint32_t shard = worker.Create("w", Floats(kCount, 5));
  EXPECT(worker.Value(shard) == Floats(kCount, 5));
}

// Over TCP a server accepts no addresses, not even from a worker that knows the key, and sends
// none. Otherwise its memory could be read over the network.
void TestNothingIsLentOverTcp() {
  const auto server = StartServer(Options(Mode::kAsync, 1));
  const std::string secret(kCount * sizeof(float), 's');
  uint64_t broken = 0;
  for (const CanaryInfo& canary : {CanaryInfo{}, ExposedMemory().canary()}) {
    RawPsWorker worker(*server, 0);
    EXPECT(
        worker.peer().Send(MessageBytes(MessageType::kLend, 1, Encode(LendMessage{canary, true}))));
    worker.peer().AwaitClose();
    EXPECT(Eventually([&] { return server->stats().broken_requests == broken + 1; }));
    ++broken;
  }
  RawPsWorker worker(*server, 0);
  const uint32_t shard = worker.Create("w", Floats(kCount, 5));
  MessageHeader header;
  header.type = MessageType::kSet;
  header.number = 9;
  header.payload_bytes = secret.size();
  std::string meta = Encode(SetRequest{{shard}});
  PutLent({{const_cast<char*>(secret.data()), secret.size()}}, &header, &meta);
  const auto bytes = Encode(header);
  EXPECT(worker.peer().Send(std::string(bytes.begin(), bytes.end()) + meta));
  worker.peer().AwaitClose();
  EXPECT(Eventually([&] { return server->stats().broken_requests == broken + 1; }));
  RawPsWorker after(*server, 0, 7);
  EXPECT(after.Value(after.Create("w", DType::kFloat32, kCount, "")) == Floats(kCount, 5));
}

// A server without lending has no unix socket.
void TestServerThatDoesNotLend() {
  std::unique_ptr<Server> server;
  EXPECT_OK(Server::Create(Options(Mode::kAsync, 1), "127.0.0.1", 0, false, &server));
  EXPECT_OK(server->Start(TestKey()));
  PeerSocket socket;
  EXPECT_OK(Dial(StrCat("127.0.0.1:", server->port()), true,
                 Clock::now() + std::chrono::seconds(10), &socket));
  EXPECT(socket.process == nullptr);
}

void Main() {
  TestLentValuesStay();
  TestUnreadableIsSent();
  TestWithdrawn();
  TestRefused();
  TestClaims();
  TestNeverCopied();
  TestNeitherReads();
  TestNothingIsLentOverTcp();
  TestServerThatDoesNotLend();
  std::puts("ps lending: ok");
}

REGISTER_TEST(Main);

}  // namespace
}  // namespace tfdist::testing::ps_lending_test
