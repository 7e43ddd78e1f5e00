// Servers that restart, with a snapshot or with nothing.
#include "proxy.h"
#include "ps/worker.h"

namespace tfdist::testing::ps_restart_test {
namespace {

using Floats = std::vector<float>;

// Ends the server, and starts the next one behind the proxy.
void Replace(std::unique_ptr<ps::Server>* server, Proxy* proxy, const ps::ServerOptions& options,
             const ps::ServerSnapshot& snapshot) {
  (*server)->Close();
  *server = StartServer(options, snapshot);
  proxy->Lead((*server)->port());
}

// A push reaches the server, but its answer does not reach the worker; the server is replaced.
void TestUnansweredPush(const ps::ServerOptions& options, bool saved_before) {
  auto server = StartServer(options);
  Proxy proxy(server->port());
  Worker worker(0, 2);
  const auto connect = [&] { REQUIRE_OK(worker.Connect(0, proxy.port(), server->incarnation())); };
  connect();
  const int a = worker.Make<float>("a", {1, 2});
  const int moment = worker.Make<float>("moment", {0, 0});
  ps::OptimizerConfig momentum;
  momentum.momentum = 1;
  REQUIRE_OK(Call([&](ps::Done done) {
    worker.client().parameters().Bind(momentum, {{a, {moment}, 0}}, std::move(done));
  }));
  CHECK_OK(worker.Pull({a}));
  for (const float expected : {0.0f, -2.0f}) {  // moments of -1 and -2
    worker.Stage(a, {1, 1});
    CHECK_OK(worker.PushStaged());
    CHECK_OK(worker.Pull({a}));
    CHECK(worker.Value(a)[0] == expected);
  }
  ps::ServerSnapshot snapshot = server->TakeSnapshot();
  proxy.Arm(Proxy::kToClient, 0, Proxy::Fault::kCut);
  worker.Stage(a, {1, 1});
  CHECK_OK(worker.PushStaged());
  Ending pull = worker.StartPull({a});
  CHECK(worker.client().WaitForLost(kPatience) == 0);
  CHECK(Eventually([&] { return server->stats().pushes == 3; }));
  if (!saved_before) snapshot = server->TakeSnapshot();
  Replace(&server, &proxy, options, snapshot);
  connect();
  CHECK_OK(Wait(pull));
  // Applied by the old server and saved, or by the new one, with the saved moment.
  CHECK(worker.Value(a) == Floats({-5, -4}));
  CHECK(server->stats().repeated_pushes == (saved_before ? 0 : 1));
  worker.Stage(a, {0, 0});
  CHECK_OK(worker.PushStaged());
  CHECK_OK(worker.Pull({a}));
  CHECK(worker.Value(a) == Floats({-8, -7}));
}

// The versions of another server are void, even if they are equal.
TEST_CASE("values of an older snapshot") {
  const ps::ServerOptions options = AsyncJob(1);
  auto server = StartServer(options);
  Proxy proxy(server->port());
  Worker worker(0);
  REQUIRE_OK(worker.Connect(0, proxy.port(), server->incarnation()));
  const int a = worker.Make<float>("a", {1, 2});
  const int b = worker.Make<float>("b", {3});
  CHECK_OK(worker.Pull({a, b}));
  const ps::ServerSnapshot snapshot = server->TakeSnapshot();
  CHECK_OK(worker.Push<float>({{a, {5, 6}}}));
  CHECK_OK(worker.Pull({a, b}));
  Replace(&server, &proxy, options, snapshot);
  CHECK(worker.client().WaitForLost(kPatience) == 0);
  REQUIRE_OK(worker.Connect(0, proxy.port(), server->incarnation()));
  CHECK_OK(worker.Pull({a, b}));
  CHECK((worker.Value(a) == Floats({1, 2}) && worker.Value(b) == Floats({3})));
  CHECK(worker.allocated.size() == 2);
}

// A synchronous job loses the steps since the snapshot, and continues from there.
TEST_CASE("synchronous job goes back") {
  const ps::ServerOptions options = SyncJob(2);
  auto server = StartServer(options);
  Proxy proxy(server->port());
  Worker first(0, 2), second(1, 2);
  int a = -1;
  REQUIRE_OK(first.Connect(0, proxy.port(), server->incarnation()));
  second.Connect(*server);
  for (Worker* worker : {&first, &second}) {
    a = worker->Make<float>("a", {0});
    REQUIRE_OK(worker->BindSgd({a}));
    CHECK_OK(worker->Pull({a}));
  }
  ps::ServerSnapshot snapshot;
  for (int step = 0; step < 3; ++step) {
    if (step == 1) snapshot = server->TakeSnapshot();
    for (Worker* worker : {&first, &second}) {
      worker->Stage(a, {-1});
      CHECK_OK(worker->PushStaged());
    }
    for (Worker* worker : {&first, &second}) CHECK_OK(worker->Pull({a}));
  }
  CHECK((first.Value(a)[0] == 6 && server->stats().clock == 3));
  // In step 3, the first worker has pushed and the second has not.
  first.Stage(a, {-1});
  CHECK_OK(first.PushStaged());
  CHECK_OK(first.client().Flush(kPatience));
  Ending pull = first.StartPull({a});
  Replace(&server, &proxy, options, snapshot);
  CHECK(first.client().WaitForLost(kPatience) == 0);
  CHECK(second.client().WaitForLost(kPatience) == 0);
  REQUIRE_OK(first.Connect(0, proxy.port(), server->incarnation()));
  second.Connect(*server);
  CHECK_OK(Wait(pull));  // of step 1
  CHECK(first.Value(a)[0] == 2);
  second.Stage(a, {-100});  // computed from lost values
  CHECK_OK(second.PushStaged());
  CHECK_OK(second.Pull({a}));
  CHECK((second.Value(a)[0] == 2 && second.client().stats().dropped_pushes == 1));
  for (int step = 1; step < 4; ++step) {
    for (Worker* worker : {&first, &second}) {
      worker->Stage(a, {-1});
      CHECK_OK(worker->PushStaged());
    }
    for (Worker* worker : {&first, &second}) {
      CHECK_OK(worker->Pull({a}));
      CHECK(worker->Value(a)[0] == 2 * static_cast<float>(step + 1));
    }
  }
}

// Parameters are created again from the worker's values, and optimizers are bound again.
TEST_CASE("server that has lost everything") {
  const ps::ServerOptions options = AsyncJob(2);
  auto server = StartServer(options);
  const auto other = StartServer(options);
  Proxy proxy(server->port());
  Worker worker(0, 2, 2);
  const auto connect = [&] { REQUIRE_OK(worker.Connect(0, proxy.port(), server->incarnation())); };
  connect();
  worker.Connect(*other, 1);
  const int split = worker.Add("split", {2, 1});
  const int slot = worker.Add("slot", {2, 1});
  CHECK_OK(worker.Create<float>(split, {1, 2, 3}));
  CHECK_OK(worker.Create<float>(slot, {0, 0, 0}));
  const int count = worker.Make<int64_t>("count", {int64_t{1} << 40}, DType::kInt64);
  const int never_pulled = worker.Make<float>("never pulled", {9});
  const int nothing = worker.Make<float>("nothing", {});
  const int taken = worker.Make<float>("taken", {7});
  const int namesake = worker.Make<float>("taken", {0});
  ps::OptimizerConfig momentum;
  momentum.momentum = 1;
  REQUIRE_OK(Call([&](ps::Done done) {
    worker.client().parameters().Bind(momentum, {{split, {slot}, 0}}, std::move(done));
  }));
  CHECK_OK(worker.Pull({split, slot, count, nothing, taken, namesake}));
  worker.Stage(split, {1, 1, 1});
  CHECK_OK(worker.Push<int64_t>({{count, {3}}}));
  CHECK_OK(worker.Pull({split, count}));
  worker.client().parameters().TakePulled(taken);

  Replace(&server, &proxy, options, {});
  CHECK(worker.client().WaitForLost(kPatience) == 0);
  connect();
  CHECK((server->stats().shards == 6 && other->stats().shards == 2));
  const std::vector<int> all = {split, count, never_pulled, nothing, taken, namesake};
  CHECK_OK(worker.Pull(all));
  CHECK((worker.Value(split) == Floats({0, 1, 2}) && worker.Value<int64_t>(count)[0] == 3));
  CHECK((worker.Value(never_pulled)[0] == 9 && worker.Value(taken)[0] == 7));
  // The moments of the first server are the last pulled ones, 0; the other's is -1.
  worker.Stage(split, {1, 1, 1});
  CHECK_OK(worker.PushStaged());
  CHECK_OK(worker.Pull({split}));
  CHECK(worker.Value(split) == Floats({-1, 0, 0}));

  // A worker cannot restore a value that it has handed over.
  worker.client().parameters().TakePulled(count);
  Replace(&server, &proxy, options, {});
  CHECK(worker.client().WaitForLost(kPatience) == 0);
  connect();
  const Status lost = worker.Pull(all);
  CHECK_STATUS(lost, StatusCode::kFailedPrecondition);
  CHECK_CONTAINS(lost.message(), "ps 0 has come back without 'count', and this worker has no");
  CHECK_OK(worker.Pull({split, never_pulled}));
  // Another worker may have one.
  REQUIRE_OK(worker.Create(count, std::vector<int64_t>{4}));
  CHECK_OK(worker.Pull(all));
  CHECK(worker.Value<int64_t>(count)[0] == 4);
}

// The server ends in the middle of a value, and restarts without it.
void TestTornValue(bool in_place) {
  const ps::ServerOptions options = AsyncJob(1);
  auto server = StartServer(options);
  Proxy proxy(server->port());
  Worker worker(0);
  worker.in_place = in_place;
  const auto connect = [&] { REQUIRE_OK(worker.Connect(0, proxy.port(), server->incarnation())); };
  connect();
  const int whole = worker.Make("whole", Filled(1000, 1.0f));
  const int torn = worker.Make("torn", Filled(1000, 1.0f));
  const int untouched = worker.Make("untouched", Filled(1000, 1.0f));
  const std::vector<int> all = {whole, torn, untouched};
  CHECK_OK(worker.Pull(all));
  // Another program sets parameters of the same names.
  Worker other(0, 1, 1, kPatience, 77);
  other.Connect(*server);
  for (const char* name : {"whole", "torn", "untouched"}) {
    const int id = other.Make(name, Filled(1000, 2.0f));
    CHECK_OK(Call([&](ps::Done done) {
      other.client().parameters().Set({{id, Hold(Filled(1000, 2.0f))}}, std::move(done));
    }));
  }
  connect();  // the server is connected to one process of each rank
  proxy.Arm(Proxy::kToClient, 6001, Proxy::Fault::kCut);
  Ending pull = worker.StartPull(all);
  CHECK(worker.client().WaitForLost(kPatience) == 0);
  Replace(&server, &proxy, options, {});
  connect();
  const Status status = Wait(pull);
  if (in_place) {
    CHECK_STATUS(status, StatusCode::kFailedPrecondition);
    CHECK_CONTAINS(status.message(), "without 'torn', and this worker has no whole value of it");
    CHECK_OK(worker.Pull({whole, untouched}));
    CHECK(worker.Value(whole) == Filled(1000, 2.0f));
  } else {
    CHECK_OK(status);
    CHECK(worker.Value(whole) == Filled(1000, 1.0f));
    CHECK(worker.Value(torn) == Filled(1000, 1.0f));
  }
  CHECK(worker.Value(untouched) == Filled(1000, 1.0f));
}

TEST_CASE("unanswered push") {
  for (const bool saved_before : {false, true}) {
    TestUnansweredPush(AsyncJob(2), saved_before);
  }
}

TEST_CASE("torn value") {
  TestTornValue(false);
  TestTornValue(true);
}

}  // namespace
}  // namespace tfdist::testing::ps_restart_test
