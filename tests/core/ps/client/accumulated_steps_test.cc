// Workers that push every n_push steps and fetch every n_fetch steps.
#include "core/ps/client/operations/accumulated_steps.h"

#include "ps/worker.h"

namespace tfdist::testing::ps_client_accumulated_steps_test {
namespace {

using Floats = std::vector<float>;
using ps::TaskCommit;

Worker Downpour(int rank, int workers, int n_push, int n_fetch) {
  return Worker(rank, workers, 1, kPatience, 0, true, n_push, n_fetch);
}

// The value that another worker sees.
Floats Seen(Worker* other, int parameter) {
  CHECK_OK(other->Pull({parameter}, false));
  return other->Value(parameter);
}

TEST_CASE("gradients") {
  const auto server = StartServer(AsyncJob(2));
  Worker worker = Downpour(0, 2, 2, 4), other(1, 2);
  worker.Connect(*server);
  other.Connect(*server);
  const int a = worker.Make<float>("a", {0, 0}), rows = worker.Make<float>("rows", {0, 0, 0});
  CHECK((other.Make<float>("a", {0, 0}) == a && other.Make<float>("rows", {0, 0, 0}) == rows));
  REQUIRE_OK(worker.BindSgd({a, rows}));
  const auto step = [&](float gradient, std::vector<int64_t> indices, Floats values) {
    CHECK_OK(worker.Pull({a, rows}));
    worker.Stage(a, {gradient, -gradient});
    ps::Gradient some;
    some.parameter = rows;
    some.rows = std::move(indices);
    some.values = Hold(std::move(values));
    some.width = 1;
    worker.client().parameters().Stage({1, 1}, {some});
    CHECK_OK(worker.PushStaged());
    CHECK_OK(worker.client().Flush(kPatience));
  };
  step(1, {0, 2}, {1, 2});
  CHECK(
      (!worker.allocated.empty() || worker.client().stats().pulls == 1));  // the first step fetches
  CHECK((Seen(&other, a) == Floats({0, 0}) && worker.client().stats().pushes == 0));
  step(2, {2, 1}, {10, 20});
  CHECK((Seen(&other, a) == Floats({-3, 3}) && Seen(&other, rows) == Floats({-1, -20, -12})));
  CHECK(worker.client().stats().pushes == 1);
  step(4, {}, {});
  CHECK(worker.Value(a) == Floats({0, 0}));  // not fetched since
  CHECK(Seen(&other, a) == Floats({-3, 3}));
  step(8, {0}, {1});
  CHECK((Seen(&other, a) == Floats({-15, 15}) && Seen(&other, rows) == Floats({-2, -20, -12})));
  CHECK(worker.client().stats().pulls == 1);
  step(16, {}, {});
  CHECK((worker.client().stats().pulls == 2 && worker.Value(a) == Floats({-15, 15})));
  // The remaining steps are pushed before a read, and before the worker leaves.
  CHECK(Seen(&worker, a) == Floats({-31, 31}));
  CHECK(worker.client().stats().pushes == 3);
  step(1, {}, {});
  CHECK_OK(worker.client().Leave(kPatience));
  CHECK(Seen(&other, a) == Floats({-32, 32}));
}

// The worker's own optimizer changes its values: their change since the last push is sent.
TEST_CASE("deltas") {
  const auto server = StartServer(AsyncJob(2));
  Worker worker = Downpour(0, 2, 2, 2), other(1, 2);
  worker.Connect(*server);
  other.Connect(*server);
  const int a = worker.Make<float>("a", {0});
  CHECK((other.Make<float>("a", {0}) == a));
  CHECK_OK(worker.Pull({a}));
  CHECK_OK(worker.Push<float>({{a, {1}}}));
  CHECK_OK(other.Pull({a}));
  CHECK_OK(other.Push<float>({{a, {100}}}));
  CHECK_OK(worker.Pull({a}));  // does nothing
  CHECK_OK(worker.Push<float>({{a, {3}}}));
  CHECK_OK(other.client().Flush(kPatience));
  CHECK_OK(worker.client().Flush(kPatience));
  CHECK(Seen(&other, a) == Floats{103});
  CHECK_OK(worker.Pull({a}));
  CHECK(worker.Value(a) == Floats{103});
  CHECK_OK(worker.Push<float>({{a, {104}}}));
  CHECK_OK(worker.client().parameters().PushAccumulated());
  CHECK_OK(worker.client().parameters().PushAccumulated());  // nothing is left
  CHECK_OK(worker.client().Flush(kPatience));
  CHECK((Seen(&other, a) == Floats{104} && worker.client().stats().pushes == 2));
}

// A push within a step, whose gradients stay until the step ends.
TEST_CASE("step of two parts") {
  const auto server = StartServer(AsyncJob(1));
  Worker worker = Downpour(0, 1, 2, 2);
  worker.Connect(*server);
  const int a = worker.Make<float>("a", {0});
  REQUIRE_OK(worker.BindSgd({a}));
  for (int step = 0; step < 2; ++step) {
    CHECK_OK(worker.Pull({a}));
    worker.Stage(a, {1});
    CHECK_OK(Call(
        [&](ps::Done done) { worker.client().parameters().Push({}, done, /*ends_step=*/false); }));
    CHECK_OK(worker.Pull({a}));
    worker.Stage(a, {10});
    CHECK_OK(worker.PushStaged());
  }
  // The gradients of a step that failed before its push are forgotten.
  CHECK_OK(worker.Pull({a}));
  CHECK(worker.Value(a) == Floats{-22});
  worker.Stage(a, {1000});
  CHECK_OK(worker.Pull({a}));
  worker.Stage(a, {1});
  CHECK_OK(worker.PushStaged());
  CHECK(Seen(&worker, a) == Floats{-23});
}

TEST_CASE("commits") {
  const auto server = StartServer(AsyncJob(1));
  Worker worker = Downpour(0, 1, 3, 3);
  worker.Connect(*server);
  const int a = worker.Make<float>("a", {0});
  REQUIRE_OK(worker.BindSgd({a}));
  server->tasks().Open(1, "a", 0);
  server->tasks().Open(2, "b", 0);
  const auto train = [&](std::vector<TaskCommit> batch) {
    worker.client().commits().tasks().Add(7, std::move(batch));
    worker.client().commits().tasks().BeginSteps(7, 1);
    CHECK_OK(worker.Pull({a}));
    worker.Stage(a, {1});
    CHECK_OK(worker.PushStaged());
    CHECK_OK(worker.client().Flush(kPatience));
  };
  // One push commits the records of its three steps.
  train({{1, 0, 4}});
  train({{1, 4, 6}, {2, 0, 2}});
  CHECK(server->tasks().Advance(1, 0) == 0);
  train({{2, 2, 6}});
  CHECK((server->tasks().Advance(1, 0) == 6 && server->tasks().Advance(2, 0) == 6));
  CHECK(Seen(&worker, a) == Floats{-3});
  // Another worker has got task 1: nothing of the push is applied.
  CHECK(server->tasks().Close(1, false) == 6);
  train({{2, 6, 8}});
  train({{1, 6, 8}});
  train({{2, 8, 10}});
  CHECK((server->tasks().Advance(2, 0) == 6 && worker.client().stats().refused_pushes == 1));
  CHECK(Seen(&worker, a) == Floats{-3});
  std::vector<uint64_t> leases;
  CHECK(worker.client().commits().tasks().TakeRefused(&leases) == 1);
  CHECK((leases == std::vector<uint64_t>({2, 1}) || leases == std::vector<uint64_t>({1, 2})));
  // The step after a refusal fetches.
  const uint64_t pulls = worker.client().stats().pulls;
  train({});
  CHECK(worker.client().stats().pulls == pulls + 1);
  CHECK(Seen(&worker, a) == Floats{-4});
  // Known to be lost: no step of the push is sent, and task 3 is given back as well.
  server->tasks().Open(3, "c", 0);
  train({{3, 0, 2}});
  train({{2, 10, 12}});
  CHECK_OK(worker.client().parameters().PushAccumulated());
  CHECK((server->tasks().Advance(3, 0) == 0 && Seen(&worker, a) == Floats{-4}));
  worker.client().commits().tasks().TakeRefused(&leases);
  CHECK(leases == std::vector<uint64_t>{3});
}

TEST_CASE("options") {
  ps::ClientOptions options;
  options.n_push = 0;
  std::unique_ptr<ps::Client> none;
  CHECK_CONTAINS(ps::Client::Create(options, &none).message(), "n_push and n_fetch");
}

}  // namespace
}  // namespace tfdist::testing::ps_client_accumulated_steps_test
