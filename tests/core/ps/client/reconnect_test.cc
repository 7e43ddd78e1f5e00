// Broken connections: no update is applied twice or lost.
#include "proxy.h"
#include "ps/worker.h"

namespace tfdist::testing::ps_client_reconnect_test {
namespace {

using Floats = std::vector<float>;

constexpr Proxy::Direction kDirections[] = {Proxy::kToServer, Proxy::kToClient};

// A worker of a job of two, whose changes are added: a repeated one would show. It reaches server 0
// through a proxy and server 1 directly.
struct Route {
  // With `scale` 4000, values for server 0 are large enough to be read in place.
  explicit Route(const ps::ServerOptions& options, size_t values_scale = 1)
      : scale(values_scale),
        server(StartServer(options)),
        other(StartServer(options)),
        proxy(server->port()),
        worker(0, 2, 2) {
    Connect();
    worker.Connect(*other, 1);
    split = worker.Add("split", {5 * scale, 3 * scale});
    count = worker.Add("count", {1}, DType::kInt64);
    weights = worker.Add("weights", {6 * scale});
    REQUIRE_OK(worker.Create(split, Filled(8 * scale, 0.0f)));
    REQUIRE_OK(worker.Create(count, std::vector<int64_t>{0}));
    REQUIRE_OK(worker.Create(weights, Filled(6 * scale, 0.0f)));
    REQUIRE_OK(worker.BindSgd({weights}));
    CHECK_OK(worker.Pull({split, count, weights}));
  }

  Status TryToConnect() { return worker.Connect(0, proxy.port(), server->incarnation()); }
  void Connect() { CHECK_OK(TryToConnect()); }

  // Starts a push that adds 1 to all parameters, and the next pull.
  Ending StartStep() {
    ++steps;
    worker.Stage(weights, Filled(6 * scale, -1.0f));
    CHECK_OK(Call([&](ps::Done done) {
      const auto value = static_cast<float>(steps);
      worker.client().parameters().Push(
          {{split, Hold(Filled(8 * scale, value))}, {count, Hold<int64_t>({steps})}},
          std::move(done));
    }));
    return worker.StartPull({split, count, weights});
  }
  void ExpectStep(Ending& pull) {
    CHECK_OK(Wait(pull));
    const auto value = static_cast<float>(steps);
    CHECK(worker.Value(split) == Filled(8 * scale, value));
    CHECK(worker.Value<int64_t>(count)[0] == steps);
    CHECK(worker.Value(weights) == Filled(6 * scale, value));
  }

  // Waits until all frames have passed that have no answer to wait for: SHARED, RELEASE.
  void Settle() { CHECK_OK(worker.Pull({count}, false)); }
  // The bytes that `run` and a Settle take.
  std::array<uint64_t, 2> BytesOf(const std::function<void()>& run) {
    Settle();
    proxy.Arm(Proxy::kToServer, 0, Proxy::Fault::kNone);
    run();
    Settle();
    return {proxy.passed(Proxy::kToServer), proxy.passed(Proxy::kToClient)};
  }

