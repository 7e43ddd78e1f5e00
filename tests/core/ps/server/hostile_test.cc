// Unauthorized peers and misbehaving workers connect to a parameter server whose other workers
// train: these are not disturbed, and no resource leaks.
#include <atomic>
#include <numeric>
#include <random>

#include "ps/raw_ps_worker.h"

namespace tfdist::testing::ps_server_hostile_test {
namespace {

using Random = std::mt19937_64;

constexpr int kHostile = 2;  // a rank of its own

// A server, and two workers that push and pull continuously and check every value.
class BusyServer {
 public:
  BusyServer() {
    ServerOptions options = Options(Mode::kAsync, 3);
    options.trace_events = 0;
    server_ = StartServer(options);
    {
      // Enough shards that flipping one bit in the id of a last one does not give a first one.
      RawPsWorker worker(*server_, kHostile);
      for (uint32_t i = 0; i < 98; ++i) worker.Create(StrCat("w", i), Floats(8, 0));
      for (uint32_t i = 96; i < 98; ++i) worker.Bind(Sgd(), i);
    }
    CHECK(Eventually([&] { return server_->stats().connections == 0; }));
    for (int rank = 0; rank < 2; ++rank) threads_.emplace_back([this, rank] { Work(rank); });
    CHECK(Eventually([&] { return server_->stats().connections == 2; }));
  }
  ~BusyServer() {
    stop_ = true;
    for (std::thread& thread : threads_) thread.join();
  }

  Server& server() { return *server_; }
  void ExpectProgress() {
    const uint64_t steps = steps_;
    CHECK(Eventually([&] { return steps_ > steps + 20; }));
  }

 private:
  void Work(int rank) {
    RawPsWorker worker(*server_, rank);
    const uint32_t w = static_cast<uint32_t>(rank);
    for (float step = 1; !stop_; ++step) {
      CHECK(!worker.Push(w, UpdateKind::kDelta, Floats(8, 1)));
      CHECK(Values<float>(worker.Pull({w})) == Floats(8, step));
      ++steps_;
    }
  }

