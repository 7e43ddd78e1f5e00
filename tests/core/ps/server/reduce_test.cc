// Reductions over the workers of a job, by a parameter server.
#include "ps/raw_ps_worker.h"

namespace tfdist::testing::ps_server_reduce_test {
namespace {

constexpr uint64_t kKey = 77;

// Which of three workers wait for which others, such as "0-2 1-2 ".
std::string Waits(const Server& server) {
  bool waits[9];
  server.Waits(waits);
  std::string text;
  for (int i = 0; i < 9; ++i) {
    if (waits[i]) text += StrCat(i / 3, "-", i % 3, " ");
  }
  return text;
}

TEST_CASE("sums") {
  auto server = StartServer(Options(Mode::kSync, 3));
  RawPsWorker a(*server, 0), b(*server, 1), c(*server, 2);
  // Two keys, in different orders; each of a few executions.
  for (uint64_t execution = 1; execution < 4; ++execution) {
    const float x = static_cast<float>(execution);
    const uint64_t a1 = a.RequestReduce(kKey, execution, {1, x});
    const uint64_t a2 = a.RequestReduce(kKey + 1, execution, {4});
    const uint64_t b2 = b.RequestReduce(kKey + 1, execution, {5});
    const uint64_t b1 = b.RequestReduce(kKey, execution, {10, x});
    CHECK((!a.HasAnswer(a1) && !b.HasAnswer(b1)));
    CHECK(Waits(*server) == "0-2 1-2 ");
    const uint64_t c1 = c.RequestReduce(kKey, execution, {100, x});
    CHECK(a.AwaitReduce(a1) == Floats({111, 3 * x}));
    CHECK(b.AwaitReduce(b1) == Floats({111, 3 * x}));
    CHECK(c.AwaitReduce(c1) == Floats({111, 3 * x}));
    CHECK(!a.HasAnswer(a2));
    CHECK(Waits(*server) == "0-2 1-2 ");
    const uint64_t c2 = c.RequestReduce(kKey + 1, execution, {6});
    CHECK((a.AwaitReduce(a2) == Floats{15} && b.AwaitReduce(b2) == Floats{15}));
    CHECK(c.AwaitReduce(c2) == Floats{15});
    CHECK(Waits(*server).empty());
  }
}

// One reduction of several tensors of several dtypes.
TEST_CASE("tensors") {
  auto server = StartServer(Options(Mode::kSync, 2));
  RawPsWorker a(*server, 0), b(*server, 1);
  const std::string meta = Encode(
      ReduceRequest{kKey, 1, {DType::kInt64, DType::kFloat64, DType::kFloat32}, {2, 1, 600000}});
  const auto payload = [](int64_t n, double d, float f) {
    return Raw(std::vector<int64_t>{n, n}) + Raw(std::vector<double>{d}) + Raw(Floats(600000, f));
  };
  const uint64_t first = a.Request(MessageType::kReduce, meta, payload(1, 0.5, 3));
  const RawAnswer second = b.Try(MessageType::kReduce, meta, payload(2, 0.25, 4));
  CHECK_OK(second.status);
  CHECK(second.payload == payload(3, 0.75, 7));
  CHECK(a.Await(first).payload == payload(3, 0.75, 7));
}

// A request that is repeated after a broken connection gets the same result, and adds nothing.
TEST_CASE("repeated request") {
  auto server = StartServer(Options(Mode::kSync, 2));
  auto a = std::make_unique<RawPsWorker>(*server, 0);
  RawPsWorker b(*server, 1);
  a->RequestReduce(kKey, 1, {1});
  a = std::make_unique<RawPsWorker>(*server, 0);  // before the result
  const uint64_t again = a->RequestReduce(kKey, 1, {1});
  CHECK(!a->HasAnswer(again));
  CHECK(b.AwaitReduce(b.RequestReduce(kKey, 1, {2})) == Floats{3});
  CHECK(a->AwaitReduce(again) == Floats{3});
  a = std::make_unique<RawPsWorker>(*server, 0);  // after it
  CHECK(a->AwaitReduce(a->RequestReduce(kKey, 1, {1})) == Floats{3});
  const uint64_t ahead = b.RequestReduce(kKey + 1, 2, {5});
  CHECK(a->AwaitReduce(a->RequestReduce(kKey, 1, {1})) == Floats{3});
  CHECK(a->AwaitReduce(a->RequestReduce(kKey + 1, 2, {6})) == Floats{11});
  CHECK(b.AwaitReduce(ahead) == Floats{11});
  // All workers are further on: the old result is gone, and the worker gets its own values back.
  CHECK(a->AwaitReduce(a->RequestReduce(kKey, 1, {1})) == Floats{1});
}

TEST_CASE("disagreement") {
  auto server = StartServer(Options(Mode::kSync, 2));
  RawPsWorker a(*server, 0), b(*server, 1);
  const uint64_t first = a.RequestReduce(kKey, 1, {1, 2});
  CHECK(!a.HasAnswer(first));
  RawAnswer wrong = b.Await(b.RequestReduce(kKey, 1, {1, 2, 3}));
  CHECK(wrong.status.code() == StatusCode::kInvalidArgument);
  CHECK_CONTAINS(wrong.status.message(),
                 "expected float32[2] for tensor 0, as from rank 0, received float32[3] from "
                 "rank 1");
  wrong = b.Try(MessageType::kReduce, Encode(ReduceRequest{kKey, 1, {}, {}}));
  CHECK_CONTAINS(wrong.status.message(),
                 "expected 1 tensors, as from rank 0, received 0 from rank 1");
  wrong = b.Try(MessageType::kReduce, Encode(ReduceRequest{kKey, 1, {DType::kBytes}, {2}}), "ab");
  CHECK_CONTAINS(wrong.status.message(), "no numbers to add up: bytes[2]");
  CHECK(b.AwaitReduce(b.RequestReduce(kKey, 1, {10, 20})) == Floats({11, 22}));
  CHECK(a.AwaitReduce(first) == Floats({11, 22}));
}

// A reduction does not wait for workers that left, were dropped, or are at a later execution.
TEST_CASE("fewer workers") {
  ServerOptions options = Options(Mode::kSync, 3);
  options.schedule.worker_timeout_seconds = 0.3;
  auto server = StartServer(options);
  RawPsWorker a(*server, 0), b(*server, 1), c(*server, 2);
  uint64_t first = a.RequestReduce(kKey, 1, {1}), second = b.RequestReduce(kKey, 1, {2});
  CHECK(!a.HasAnswer(first));
  c.Leave();
  CHECK((a.AwaitReduce(first) == Floats{3} && b.AwaitReduce(second) == Floats{3}));
  first = a.RequestReduce(kKey, 2, {1});
  second = b.RequestReduce(kKey, 3, {2});  // will not contribute to execution 2
  CHECK(a.AwaitReduce(first) == Floats{1});
  CHECK(a.AwaitReduce(a.RequestReduce(kKey, 3, {5})) == Floats{7});
  CHECK(b.AwaitReduce(second) == Floats{7});
  const TimePoint start = Clock::now();
  CHECK(a.AwaitReduce(a.RequestReduce(kKey, 4, {1})) == Floats{1});
  CHECK(SecondsSince(start) >= 0.3);
  Server::Event event;
  do {
    CHECK(server->WaitForEvent(20, &event));
  } while (event.kind != Server::Event::Kind::kLog);
  CHECK_CONTAINS(event.text, "worker 1 is dropped");
  CHECK(b.AwaitReduce(b.RequestReduce(kKey, 4, {9})) == Floats{1});  // without b
  b.Pull({});                                                        // b is active again
  first = a.RequestReduce(kKey, 5, {1});
  CHECK(!a.HasAnswer(first));
  CHECK(b.AwaitReduce(b.RequestReduce(kKey, 5, {2})) == Floats{3});
  CHECK(a.AwaitReduce(first) == Floats{3});
}

// A worker that asks for one execution again and again: each would be answered.
TEST_CASE("impatient worker") {
  auto server = StartServer(Options(Mode::kSync, 2));
  RawPsWorker a(*server, 0), b(*server, 1);
  const uint64_t first = a.RequestReduce(kKey, 1, {1});
  for (int i = 0; i < 3; ++i) {
    const RawAnswer again = a.Await(a.RequestReduce(kKey, 1, {1}));
    CHECK_STATUS(again.status, StatusCode::kFailedPrecondition);
    CHECK_CONTAINS(again.status.message(), "waits for its answer already");
  }
  CHECK(b.AwaitReduce(b.RequestReduce(kKey, 1, {2})) == Floats{3});
  CHECK(a.AwaitReduce(first) == Floats{3});
}

// A worker that contributes under one new key after the other.
TEST_CASE("many keys") {
  auto server = StartServer(Options(Mode::kSync, 1));
  RawPsWorker a(*server, 0);
  constexpr uint64_t kKeys = 1 << 16, kAtOnce = 32;
  for (uint64_t key = 0; key < kKeys; key += kAtOnce) {
    std::vector<uint64_t> numbers;
    for (uint64_t i = 0; i < kAtOnce; ++i) numbers.push_back(a.RequestReduce(key + i, 1, {1}));
    for (const uint64_t number : numbers) CHECK(a.AwaitReduce(number) == Floats{1});
  }
  const RawAnswer refused = a.Await(a.RequestReduce(kKeys, 1, {1}));
  CHECK_STATUS(refused.status, StatusCode::kFailedPrecondition);
  CHECK_CONTAINS(refused.status.message(), "there are 65536 already");
  CHECK(a.AwaitReduce(a.RequestReduce(7, 2, {1})) == Floats{1});
}

// A worker that asks for a reduction and is gone keeps no other waiting: the others are not
// dropped.
TEST_CASE("nobody waits") {
  ServerOptions options = Options(Mode::kSync, 2);
  options.schedule.worker_timeout_seconds = 1;
  auto server = StartServer(options);
  auto a = std::make_unique<RawPsWorker>(*server, 0);
  RawPsWorker b(*server, 1);
  CHECK(!a->HasAnswer(a->RequestReduce(kKey, 1, {1})));
  a = std::make_unique<RawPsWorker>(*server, 0);
  Server::Event event;
  while (server->WaitForEvent(2, &event)) CHECK(event.kind != Server::Event::Kind::kLog);
  // It asks again, and now waits.
  CHECK(a->AwaitReduce(a->RequestReduce(kKey, 1, {1})) == Floats{1});
  CHECK(server->WaitForEvent(20, &event));
  CHECK_CONTAINS(event.text, "worker 1 is dropped");
}

// A member begins sums that no other knows: the others' are taken all the same.
TEST_CASE("lonely sums") {
  auto server = StartServer(Options(Mode::kSync, 2));
  RawPsWorker a(*server, 0), b(*server, 1);
  constexpr uint64_t kMost = 1024;
  for (uint64_t sequence = 1; sequence <= kMost; ++sequence) a.RequestReduce(kKey, sequence, {1});
  const RawAnswer refused = a.Await(a.RequestReduce(kKey, kMost + 1, {1}));
  CHECK_STATUS(refused.status, StatusCode::kFailedPrecondition);
  CHECK_CONTAINS(refused.status.message(), "that rank 0 has begun wait for other workers: 1024");
  const uint64_t of_b = b.RequestReduce(kKey + 1, 1, {2});
  CHECK(!b.HasAnswer(of_b));
  CHECK(a.AwaitReduce(a.RequestReduce(kKey + 1, 1, {1})) == Floats{3});
  CHECK(b.AwaitReduce(of_b) == Floats{3});
}

}  // namespace
}  // namespace tfdist::testing::ps_server_reduce_test
