// Clients and real servers: pulls and pushes.
#include <numeric>

#include "ps/worker.h"

namespace tfdist::testing::ps_client_client_test {
namespace {

using Floats = std::vector<float>;

Floats Ramp(size_t count, float from) {
  Floats values(count);
  std::iota(values.begin(), values.end(), from);
  return values;
}

TEST_CASE("create pull push") {
  const auto server = StartServer(AsyncJob(1));
  Worker worker(0);
  worker.Connect(*server);
  const int a = worker.Make<float>("a", {1, 2, 3});
  const int b = worker.Make<int64_t>("b", {int64_t{1} << 40}, DType::kInt64);
  const int nothing = worker.Make<float>("nothing", {});
  CHECK(worker.Value(a) == Floats({1, 2, 3}));
  CHECK_OK(worker.Pull({a, b, nothing}));
  CHECK(worker.allocated == std::vector<int>({a, b, nothing}));
  CHECK(worker.Value(a) == Floats({1, 2, 3}));

  // Without a change, nothing is transferred.
  CHECK_OK(worker.Pull({a, b, nothing}));
  CHECK(worker.allocated.empty());
  CHECK_OK(worker.Push<float>({{a, {1, 2, 3}}}));
  CHECK_OK(worker.client().Flush(kPatience));
  CHECK(server->stats().pushes == 0);

  // A single worker assigns. Only the changed parameter is fetched again.
  CHECK_OK(worker.Push<int64_t>({{b, {(int64_t{1} << 40) + 1}}}));
  CHECK(worker.Value<int64_t>(b)[0] == (int64_t{1} << 40) + 1);
  CHECK_OK(worker.Pull({a, b, nothing, b}));
  CHECK(worker.allocated == std::vector<int>({b}));
  CHECK(worker.Value<int64_t>(b)[0] == (int64_t{1} << 40) + 1);
  CHECK(server->stats().pushes == 1);

  const ps::ClientStats stats = worker.client().stats();
  CHECK((stats.pulls == 3 && stats.pushes == 1 && stats.dropped_pushes == 0));
  CHECK((stats.bytes_pulled == 12 + 8 + 8 && stats.bytes_pushed == 8));
  CHECK((stats.pull_nanoseconds > 0 && stats.push_nanoseconds > 0 && stats.reconnections == 0));
  CHECK_OK(worker.client().Leave(kPatience));
}

TEST_CASE("first creator wins") {
  const auto server = StartServer(AsyncJob(2));
  Worker first(0, 2), second(1, 2);
  first.Connect(*server);
  second.Connect(*server);
  const int a = first.Make<float>("a", {1, 2});
  const int also = second.Make<float>("a", {3, 4});
  CHECK(second.Value(also) == Floats({3, 4}));  // until it pulls
  CHECK_OK(second.Pull({also}, false));
  CHECK(second.Value(also) == Floats({1, 2}));

  // Several workers add. A change of a value that was not pulled is an error.
  CHECK_OK(first.Pull({a}));
  CHECK_OK(first.Push<float>({{a, {2, 4}}}));
  CHECK_OK(second.Push<float>({{also, {11, 22}}}));
  CHECK_OK(first.client().Flush(kPatience));
  CHECK_OK(second.client().Flush(kPatience));
  for (Worker* worker : {&first, &second}) {
    CHECK_OK(worker->Pull({a}));
    CHECK(worker->Value(a) == Floats({1 + 1 + 10, 2 + 2 + 20}));
  }
  CHECK(second.client().parameters().TakePulled(also).data != nullptr);
  CHECK(second.client().parameters().Pulled(also).data == nullptr);
  CHECK_STATUS(second.Push<float>({{also, {0, 0}}}), StatusCode::kFailedPrecondition);
  CHECK_OK(second.Pull({also}));
  CHECK(second.Value(also) == Floats({12, 24}));
}

template <typename T>
void TestDeltas(DType dtype, std::vector<T> then, std::vector<T> now, std::vector<T> sum) {
  const auto server = StartServer(AsyncJob(2));
  Worker first(0, 2), second(1, 2);
  first.Connect(*server);
  second.Connect(*server);
  const int a = first.Make("a", then, dtype);
  CHECK(second.Make("a", then, dtype) == a);
  for (Worker* worker : {&first, &second}) CHECK_OK(worker->Pull({a}));
  for (Worker* worker : {&first, &second}) CHECK_OK(worker->Push<T>({{a, now}}));
  for (Worker* worker : {&first, &second}) CHECK_OK(worker->client().Flush(kPatience));
  CHECK_OK(first.Pull({a}));
  CHECK(first.Value<T>(a) == sum);
}

TEST_CASE("deltas of all dtypes") {
  TestDeltas<float>(DType::kFloat32, {1, 2.5f}, {2, 2}, {3, 1.5f});
  TestDeltas<double>(DType::kFloat64, {1, 1e15}, {2, 1e15 + 1}, {3, 1e15 + 2});
  TestDeltas<int32_t>(DType::kInt32, {7, -2147483647}, {9, 2147483647}, {11, 2147483645});
  TestDeltas<int64_t>(DType::kInt64, {0, 5}, {int64_t{1} << 50, 4}, {int64_t{1} << 51, 3});
  // 1, -2 and 3, -3 and 5, -4.
  TestDeltas<uint16_t>(DType::kFloat16, {0x3c00, 0xc000}, {0x4200, 0xc200}, {0x4500, 0xc400});
  TestDeltas<uint16_t>(DType::kBFloat16, {0x3f80, 0xc000}, {0x4040, 0xc040}, {0x40a0, 0xc080});
}

TEST_CASE("gradients") {
  const auto server = StartServer(AsyncJob(1));
  Worker worker(0);
  worker.Connect(*server);
  const int a = worker.Make<float>("a", {1, 2, 3, 4});
  const int b = worker.Make<float>("b", {5});
  REQUIRE_OK(worker.BindSgd({a, b}));
  CHECK_OK(worker.Pull({a, b}));
  worker.Stage(a, {1, 0, 1, 0}, 0.5);
  worker.Stage(b, {4}, 0.25);
  CHECK_OK(worker.PushStaged());
  CHECK_OK(worker.Pull({a, b}));
  CHECK((worker.Value(a) == Floats({0.5, 2, 2.5, 4}) && worker.Value(b) == Floats({4})));

  // Rows 1, 0 and 1 of two; a repeated row is added up. Then no rows.
  ps::Gradient rows;
  rows.parameter = a;
  rows.values = Hold<float>({1, 2, 10, 20, 3, 4});
  rows.rows = {1, 0, 1};
  rows.width = 2;
  worker.client().parameters().Stage({}, {rows});
  CHECK_OK(worker.PushStaged());
  CHECK_OK(worker.Pull({a, b}));
  CHECK(worker.Value(a) == Floats({0.5, 2, 2.5, 4}));  // the learning rate was 0
  worker.client().parameters().Stage({1, 1}, {rows});
  rows.rows.clear();
  rows.values = {};
  worker.client().parameters().Stage({1, 1}, {rows});
  CHECK_OK(worker.PushStaged());
  CHECK_OK(worker.Pull({a, b}));
  CHECK(worker.Value(a) == Floats({-9.5, -18, -1.5, -2}));
  CHECK(worker.client().stats().pushes == 3);

  rows.rows = {2};
  worker.client().parameters().Stage({}, {rows});
  const Status beyond = worker.PushStaged();
  CHECK_STATUS(beyond, StatusCode::kInvalidArgument);
  CHECK_CONTAINS(beyond.message(), "received row 2");
  rows.width = 3;
  worker.client().parameters().Stage({}, {rows});
  CHECK_STATUS(worker.PushStaged(), StatusCode::kInvalidArgument);
}

TEST_CASE("split parameter") {
  const auto left = StartServer(AsyncJob(2)), right = StartServer(AsyncJob(2));
  Worker worker(0, 2, 2), other(1, 2, 2);
  for (Worker* one : {&worker, &other}) {
    one->Connect(*left, 0);
    one->Connect(*right, 1);
  }
  const int split = worker.Add("split", {40000, 60000});
  CHECK(other.Add("split", {40000, 60000}) == split);
  REQUIRE_OK(worker.Create(split, Ramp(100000, 0)));
  REQUIRE_OK(other.Create(split, Ramp(100000, 7)));
  CHECK_OK(other.Pull({split}));
  CHECK(other.allocated == std::vector<int>({split}));
  CHECK(other.Value(split) == Ramp(100000, 0));

  // New memory, or the memory of the last pulled value: both have the unchanged shards.
  Floats expected = Ramp(100000, 0);
  for (const bool in_place : {false, true}) {
    worker.in_place = in_place;
    for (const size_t changed : {size_t{10}, size_t{99999}, size_t{39999}}) {
      CHECK_OK(worker.Pull({split}));
      CHECK(worker.Value(split) == expected);
      CHECK_OK(other.Pull({split}));
      expected[changed] += 0.5f;
      CHECK_OK(other.Push<float>({{split, expected}}));
      CHECK_OK(other.client().Flush(kPatience));
    }
  }
  CHECK_OK(worker.Pull({split}));
  CHECK(worker.Value(split) == expected);
  // Each push changed one shard, but both servers counted it.
  const uint64_t received = left->stats().bytes_received + right->stats().bytes_received;
  CHECK(received == 400000 + 4 * 40000 * 4 + 2 * 60000 * 4);
  CHECK((left->stats().pushes == 6 && right->stats().pushes == 6));

  // A gradient of rows is split by server.
  REQUIRE_OK(worker.BindSgd({split}));
  ps::Gradient rows;
  rows.parameter = split;
  rows.width = 20000;
  rows.rows = {4, 1, 2};
  rows.values = Hold(Filled<float>(60000, 1));
  for (int i = 0; i < 3; ++i) {
    Floats& values = *static_cast<Floats*>(rows.values.owner.get());
    std::fill_n(values.begin() + 20000 * i, 20000, static_cast<float>(i + 1));
  }
  worker.client().parameters().Stage({1, 1}, {rows});
  CHECK_OK(worker.PushStaged());
  CHECK_OK(worker.Pull({split}));
  for (size_t i = 0; i < expected.size(); ++i) {
    expected[i] -= std::vector<float>{0, 2, 3, 0, 1}[i / 20000];
  }
  CHECK(worker.Value(split) == expected);
}

TEST_CASE("set and exclude") {
  const auto server = StartServer(AsyncJob(2));
  Worker worker(0, 2), other(1, 2);
  worker.Connect(*server);
  other.Connect(*server);
  const int a = worker.Make<float>("a", {1, 2});
  const int slot = worker.Make<float>("slot", {0, 0});
  CHECK((other.Make<float>("a", {1, 2}) == a));
  CHECK_OK(worker.Pull({a}));
  CHECK_OK(Call([&](ps::Done done) {
    worker.client().parameters().Set({{a, Hold<float>({7, 8})}}, std::move(done));
  }));
  CHECK(worker.Value(a) == Floats({7, 8}));
  CHECK_OK(worker.PushStaged());  // pushes nothing
  CHECK_OK(other.Pull({a}));
  CHECK(other.Value(a) == Floats({7, 8}));
  CHECK_OK(worker.Pull({a}));
  CHECK(worker.allocated == std::vector<int>({a}));

  ps::OptimizerConfig momentum;
  momentum.momentum = 0.5;
  REQUIRE_OK(Call([&](ps::Done done) {
    worker.client().parameters().Bind(momentum, {{a, {slot}, 0}}, std::move(done));
  }));
  CHECK((worker.client().parameters().IsExcluded(slot) &&
         !worker.client().parameters().IsExcluded(a)));
  worker.Stage(a, {1, 2});
  CHECK_OK(worker.PushStaged());
  CHECK_OK(worker.Pull({a, slot}));
  CHECK((worker.Value(a) == Floats({6, 6}) && worker.Value(slot) == Floats({-1, -2})));
}

TEST_CASE("many parameters in one request") {
  const auto server = StartServer(AsyncJob(1));
  Worker worker(0);
  worker.Connect(*server);
  std::vector<int> all;
  for (int i = 0; i < 700; ++i) {
    all.push_back(worker.Make("p" + std::to_string(i), Filled(i % 40, static_cast<float>(i))));
  }
  CHECK_OK(worker.Pull(all));
  CHECK(server->stats().pulls == 1);
  std::map<int, Floats> changed;
  for (const int id : all) changed[id] = Filled(id % 40, static_cast<float>(-id));
  CHECK_OK(worker.Push(changed));
  CHECK_OK(worker.Pull(all));
  CHECK((server->stats().pulls == 2 && server->stats().pushes == 1));
  for (const int id : all) CHECK(worker.Value(id) == Filled(id % 40, static_cast<float>(-id)));
}

}  // namespace
}  // namespace tfdist::testing::ps_client_client_test
