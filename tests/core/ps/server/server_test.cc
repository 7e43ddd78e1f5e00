// One parameter server, and workers that write messages by hand: shards, updates, errors,
// snapshots.
#include "ps/raw_ps_worker.h"

namespace tfdist::testing::ps_server_server_test {
namespace {

Floats Ramp(size_t count, float scale) {
  Floats values(count);
  for (size_t i = 0; i < count; ++i) values[i] = scale * static_cast<float>(i + 1);
  return values;
}

Server::Event NextEvent(Server& server) {
  Server::Event event;
  CHECK(server.WaitForEvent(20, &event));
  return event;
}

TEST_CASE("create and pull") {
  auto server = StartServer(Options(Mode::kAsync, 2));
  RawPsWorker first(*server, 0), second(*server, 1);
  const uint32_t kernel = first.Create("kernel", Ramp(6, 1));
  const uint32_t bias = first.Create("bias", Ramp(2, 10));
  const uint32_t big = first.Create("big", Ramp(700000, 0.5));  // its block grows while it arrives
  CHECK(second.Create("kernel", Ramp(6, -1)) == kernel);        // the first value wins
  CHECK(second.Create("bias", DType::kFloat32, 2, "") == bias);
  CHECK(second.Create("other", DType::kFloat32, 2, "") == kNoShard);
  CHECK(second.Value(kernel) == Ramp(6, 1));
  CHECK(second.Value(big) == Ramp(700000, 0.5));
  second.versions.clear();
  const std::string both = second.Pull({bias, kernel});
  CHECK(both == Raw(Ramp(2, 10)) + Raw(Ramp(6, 1)));
  CHECK((second.versions[kernel] == 1 && second.versions[bias] == 1));
  CHECK(second.Pull({bias, kernel}).empty());
  first.Push(bias, UpdateKind::kDelta, Floats{1, 2});
  CHECK(second.Pull({bias, kernel}) == Raw(Floats{11, 22}));
  CHECK((second.versions[kernel] == 1 && second.versions[bias] == 2));
  first.Ask(MessageType::kSet, Encode(SetRequest{{kernel, bias}}),
            Raw(Ramp(6, 3)) + Raw(Ramp(2, 4)));
  CHECK(second.Pull({kernel, bias}) == Raw(Ramp(6, 3)) + Raw(Ramp(2, 4)));
  const ServerStats stats = server->stats();
  CHECK((stats.shards == 3 && stats.value_bytes == 4 * (6 + 2 + 700000)));
  CHECK((stats.pushes == 1 && stats.broken_requests == 0 && stats.connections == 2));
}

TEST_CASE("updates") {
  auto server = StartServer(Options(Mode::kAsync, 2));
  RawPsWorker first(*server, 0), second(*server, 1);
  const uint32_t w = first.Create("w", Floats{1, 2, 3});
  const uint32_t n = first.Create("n", DType::kInt64, 1, Raw(std::vector<int64_t>{5}));
  const uint32_t b = first.Create("b", DType::kBytes, 3, "abc");
  first.Bind(Sgd(), w);
  CHECK(!first.Push(w, UpdateKind::kGradient, Floats{1, 2, 4}, 0.5));
  CHECK(first.Value(w) == Floats({0.5, 1, 1}));
  CHECK(!second.Push(w, UpdateKind::kGradient, Floats{4, 4, 4}, 0.25));
  CHECK(first.Value(w) == Floats({-0.5, 0, 0}));
  first.Push(w, UpdateKind::kAssign, Floats{7, 8, 9});
  second.Push(n, UpdateKind::kDelta, std::vector<int64_t>{-2});
  first.Push(first.NewPush({{b, UpdateKind::kAssign, 0, 0, 0}}), "xyz");
  CHECK(second.Value(w) == Floats({7, 8, 9}));
  CHECK(Values<int64_t>(second.Pull({n})) == std::vector<int64_t>{3});
  CHECK(second.Pull({b}) == "xyz");
  // All in one push. The assignment is applied before the gradient, though it is listed later.
  PushRequest push = first.NewPush({{w, UpdateKind::kGradient, 1, 0, 0},
                                    {n, UpdateKind::kDelta, 0, 0, 0},
                                    {w, UpdateKind::kAssign, 0, 0, 0}});
  push.steps.push_back({2, 1});
  first.Push(push, Raw(Floats{1, 2, 3}) + Raw(std::vector<int64_t>{10}) + Raw(Floats{1, 1, 1}));
  CHECK(second.Value(w) == Floats({-1, -3, -5}));
  CHECK(Values<int64_t>(second.Pull({n})) == std::vector<int64_t>{13});
}

TEST_CASE("slots") {
  auto server = StartServer(Options(Mode::kAsync, 1));
  RawPsWorker worker(*server, 0);
  const uint32_t w = worker.Create("w", Floats{1, 2});
  const uint32_t m = worker.Create("w/momentum", Floats{0, 1});
  OptimizerConfig momentum;
  momentum.momentum = 0.5;
  worker.Bind(momentum, w, {m});
  worker.Push(w, UpdateKind::kGradient, Floats{4, 8}, 0.25);
  CHECK(worker.Value(m) == Floats({-1, -1.5}));  // momentum * m - learning rate * g
  CHECK(worker.Value(w) == Floats({0, 0.5}));
  worker.Push(w, UpdateKind::kGradient, Floats{0, 0}, 0.25);
  CHECK(worker.Value(m) == Floats({-0.5, -0.75}));
  CHECK(worker.Value(w) == Floats({-0.5, -0.25}));
  worker.Bind(Sgd(), w, {}, 0.5);  // now with a weight decay
  worker.Push(w, UpdateKind::kGradient, Floats{1, 1}, 0.5);
  CHECK(worker.Value(w) == Floats({-0.5f * 0.75f - 0.5f, -0.25f * 0.75f - 0.5f}));
}

// Each push of a process is applied once, in increasing order.
TEST_CASE("repeated pushes") {
  auto server = StartServer(Options(Mode::kAsync, 2));
  RawPsWorker first(*server, 0), second(*server, 1);
  const uint32_t w = first.Create("w", Floats{0});
  const PushRequest push = first.NewPush({{w, UpdateKind::kDelta, 0, 0, 0}});
  for (int i = 0; i < 3; ++i) CHECK(!first.Push(push, Raw(Floats{1})));
  CHECK(first.Value(w) == Floats{1});
  second.sequence = 4;
  second.Push(w, UpdateKind::kDelta, Floats{10});
  second.sequence = 2;  // older than the last one
  second.Push(w, UpdateKind::kDelta, Floats{100});
  CHECK(first.Value(w) == Floats{11});
  CHECK((server->stats().pushes == 2 && server->stats().repeated_pushes == 3));
  {
    RawPsWorker again(*server, 0);  // the same process: its pushes count as applied
    CHECK(!again.Push(push, Raw(Floats{1})));
    first.peer().AwaitClose();  // each worker has one connection
    CHECK(again.Value(w) == Floats{11});
  }
  RawPsWorker restarted(*server, 0, 7);
  CHECK(!restarted.Push(push, Raw(Floats{1})));
  CHECK(restarted.Value(w) == Floats{12});
}

template <typename Message>
std::string ErrorOf(RawPsWorker& worker, MessageType type, const Message& message,
                    const std::string& payload = "") {
  const RawAnswer answer = worker.Try(type, Encode(message), payload);
  CHECK((answer.status.code() == StatusCode::kInvalidArgument && answer.payload.empty()));
  CHECK_CONTAINS(answer.status.message(), "parameter server 0, asked by worker 1: ");
  return answer.status.message();
}

// An impossible request is answered with an error, and has no effect.
TEST_CASE("impossible requests") {
  auto server = StartServer(Options(Mode::kAsync, 2));
  RawPsWorker worker(*server, 1);
  const uint32_t w = worker.Create("w", Floats{1, 2, 3, 4}), v = worker.Create("v", Floats{5});
  const uint32_t n = worker.Create("n", DType::kInt64, 4, std::string(32, '\0'));
  const uint32_t b = worker.Create("b", DType::kBytes, 1, "x");
  worker.Bind(Sgd(), w);
  CHECK_CONTAINS(
      ErrorOf(worker, MessageType::kCreate,
              CreateRequest{{{"new", DType::kFloat32, 1, true}, {"w", DType::kFloat64, 4, true}}},
              std::string(36, '\0')),
      "shard 'w': expected float32[4], as it was created, received float64[4]");
  CHECK(worker.Create("new", DType::kFloat32, 1, "") == kNoShard);
  CHECK_CONTAINS(ErrorOf(worker, MessageType::kCreate,
                         CreateRequest{{{std::string(1025, 'x'), DType::kFloat32, 1, false}}}),
                 "has 1025 bytes, the limit is 1024");
  CHECK_CONTAINS(ErrorOf(worker, MessageType::kPull, PullRequest{true, {{99, 0}}}), "no shard 99");
  CHECK_CONTAINS(ErrorOf(worker, MessageType::kSet, SetRequest{{w, 99}}, std::string(300000, 'x')),
                 "no shard 99");
  const auto bind = [&](uint32_t shard, std::vector<uint32_t> slots, const std::string& expected) {
    OptimizerConfig momentum;
    momentum.momentum = 0.5;
    const BindRequest request{momentum, {{shard, std::move(slots), 0}}};
    CHECK_CONTAINS(ErrorOf(worker, MessageType::kBind, request), expected);
  };
  bind(99, {}, "no shard 99");
  bind(w, {}, "has 1 slots, received 0");
  bind(w, {99}, "no shard 99 to be its slot");
  bind(w, {v}, "expected a slot of float32[4], received 'v' of float32[1]");
  bind(w, {w}, "can be only one of its value and its slots");
  bind(n, {w}, "expected float32 or float64 to run an optimizer on, received int64[4]");

  const uint64_t before = worker.sequence;
  const auto push = [&](std::vector<PushRequest::Entry> entries, size_t bytes,
                        const std::string& expected) {
    // The first entry is possible.
    entries.insert(entries.begin(), {w, UpdateKind::kDelta, 0, 0, 0});
    CHECK_CONTAINS(ErrorOf(worker, MessageType::kPush, worker.NewPush(std::move(entries)),
                           std::string(16 + bytes, '\1')),
                   expected);
    worker.sequence = before;
  };
  push({{99, UpdateKind::kDelta, 0, 0, 0}}, 4, "no shard 99");
  push({{v, UpdateKind::kGradient, 0, 0, 0}}, 4, "'v' (float32[1]) received a gradient, but no");
  push({{n, UpdateKind::kGradient, 0, 0, 0}}, 32, "'n' (int64[4]) received a gradient, but no");
  push({{b, UpdateKind::kDelta, 0, 0, 0}}, 1, "'b' (bytes[1]) has no numbers to add to");
  push({{w, UpdateKind::kRows, 0, 1, 3}}, 20, "has no rows of 3 elements");
  push({{w, UpdateKind::kRows, 0, 1, 0}}, 8, "has no rows of 0 elements");
  push({{w, UpdateKind::kRows, 0, 1, 2}}, 16, "expected row numbers from 0 to 1, received 72");
  CHECK(worker.Value(w) == Floats({1, 2, 3, 4}));
  CHECK((worker.versions[w] == 1 && server->stats().pushes == 0));
  CHECK((server->stats().broken_requests == 0 && server->stats().connections == 1));
  worker.Push(w, UpdateKind::kDelta, Floats{1, 1, 1, 1});  // its sequence number is still unused
  CHECK(worker.Value(w) == Floats({2, 3, 4, 5}));
}

TEST_CASE("rows") {
  auto server = StartServer(Options(Mode::kAsync, 1));
  RawPsWorker worker(*server, 0);
  const uint32_t w = worker.Create("w", Ramp(8, 1)), d = worker.Create("d", Ramp(8, 1));
  const uint32_t m = worker.Create("m", Floats(8, 2));
  OptimizerConfig momentum;
  momentum.momentum = 0.5;
  worker.Bind(Sgd(), w);
  worker.Bind(momentum, d, {m});
  const Floats rows = {1, 2, 10, 20, 100, 200};  // rows 3, 1, 3
  worker.PushRows(w, {3, 1, 3}, rows, 1);
  CHECK(worker.Value(w) == Floats({1, 2, 3 - 10, 4 - 20, 5, 6, 7 - 101, 8 - 202}));
  worker.PushRows(d, {3, 1, 3}, rows, 1);  // the others change too, by their momentum
  CHECK(worker.Value(m) == Floats({1, 1, 1 - 10, 1 - 20, 1, 1, 1 - 101, 1 - 202}));
  CHECK(worker.Value(d) == Floats({2, 3, 4 - 10, 5 - 20, 6, 7, 8 - 101, 9 - 202}));
  worker.PushRows(w, {}, {}, 1);
  CHECK(worker.Value(w)[6] == 7 - 101);
  // Adagrad: the gradients of a repeated row are added up first.
  OptimizerConfig adagrad;
  adagrad.kind = OptimizerKind::kAdagrad;
  const uint32_t a = worker.Create("a", Floats(4, 1)), s = worker.Create("s", Floats(4, 0));
  worker.Bind(adagrad, a, {s});
  worker.PushRows(a, {1, 1}, {1, 2, 2, 2}, 0.5);
  CHECK(worker.Value(s) == Floats({0, 0, 9, 16}));
  CHECK(worker.Value(a) == Floats({1, 1, 0.5, 0.5}));
}

// A snapshot is of one moment, does not change, and restores another server to that moment.
TEST_CASE("snapshot") {
  auto server = StartServer(Options(Mode::kAsync, 2));
  RawPsWorker first(*server, 0), second(*server, 1);
  const uint32_t w = first.Create("w", Floats{1, 2}), n = first.Create("n", Floats{9});
  first.Push(w, UpdateKind::kDelta, Floats{1, 1});
  const PushRequest last = second.NewPush({{w, UpdateKind::kDelta, 0, 0, 0}});
  second.Push(last, Raw(Floats{10, 10}));
  const ServerSnapshot snapshot = server->TakeSnapshot();
  first.Push(w, UpdateKind::kDelta, Floats{100, 100});
  first.Push(n, UpdateKind::kAssign, Floats{8});
  CHECK((first.Value(w) == Floats({112, 113}) && first.Value(n) == Floats{8}));
  CHECK((snapshot.shards.size() == 2 && snapshot.shards[0].name == "w" &&
         snapshot.shards[1].name == "n"));
  CHECK(Values<float>({snapshot.shards[0].block->data(), 8}) == Floats({12, 13}));
  CHECK(Values<float>({snapshot.shards[1].block->data(), 4}) == Floats{9});

  auto next = StartServer(Options(Mode::kAsync, 2), snapshot);
  CHECK(next->incarnation() != server->incarnation());
  RawPsWorker again(*next, 1);
  const uint32_t again_w = again.Create("w", DType::kFloat32, 2, "");
  CHECK(again.Value(again_w) == Floats({12, 13}));
  CHECK(!again.Push(last, Raw(Floats{10, 10})));  // is in the snapshot
  CHECK((next->stats().repeated_pushes == 1 && again.Value(again_w) == Floats({12, 13})));

  std::unique_ptr<Server> other;
  REQUIRE_OK(Server::Create(Options(Mode::kAsync, 2), "", 0, true, &other));
  ServerSnapshot broken = snapshot;
  broken.progress.resize(4);
  CHECK_CONTAINS(other->Restore(broken).message(), "does not make sense: 4 numbers");
  REQUIRE_OK(Server::Create(Options(Mode::kAsync, 2), "", 0, true, &other));
  broken = snapshot;
  broken.shards[1].elements = 2;
  CHECK_CONTAINS(other->Restore(broken).message(), "'n': float32[2] does not fit 4 bytes");
}

TEST_CASE("events") {
  auto server = StartServer(Options(Mode::kAsync, 3));
  using Kind = Server::Event::Kind;
  auto first = std::make_unique<RawPsWorker>(*server, 0);
  Server::Event event = NextEvent(*server);
  CHECK((event.kind == Kind::kCame && event.worker == 0));
  RawPsWorker second(*server, 2);
  event = NextEvent(*server);
  CHECK((event.kind == Kind::kCame && event.worker == 2));
  second.Leave();
  event = NextEvent(*server);
  CHECK((event.kind == Kind::kLeft && event.worker == 2));
  first.reset();
  event = NextEvent(*server);
  CHECK((event.kind == Kind::kLost && event.worker == 0 && !event.text.empty()));
  CHECK(!server->WaitForEvent(0, &event));
  CHECK(Eventually([&] { return server->stats().connections == 1; }));
  std::thread closing([&] { server->Close(); });
  CHECK(!server->WaitForEvent(20, &event));
  closing.join();
  second.peer().AwaitClose();
}

}  // namespace
}  // namespace tfdist::testing::ps_server_server_test
