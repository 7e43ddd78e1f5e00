// Values that a worker and a server of one machine read in each other's memory.
#include <cstring>
#include <optional>

#include "core/net/peer_memory.h"
#include "ps/raw_ps_worker.h"

namespace tfdist::testing::ps_lending_test {
namespace {

constexpr size_t kCount = 1 << 18;  // floats, 1 MB

// A worker that exposes its memory, and reads the server's, by hand.
struct LendingWorker : RawPsWorker {
  explicit LendingWorker(const Server& server) : RawPsWorker(server, 0, 0, true) {
    exposed.emplace();
    Sharing offer, theirs;
    CHECK_OK(Decode(welcome, "WELCOME", &offer));
    CHECK(PeerMemory(peer().process, offer.canary).IsReadable());
    server_memory.emplace(peer().process, offer.canary);
    CHECK(peer().Send(Frame(FrameType::kShared, Encode(Sharing{true, true, exposed->canary()}))));
    FrameHeader header;
    const std::string meta = ReceiveHead(&header);
    CHECK(header.Is(FrameType::kShared));
    CHECK_OK(Decode(meta, "SHARED", &theirs));
    CHECK((theirs.joined && theirs.reads));
  }

  // Pulls a shard; the address of its value in the server's memory.
  const char* PullExposed(uint32_t shard) {
    PullRequest request{false, {{shard, 0}}};
    const uint64_t number = 1000 + ++pulls;
    CHECK(peer().Send(MessageBytes(MessageType::kPull, number, Encode(request))));
    FrameHeader header;
    const std::string meta = ReceiveHead(&header);
    CHECK((header.type == static_cast<uint8_t>(MessageType::kOk) && header.key == number));
    CHECK((header.exposed == 1 && header.payload_bytes == kCount * sizeof(float)));
    std::string_view rest = meta;
    std::vector<iovec> pieces;
    CHECK_OK(TakeExposed(header, &rest, &pieces));
    return static_cast<const char*>(pieces.at(0).iov_base);
  }
  // The oldest exposed value.
  void Release() { CHECK(peer().Send(Frame(FrameType::kRelease, ""))); }

  std::string ReceiveHead(FrameHeader* header) {
    char bytes[kFrameHeaderBytes];
    peer().Receive(bytes, sizeof(bytes));
    CHECK_OK(Decode(bytes, LimitsOfMessages, header));
    std::string meta(header->meta_bytes, '\0');
    peer().Receive(meta.data(), meta.size());
    return meta;
  }