  const size_t scale;
  std::unique_ptr<ps::Server> server, other;
  Proxy proxy;
  Worker worker;
  int split = -1, count = -1, weights = -1;
  int64_t steps = 0;
};

// A part of the positions is tried: each call begins at another one.
void TestCutAtEveryByteOfAStep(bool in_place, size_t scale, int first) {
  Route route(AsyncJob(2), scale);
  route.worker.in_place = in_place;
  const auto of_settling = route.BytesOf([] {});
  const auto of_step = route.BytesOf([&] {
    Ending whole = route.StartStep();
    route.ExpectStep(whole);
  });
  int cuts = 0;
  for (const Proxy::Direction direction : kDirections) {
    const uint64_t bytes = of_step[direction] - of_settling[direction];
    CHECK((bytes > 100 && bytes < 1000));
    for (uint64_t at = first % share; at < bytes; at += share) {
      route.Settle();
      route.proxy.Arm(direction, at, Proxy::Fault::kCut);
      Ending pull = route.StartStep();
      CHECK(route.worker.client().WaitForLost(kPatience) == 0);
      ++cuts;
      route.Connect();
      route.ExpectStep(pull);
      route.Settle();
      route.proxy.Arm(direction, 0, Proxy::Fault::kNone);
      Ending next = route.StartStep();
      route.ExpectStep(next);
    }
  }
  CHECK(route.worker.client().WaitForLost(0) == -1);
  const ps::ClientStats stats = route.worker.client().stats();
  CHECK(stats.reconnections == static_cast<uint64_t>(cuts));
  CHECK(stats.pushes == static_cast<uint64_t>(route.steps));
  CHECK(route.server->stats().pushes == static_cast<uint64_t>(route.steps));
  CHECK(route.other->stats().pushes == static_cast<uint64_t>(route.steps));
  CHECK(route.server->stats().repeated_pushes > 0);
}

// An edit whose connection breaks is sent again, and carried out once: a later edit by another
// worker is not overwritten.
TEST_CASE("cut of an edit") {
  const auto server = StartServer(AsyncJob(2));
  Proxy proxy(server->port());
  Worker unlucky(0, 2), other(1, 2);
  const auto connect = [&] { REQUIRE_OK(unlucky.Connect(0, proxy.port(), server->incarnation())); };
  connect();
  other.Connect(*server);
  ps::TableConfig config;
  int table = -1;
  for (Worker* worker : {&unlucky, &other}) {
    table = worker->client().tables().Add("t", config);
    REQUIRE_OK(Call([&](ps::Done done) { worker->client().tables().Create(table, done); }));
  }
  const auto edit = [&](Worker& worker, float value) {
    return Start([&](ps::Done done) {
      const int64_t id = 3;
      ps::TableEdit edit;
      edit.kind = ps::EditKind::kUpsert;
      edit.count = 1;
      edit.ids = &id;
      edit.content = &value;
      worker.client().tables().Edit(table, edit, 1, std::move(done));
    });
  };
  const auto value = [&] {
    float row = 0;
    uint8_t found = 0;
    CHECK_OK(Call([&](ps::Done done) {
      other.client().tables().Find(table, {3}, {&found, &row, nullptr}, std::move(done));
    }));
    return row;
  };
  proxy.Arm(Proxy::kToServer, 0, Proxy::Fault::kNone);
  Ending whole = edit(unlucky, 1);
  CHECK_OK(Wait(whole));
  uint64_t edits = 1;
  float expected = 0;
  for (const Proxy::Direction direction : kDirections) {
    const uint64_t bytes = proxy.passed(direction);
    CHECK((bytes > 30 && bytes < 200));
    for (uint64_t at = direction; at < bytes; at += share) {
      proxy.Arm(direction, at, Proxy::Fault::kCut);
      Ending cut = edit(unlucky, 100 + ++expected);
      CHECK(unlucky.client().WaitForLost(kPatience) == 0);
      ++edits;
      const bool is_done = server->stats().edits == edits;
      CHECK(is_done == (direction == Proxy::kToClient));
      if (is_done) {
        Ending next = edit(other, -expected);
        CHECK_OK(Wait(next));
        ++edits;
      }
      connect();
      CHECK_OK(Wait(cut));
      CHECK(value() == (is_done ? -expected : 100 + expected));
      CHECK(server->stats().edits == edits);
      proxy.Arm(direction, 0, Proxy::Fault::kNone);
      Ending again = edit(unlucky, 1);
      CHECK_OK(Wait(again));
      ++edits;
    }
  }
}

TEST_CASE("cut while connecting again") {
  Route route(AsyncJob(2));
  const auto of_settling = route.BytesOf([] {});
  auto bytes = route.BytesOf([&] { CHECK_OK(route.TryToConnect()); });
  for (const Proxy::Direction direction : kDirections) {
    // The SHARED of both sides comes later.
    bytes[direction] -=
        of_settling[direction] + EncodeFrame(FrameType::kShared, Encode(Sharing{})).size();
    CHECK((bytes[direction] > 100 && bytes[direction] < 1000));
    for (uint64_t at = 0; at < bytes[direction]; at += 3 * share) {
      route.proxy.Arm(Proxy::kToClient, 10, Proxy::Fault::kCut);
      Ending pull = route.StartStep();
      CHECK(route.worker.client().WaitForLost(kPatience) == 0);
      route.proxy.Arm(direction, at, Proxy::Fault::kCut);
      const Status status = route.TryToConnect();
      CHECK_STATUS(status, StatusCode::kUnavailable);
      CHECK_CONTAINS(status.message(), "cannot connect to ps 0 (127.0.0.1:");
      CHECK(route.worker.client().WaitForLost(0) == -1);  // it was not connected
      route.Connect();
      route.ExpectStep(pull);
      route.Settle();
    }
  }
}

// Synchronous steps of two workers, one of which loses its connection repeatedly.
TEST_CASE("cut of a synchronous worker") {
  const auto server = StartServer(SyncJob(2));
  Proxy proxy(server->port());
  Worker unlucky(0, 2), other(1, 2);
  const auto connect = [&] { REQUIRE_OK(unlucky.Connect(0, proxy.port(), server->incarnation())); };
  connect();
  other.Connect(*server);
  const int a = unlucky.Make<float>("a", {0, 0, 0});
  CHECK((other.Make<float>("a", {0, 0, 0}) == a));
  REQUIRE_OK(unlucky.BindSgd({a}));
  CHECK_OK(unlucky.Pull({a}));
  CHECK_OK(other.Pull({a}));
  constexpr uint64_t kBytes = 90;  // of a step there are more, either way
  float expected = 0;
  for (const Proxy::Direction direction : kDirections) {
    for (uint64_t at = 0; at < kBytes; at += share) {
      proxy.Arm(direction, at, Proxy::Fault::kCut);
      expected -= 3;
      unlucky.Stage(a, Filled(3, 1.0f));
      CHECK_OK(unlucky.PushStaged());
      Ending held_back = unlucky.StartPull({a});
      if (direction == Proxy::kToServer) {
        CHECK(unlucky.client().WaitForLost(kPatience) == 0);
        if (at / share % 2 == 0) connect();
      }
      other.Stage(a, Filled(3, 2.0f));
      CHECK_OK(other.PushStaged());
      Ending of_other = other.StartPull({a});
      if (direction == Proxy::kToClient) CHECK(unlucky.client().WaitForLost(kPatience) == 0);
      if (direction == Proxy::kToClient || at / share % 2 != 0) connect();
      CHECK_OK(Wait(held_back));
      CHECK_OK(Wait(of_other));
      CHECK((unlucky.Value(a) == Filled(3, expected) && other.Value(a) == Filled(3, expected)));
    }
  }
  CHECK(server->stats().dropped_pushes == 0);
}

// A malformed answer is a broken connection.
TEST_CASE("malformed answers") {
  Route route(AsyncJob(2));
  // Of the header of the answer to a push: magic, type, payload size, number.
  for (const uint64_t at : {0, 3, 4, 16, 20, 24, 31}) {
    route.proxy.Arm(Proxy::kToClient, at, Proxy::Fault::kFlip);
    Ending pull = route.StartStep();
    CHECK(route.worker.client().WaitForLost(kPatience) == 0);
    route.Connect();
    route.ExpectStep(pull);
    route.Settle();
  }
  CHECK(route.server->stats().repeated_pushes == 7);
}

TEST_CASE("giving up") {
  Route route(AsyncJob(2));
  route.proxy.Arm(Proxy::kToServer, 0, Proxy::Fault::kCut);
  Ending pull = route.StartStep();
  CHECK(route.worker.client().WaitForLost(kPatience) == 0);
  CHECK(StillRuns(pull, 0.05));
  const Status why(StatusCode::kUnavailable, "ps 0 does not come back");
  route.worker.client().GiveUp(0, why);
  const Status status = Wait(pull);
  CHECK_STATUS(status, StatusCode::kUnavailable);
  CHECK(status.message() == "ps 0 does not come back");
  CHECK_STATUS(route.TryToConnect(), StatusCode::kUnavailable);
  CHECK_STATUS(route.worker.Pull({route.count}, false), StatusCode::kUnavailable);
  CHECK(route.worker.client().WaitForLost(0) == -1);
}

// A connected server that does not answer, or stops in an answer.
TEST_CASE("silence") {
  const auto server = StartServer(AsyncJob(2));
  Proxy proxy(server->port());
  Worker worker(0, 2, 1, 0.3, 0, false);  // all values pass the proxy
  const auto connect = [&] { REQUIRE_OK(worker.Connect(0, proxy.port(), server->incarnation())); };
  connect();
  const int a = worker.Make("a", Filled(100000, 1.0f));
  CHECK_OK(worker.Pull({a}));
  // In the answer to a push; in a value, after which a later answer could not be parsed.
  for (const uint64_t at : {0, 100000}) {
    worker.in_place = at > 0;
    proxy.Arm(Proxy::kToClient, at, Proxy::Fault::kStall);
    CHECK_OK(worker.Push<float>({{a, Filled(100000, 2.0f + static_cast<float>(at))}}));
    const Status status = worker.Pull({a});
    CHECK_STATUS(status, StatusCode::kDeadlineExceeded);
    CHECK_CONTAINS(status.message(), at == 0 ? "ps 0: no answer to a push within 0.3 s"
                                             : "ps 0: no answer to a pull of 1 parameters");
    // A new connection tells the server that this worker has abandoned its step.
    CHECK(worker.client().WaitForLost(kPatience) == 0);
    connect();
    CHECK_OK(worker.Pull({a}));
    CHECK(worker.Value(a) == Filled(100000, 2.0f + static_cast<float>(at)));
  }
  proxy.Arm(Proxy::kToServer, 0, Proxy::Fault::kStall);
  CHECK_OK(worker.Push<float>({{a, Filled(100000, 0.0f)}}));
  const Status status = worker.client().Flush(0.1);
  CHECK_STATUS(status, StatusCode::kDeadlineExceeded);
  CHECK_CONTAINS(status.message(), "no answer to a push within 0.1 s from ps 0");
}

TEST_CASE("cut at every byte of a step") {
  for (const size_t scale : {1, 4000}) {
    TestCutAtEveryByteOfAStep(false, scale, scale == 1 ? 0 : 2);
    TestCutAtEveryByteOfAStep(true, scale, scale == 1 ? 4 : 6);
  }
}

}  // namespace
}  // namespace tfdist::testing::ps_client_reconnect_test