  std::unique_ptr<Server> server_;
  std::vector<std::thread> threads_;
  std::atomic<bool> stop_{false};
  std::atomic<uint64_t> steps_{0};
};

std::string Garbage(Random& random, size_t max_bytes) {
  std::string bytes(1 + random() % max_bytes, '\0');
  for (char& byte : bytes) byte = static_cast<char>(random());
  return bytes;
}

void FlipBits(Random& random, std::string* bytes, size_t first = 0) {
  for (uint64_t i = 1 + random() % 3; i > 0; --i) {
    (*bytes)[first + random() % (bytes->size() - first)] ^= static_cast<char>(1 << random() % 8);
  }
}

// Bytes of a peer that must be rejected.
std::string Intrusion(Random& random, const Server& server) {
  const std::string hello = HelloFrame(random() % 3, server.incarnation());
  switch (random() % 6) {
    case 0:
      return Garbage(random, 400);
    case 1:
      return hello.substr(0, 4) + Garbage(random, 400);
    case 2:
      return HelloFrame(random() % 3, server.incarnation() + 1 + random() % 9);
    case 3:
      return HelloFrame(3 + random() % 5, server.incarnation());
    case 4:
      return hello + RawPeer::ProofFrame(Sha256(Garbage(random, 40)));
    default:
      return MessageBytes(MessageType::kLeave, 1, "");
  }
}

// A valid request for the hostile worker's own shards.
std::string SomeRequest(Random& random, uint64_t sequence) {
  const uint32_t w = 96 + random() % 2;
  const std::string values(32, '\1');
  PushRequest push;
  push.sequence = sequence;
  push.steps = {{0.5, 1}};
  switch (random() % 8) {
    case 0:
      return MessageBytes(MessageType::kOpen, 1, Encode(OpenRequest{random() % 3, 1}));
    case 1:
      return MessageBytes(MessageType::kCreate, 2,
                          Encode(CreateRequest{{{"w96", DType::kFloat32, 8, true},
                                                {"w97", DType::kFloat32, 8, false}}}),
                          values);
    case 2:
      return MessageBytes(MessageType::kBind, 3, Encode(BindRequest{Sgd(), {{w, {}, 0}}}));
    case 3:
      return MessageBytes(MessageType::kPull, 4,
                          Encode(PullRequest{random() % 2 == 0, {{w, 0}, {97, 1}}}));
    case 4:
      push.entries = {{w, UpdateKind::kGradient, 0, 0, 0}, {w, UpdateKind::kDelta, 0, 0, 0}};
      return MessageBytes(MessageType::kPush, 5, Encode(push), values + values);
    case 5:
      push.entries = {{w, UpdateKind::kRows, 0, 2, 4}};
      return MessageBytes(MessageType::kPush, 6, Encode(push),
                          Raw(std::vector<int64_t>{1, 0}) + values);
    case 6:
      return MessageBytes(MessageType::kSet, 7, Encode(SetRequest{{w}}), values);
    default:
      return MessageBytes(MessageType::kReduce, 8,
                          Encode(ReduceRequest{random() % 2, 1, {DType::kFloat32}, {8}}), values);
  }
}

TEST_CASE("unauthorized peers") {
  BusyServer busy;
  Random random(11);
  const int before = OpenDescriptors();
  const auto peers = static_cast<uint64_t>(Rounds(3000));
  for (uint64_t i = 0; i < peers; ++i) {
    const std::string bytes = Intrusion(random, busy.server());
    RawPeer peer(busy.server().port());
    peer.Send(random() % 3 == 0 ? bytes.substr(0, random() % bytes.size()) : bytes);
    if (random() % 4 == 0) continue;  // closes at once
    peer.EndSending();
    peer.AwaitClose();
  }
  CHECK(Eventually([&] { return busy.server().stats().rejected_connections == peers; }));
  CHECK(Eventually([&] { return OpenDescriptors() == before; }));
  CHECK(busy.server().stats().broken_requests == 0);
  busy.ExpectProgress();
}

// An authorized worker sends requests that are cut, flipped, or garbage.
TEST_CASE("misbehaving worker") {
  BusyServer busy;
  Random random(12);
  const int before = OpenDescriptors();
  uint64_t sequence = 0;
  for (int i = 0; i < Rounds(12000); ++i) {
    std::string bytes;
    if (random() % 8 != 0) {
      bytes = MessageBytes(MessageType::kOpen, 0, Encode(OpenRequest{random() % 3, 1}));
    }
    for (uint64_t left = random() % 8; left > 0; --left) {
      std::string request = SomeRequest(random, ++sequence);
      switch (random() % 4) {
        case 0:
          FlipBits(random, &request);
          break;
        case 1:  // past the header
          if (request.size() > kFrameHeaderBytes) {
            FlipBits(random, &request, kFrameHeaderBytes);
          }
          break;
        case 2:
          if (random() % 4 == 0) request = Garbage(random, 200);
      }
      bytes += request;
    }
    RawPeer peer(busy.server().port());
    CHECK(peer.Introduce(kHostile, busy.server().incarnation()));
    CHECK(peer.ReceiveHeader().Is(FrameType::kWelcome));
    peer.Send(random() % 3 == 0 ? bytes.substr(0, random() % (bytes.size() + 1)) : bytes);
    if (random() % 4 == 0) continue;
    peer.EndSending();
    peer.AwaitClose();
  }
  CHECK(Eventually([&] { return busy.server().stats().connections == 2; }));
  CHECK(Eventually([&] { return OpenDescriptors() == before; }));
  CHECK(busy.server().stats().broken_requests > static_cast<uint64_t>(Rounds(3000)));
  CHECK(busy.server().stats().rejected_connections == 0);
  busy.ExpectProgress();
}

// Claimed sizes cost no memory, and impossible sizes are refused.
TEST_CASE("claims") {
  BusyServer busy;
  const auto claim = [&](MessageType type, const std::string& meta, uint64_t payload_bytes) {
    FrameHeader header = HeaderOf(type, 0);
    header.meta_bytes = static_cast<uint32_t>(meta.size());
    header.payload_bytes = payload_bytes;
    return Bytes(header, meta);
  };
  const auto create = [](uint64_t elements) {
    return Encode(CreateRequest{{{"huge", DType::kFloat64, elements, true}}});
  };
  const auto reduce = [](uint64_t elements) {
    return Encode(ReduceRequest{1, 1, {DType::kInt64, DType::kInt64}, {elements, elements}});
  };
  PushRequest rows;
  rows.steps.resize(1);
  rows.entries = {{96, UpdateKind::kRows, 0, uint64_t{1} << 32, 8}};
  const uint64_t row_bytes = (uint64_t{1} << 32) * (8 + 32);
  // Payloads of the maximal size that do not arrive.
  for (const std::string& bytes :
       {claim(MessageType::kCreate, create(uint64_t{1} << 33), kMaxPayloadBytes),
        claim(MessageType::kReduce, reduce(uint64_t{1} << 32), kMaxPayloadBytes),
        claim(MessageType::kSet, Encode(SetRequest{{99}}), kMaxPayloadBytes)}) {
    RawPsWorker worker(busy.server(), kHostile);
    CHECK(worker.peer().Send(bytes));
    CHECK(worker.peer().Send(std::string(1 << 20, '\1')));
    busy.ExpectProgress();
  }
  const uint64_t broken = busy.server().stats().broken_requests;
  uint64_t count = 0;
  rows.entries[0].rows = uint64_t{1} << 62;
  const std::string many_rows = Encode(rows);
  rows.entries[0].rows = 2;
  rows.entries[0].width = uint64_t{1} << 63;
  const std::string wide_rows = Encode(rows);
  for (const std::string& bytes :
       {claim(MessageType::kCreate, create(uint64_t{1} << 61), 0),  // overflows
        claim(MessageType::kCreate, create(1), 9),                  // sizes differ
        claim(MessageType::kReduce, reduce((uint64_t{1} << 32) + 1), 16),
        claim(MessageType::kReduce, reduce(UINT64_MAX), UINT64_MAX - 15),
        claim(MessageType::kPush, many_rows, row_bytes), claim(MessageType::kPush, wide_rows, 16),
        claim(MessageType::kSet, Encode(SetRequest{{96}}), 33), claim(MessageType::kLeave, "", 1),
        claim(MessageType::kLeave, "x", 0), claim(MessageType::kOk, "", 0),
        claim(MessageType::kOpen, Encode(OpenRequest{1, 1}), 0)}) {  // already open
    RawPsWorker worker(busy.server(), kHostile);
    CHECK(worker.peer().Send(bytes));
    worker.peer().AwaitClose();
    ++count;
    CHECK(Eventually([&] { return busy.server().stats().broken_requests == broken + count; }));
  }
  busy.ExpectProgress();
}

// A worker that sends requests and reads no answers: the server stops reading from it.
TEST_CASE("worker that does not read") {
  BusyServer busy;
  RawPsWorker worker(busy.server(), kHostile);
  const uint32_t big = worker.Create("big", Floats(1 << 20, 1));
  const uint64_t pulls = busy.server().stats().pulls;
  const std::string pull =
      MessageBytes(MessageType::kPull, 9, Encode(PullRequest{false, {{big, 0}}}));
  std::string many;
  for (int i = 0; i < 1000; ++i) many += pull;
  CHECK(worker.peer().Send(many));
  busy.ExpectProgress();
  CHECK((busy.server().stats().value_bytes < 8 << 20));
  CHECK(busy.server().stats().pulls > pulls);
}

// Answers that are memory of their own, as the rows of a scan, wait up to a number of bytes.
TEST_CASE("scans that are not read") {
  BusyServer busy;
  RawPsWorker worker(busy.server(), kHostile);
  constexpr uint32_t kRows = 1 << 17, kWidth = 64;  // 32 MB
  TableReply table;
  TableConfig config;
  config.width = kWidth;
  CHECK_OK(
      Decode(worker.Ask(MessageType::kTable, Encode(TableRequest{{{"rows", config}}})), &table));
  std::vector<int64_t> ids(kRows);
  std::iota(ids.begin(), ids.end(), 0);
  LookupRequest lookup;
  lookup.training = true;
  lookup.entries = {{table.tables[0], kRows, DType::kFloat32}};
  worker.Ask(MessageType::kLookup, Encode(lookup), Raw(ids));
  const uint64_t held = busy.server().stats().memory_held;
  const int64_t before = ResidentBytes();
  ScanRowsRequest scan;
  scan.table = table.tables[0];
  scan.max_rows = kRows;
  std::string scans;
  for (int i = 0; i < 64; ++i) scans += MessageBytes(MessageType::kScanRows, 9, Encode(scan));
  CHECK(worker.peer().Send(scans));
  // One answer at least is counted while it waits.
  CHECK(Eventually([&] { return busy.server().stats().memory_held > held + (32 << 20); }));
  for (int i = 0; i < 5; ++i) {
    busy.ExpectProgress();
    CHECK(HasGrownLessThan(500, before));
  }
}

TEST_CASE("short connections") {
  BusyServer busy;
  const int before = OpenDescriptors();
  for (int i = 0; i < Rounds(1000); ++i) {
    if (i % 3 == 0) {
      const RawPeer peer(busy.server().port());
    } else if (i % 3 == 1) {
      RawPsWorker worker(busy.server(), kHostile, i % 5);
      if (i % 2 == 0) worker.RequestPull({96}, true);
    } else {
      // Two connections: the older one is closed.
      RawPsWorker older(busy.server(), kHostile), newer(busy.server(), kHostile);
      older.peer().AwaitClose();
      CHECK(newer.Pull({96}).size() == 32);
      if (i % 2 == 0) newer.Leave();
    }
  }
  CHECK(Eventually([&] { return busy.server().stats().connections == 2; }));
  CHECK(Eventually([&] { return OpenDescriptors() == before; }));
  CHECK(busy.server().stats().broken_requests == 0);
  busy.ExpectProgress();
}

}  // namespace
}  // namespace tfdist::testing::ps_server_hostile_test