  // A push whose payload stays in the memory of `pieces`.
  static std::string ExposedPush(const PushRequest& push, const std::vector<iovec>& pieces) {
    FrameHeader header = HeaderOf(MessageType::kPush, 7);
    std::string meta = Encode(push);
    for (const iovec& piece : pieces) header.payload_bytes += piece.iov_len;
    AppendExposed(pieces, &header, &meta);
    return Bytes(header, meta);
  }
  // The type of the answer, after the RELEASE; or REFUSE.
  uint8_t PushExposed(const PushRequest& push, const std::vector<iovec>& pieces) {
    CHECK(peer().Send(ExposedPush(push, pieces)));
    FrameHeader header;
    ReceiveHead(&header);
    if (header.Is(FrameType::kRelease)) {
      ReceiveHead(&header);
      CHECK(header.key == 7);
    }
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

// An exposed value does not change until the worker releases it; then its memory may be reused.
TEST_CASE("exposed values stay") {
  const auto server = StartServer(Options(Mode::kAsync, 1));
  LendingWorker worker(*server);
  const uint32_t shard = worker.Create("w", Floats(kCount, 5));
  worker.Bind(Sgd(), shard);
  Floats gradient(kCount, 1);
  const std::vector<iovec> halves{{gradient.data(), 400},
                                  {gradient.data() + 100, kCount * 4 - 400}};

  const char* const first = worker.PullExposed(shard);
  CHECK(First(first) == 5);  // the server is in the same process
  Floats copy(kCount);
  CHECK_OK(worker.server_memory->Read({{copy.data(), kCount * 4}},
                                      {{const_cast<char*>(first), kCount * 4}}));
  CHECK(copy == Floats(kCount, 5));
  CHECK(worker.PushExposed(worker.NewGradient(shard), halves) ==
        static_cast<uint8_t>(MessageType::kOk));
  CHECK(First(first) == 5);

  worker.pulls = 0;
  worker.Release();
  const char* const second = worker.PullExposed(shard);
  CHECK((second != first && First(second) == 4));
  worker.Release();
  CHECK(worker.PushExposed(worker.NewGradient(shard), halves) ==
        static_cast<uint8_t>(MessageType::kOk));
  CHECK((worker.PullExposed(shard) == second && First(second) == 3));
  // Bytes of values are counted, sent or exposed.
  CHECK(Eventually([&] { return server->stats().bytes_received == 3 * kCount * 4; }));
  CHECK(Eventually([&] { return server->stats().bytes_sent == 3 * kCount * 4; }));
}

// The server requests values again that it cannot read, all of them or some. It says so once, and
// passes over all exposed memory from then on, since the worker sends it again.
TEST_CASE("unreadable is sent") {
  Floats half(kCount / 2, 1), whole(kCount, 1);
  for (const bool in_part : {false, true}) {
    const auto server = StartServer(Options(Mode::kAsync, 1));
    LendingWorker worker(*server);
    const uint32_t shard = worker.Create("w", Floats(kCount, 5));
    worker.Bind(Sgd(), shard);
    const PushRequest push = worker.NewGradient(shard);
    const std::vector<iovec> all = {{nullptr, kCount * 4}};
    const std::vector<iovec> some = {{half.data(), kCount * 2}, {nullptr, kCount * 2}};
    CHECK(worker.PushExposed(push, in_part ? some : all) ==
          static_cast<uint8_t>(FrameType::kRefuse));
    for (const auto& pieces : {all, some, std::vector<iovec>{{whole.data(), kCount * 4}}}) {
      CHECK(worker.peer().Send(LendingWorker::ExposedPush(push, pieces)));
    }
    CHECK(!worker.Push(push, Raw(whole)));
    CHECK(server->stats().pushes == 1);
    CHECK(First(worker.PullExposed(shard)) == 4);
  }
}

// A worker that cannot read memory exposed to it is sent all of it, in order, and is believed once.
TEST_CASE("refused is sent") {
  const auto server = StartServer(Options(Mode::kAsync, 1));
  LendingWorker worker(*server);
  const uint32_t shard = worker.Create("w", Floats(kCount, 5));
  for (int i = 0; i < 3; ++i) CHECK(First(worker.PullExposed(shard)) == 5);
  CHECK(worker.peer().Send(Frame(FrameType::kRefuse, "")));
  for (uint64_t i = 1; i <= 3; ++i) {
    FrameHeader header;
    worker.ReceiveHead(&header);
    CHECK((header.key == 1000 + i && header.exposed == 0));
    std::string payload(header.payload_bytes, '\0');
    worker.peer().Receive(payload.data(), payload.size());
    CHECK(payload == Raw(Floats(kCount, 5)));
  }
  CHECK(worker.Value(shard) == Floats(kCount, 5));
  CHECK(Eventually([&] { return server->stats().bytes_sent == 4 * kCount * 4; }));
  CHECK(worker.peer().Send(Frame(FrameType::kRefuse, "")));
  worker.peer().AwaitClose();
  CHECK(Eventually([&] { return server->stats().broken_requests == 1; }));
}

// Values that are no longer exposed are not applied.
TEST_CASE("withdrawn") {
  const auto server = StartServer(Options(Mode::kAsync, 1));
  LendingWorker worker(*server);
  const uint32_t shard = worker.Create("w", Floats(kCount, 5));
  worker.Bind(Sgd(), shard);
  Floats gradient(kCount, 1);
  const PushRequest push = worker.NewGradient(shard);
  worker.exposed.reset();
  CHECK(worker.peer().Send(LendingWorker::ExposedPush(push, {{gradient.data(), kCount * 4}})));
  worker.peer().AwaitClose();
  CHECK(server->stats().pushes == 0);
  CHECK(server->stats().broken_requests == 0);
}

// A refusal of a request with exposed values.
TEST_CASE("refused") {
  const auto server = StartServer(Options(Mode::kAsync, 1));
  LendingWorker worker(*server);
  const uint32_t shard = worker.Create("w", Floats(kCount, 5));
  Floats gradient(kCount, 1);
  CHECK(worker.PushExposed(worker.NewGradient(shard), {{gradient.data(), kCount * 4}}) ==
        static_cast<uint8_t>(MessageType::kError));
  CHECK(worker.Value(worker.Create("v", Floats{1, 2})) == (Floats{1, 2}));
}

TEST_CASE("claims") {
  const auto server = StartServer(Options(Mode::kAsync, 1));
  Floats gradient(kCount, 1);
  const iovec all{gradient.data(), kCount * 4};
  uint64_t broken = 0;
  {
    RawPsWorker worker(*server, 0);  // exposes without shared memory
    const uint32_t shard = worker.Create("w", Floats(kCount, 5));
    worker.Bind(Sgd(), shard);
    const PushRequest push = worker.NewPush({{shard, UpdateKind::kGradient, 0, 0, 0}});
    CHECK(worker.peer().Send(LendingWorker::ExposedPush(push, {all})));
    worker.peer().AwaitClose();
    ++broken;
  }
  for (int kind = 0; kind < 4; ++kind) {
    LendingWorker worker(*server);
    const uint32_t shard = worker.Create("w", DType::kFloat32, kCount, "");
    std::string bytes = LendingWorker::ExposedPush(worker.NewGradient(shard), {all});
    FrameHeader header;
    CHECK_OK(Decode(bytes.data(), LimitsOfMessages, &header));
    if (kind == 0) header.exposed = 2;                           // not an address
    if (kind == 1) header.payload_bytes += 4;                    // more bytes than are exposed
    if (kind == 2) header.payload_bytes -= 4;                    // fewer bytes
    if (kind == 3) header.exposed = header.meta_bytes / 16 + 1;  // more pieces than meta has
    const auto head = Encode(header);
    std::copy(head.begin(), head.end(), bytes.begin());
    CHECK(worker.peer().Send(bytes));
    worker.peer().AwaitClose();
    ++broken;
  }
  // A second SHARED, and a release or refusal without exposed memory.
  const Sharing again{true, true, ExposedMemory().canary()};
  for (const std::string& frame : {Frame(FrameType::kShared, Encode(again)),
                                   Frame(FrameType::kRelease, ""), Frame(FrameType::kRefuse, "")}) {
    LendingWorker worker(*server);
    CHECK(worker.peer().Send(frame));
    worker.peer().AwaitClose();
    ++broken;
  }
  CHECK(server->stats().pushes == 0);
  CHECK(server->stats().broken_requests == broken);
}

// A worker that never releases exposed values is sent values in the end.
TEST_CASE("never released") {
  const auto server = StartServer(Options(Mode::kAsync, 2));
  LendingWorker worker(*server);
  const uint32_t shard = worker.Create("w", Floats(kCount, 5));
  for (int i = 0; i < 64; ++i) CHECK(First(worker.PullExposed(shard)) == 5);
  CHECK(worker.Value(shard) == Floats(kCount, 5));
}

// A worker that cannot read, and whose memory cannot be read.
TEST_CASE("neither reads") {
  const auto server = StartServer(Options(Mode::kAsync, 1));
  RawPsWorker worker(*server, 0, 0, true);
  CanaryInfo nothing;
  nothing.address = 4096;
  CHECK(worker.peer().Send(Frame(FrameType::kShared, Encode(Sharing{true, false, nothing}))));
  CHECK(worker.peer().ReceiveHeader().Is(FrameType::kShared));
  std::string meta(Encode(Sharing{}).size(), '\0');
  worker.peer().Receive(meta.data(), meta.size());
  Sharing theirs;
  CHECK_OK(Decode(meta, "SHARED", &theirs));
  CHECK((theirs.joined && !theirs.reads));
  const uint32_t shard = worker.Create("w", Floats(kCount, 5));
  CHECK(worker.Value(shard) == Floats(kCount, 5));
}

// Over TCP a server accepts no addresses, not even from a worker that knows the key, and sends
// none. Otherwise its memory could be read over the network.
TEST_CASE("no memory is exposed over tcp") {
  const auto server = StartServer(Options(Mode::kAsync, 1));
  const std::string secret(kCount * sizeof(float), 's');
  uint64_t broken = 0;
  for (const CanaryInfo& canary : {CanaryInfo{}, ExposedMemory().canary()}) {
    RawPsWorker worker(*server, 0);
    CHECK(worker.peer().Send(Frame(FrameType::kShared, Encode(Sharing{true, true, canary}))));
    worker.peer().AwaitClose();
    CHECK(Eventually([&] { return server->stats().broken_requests == broken + 1; }));
    ++broken;
  }
  RawPsWorker worker(*server, 0);
  const uint32_t shard = worker.Create("w", Floats(kCount, 5));
  FrameHeader header = HeaderOf(MessageType::kSet, 9);
  header.payload_bytes = secret.size();
  std::string meta = Encode(SetRequest{{shard}});
  AppendExposed({{const_cast<char*>(secret.data()), secret.size()}}, &header, &meta);
  CHECK(worker.peer().Send(Bytes(header, meta)));
  worker.peer().AwaitClose();
  CHECK(Eventually([&] { return server->stats().broken_requests == broken + 1; }));
  RawPsWorker after(*server, 0, 7);
  CHECK(after.Value(after.Create("w", DType::kFloat32, kCount, "")) == Floats(kCount, 5));
}

// A server that exposes no memory has no unix socket.
TEST_CASE("server that exposes no memory") {
  std::unique_ptr<Server> server;
  REQUIRE_OK(Server::Create(Options(Mode::kAsync, 1), "127.0.0.1", 0, false, &server));
  REQUIRE_OK(server->Start(TestKey()));
  PeerSocket socket;
  CHECK_OK(Dial(StrCat("127.0.0.1:", server->port()), true, Clock::now() + std::chrono::seconds(10),
                &socket));
  CHECK(socket.process == nullptr);
}

}  // namespace
}  // namespace tfdist::testing::ps_lending_test
