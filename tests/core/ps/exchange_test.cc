// Exchanges of elastic averaging: parameters on the servers and workers' values attract each other.
#include <cmath>

#include "proxy.h"
#include "ps/worker.h"

namespace tfdist::testing::ps_exchange_test {
namespace {

using Floats = std::vector<float>;

// Exchanges a worker's value of one parameter, and moves the value.
template <typename T>
Status Exchange(Worker* worker, int parameter, double alpha, std::vector<T>* x) {
  auto moves = std::make_shared<std::vector<T>>(x->size());
  const ps::Memory memory = {reinterpret_cast<char*>(moves->data()), moves};
  const Status status = Call([&](ps::Done done) {
    worker->client().averaging().Exchange({{parameter, Hold(*x)}}, {memory}, alpha,
                                          std::move(done));
  });
  for (size_t i = 0; status.ok() && i < x->size(); ++i) (*x)[i] -= (*moves)[i];
  return status;
}

// TensorFlow 1's ElasticAverageOptimizer, in the case of its own test: two workers, period 1, a
// learning rate of 1, a gradient of -1, and an elasticity of 1/2. They take turns.
TEST_CASE("turns") {
  const auto server = StartServer(AsyncJob(2));
  Worker first(0, 2), second(1, 2);
  for (Worker* worker : {&first, &second}) worker->Connect(*server);
  const int at_first = first.Make("centre", Floats{0});
  const int at_second = second.Make("centre", Floats{0});
  Floats x0 = {1}, x1 = {1};
  CHECK_OK(Exchange(&first, at_first, 0.5, &x0));
  CHECK_OK(Exchange(&second, at_second, 0.5, &x1));
  CHECK_OK(first.Pull({at_first}, false));
  CHECK((x0[0] == 0.5f && x1[0] == 0.75f && first.Value(at_first)[0] == 0.75f));
}

// On two servers, of which each holds a part.
template <typename T>
void TestSplit(DType dtype) {
  const auto one = StartServer(AsyncJob(1)), other = StartServer(AsyncJob(1));
  Worker worker(0, 1, 2);
  worker.Connect(*one, 0);
  worker.Connect(*other, 1);
  const int parameter = worker.Add("centre", {500, 301}, dtype);
  std::vector<T> centre(801), x(801);
  for (size_t i = 0; i < x.size(); ++i) {
    centre[i] = static_cast<T>(i);
    x[i] = static_cast<T>(3 * i + 8);
  }
  REQUIRE_OK(worker.Create(parameter, centre));
  CHECK_OK(Exchange(&worker, parameter, 0.25, &x));
  CHECK_OK(worker.Pull({parameter}, false));
  const std::vector<T> moved = worker.Value<T>(parameter);
  for (size_t i = 0; i < x.size(); ++i) {
    CHECK(moved[i] == static_cast<T>(1.5 * static_cast<double>(i) + 2));
    CHECK(x[i] == static_cast<T>(2.5 * static_cast<double>(i) + 6));
  }
}

// 1, 2 and 3 as bfloat16.
TEST_CASE("sixteen bits") {
  const auto server = StartServer(AsyncJob(1));
  Worker worker(0);
  worker.Connect(*server);
  const int parameter = worker.Make("centre", std::vector<uint16_t>{0x3f80}, DType::kBFloat16);
  auto move = std::make_shared<uint16_t>(0);
  CHECK_OK(Call([&](ps::Done done) {
    worker.client().averaging().Exchange({{parameter, Hold(std::vector<uint16_t>{0x4040})}},
                                         {{reinterpret_cast<char*>(move.get()), move}}, 0.5,
                                         std::move(done));
  }));
  CHECK_OK(worker.Pull({parameter}, false));
  CHECK((*move == 0x3f80 && worker.Value<uint16_t>(parameter)[0] == 0x4000));
}

// Wherever a connection breaks, the centre moves once.
void TestBrokenConnections(bool to_server) {
  const auto server = StartServer(AsyncJob(2));
  Proxy proxy(server->port());
  Worker worker(0, 2);
  const auto connect = [&] { REQUIRE_OK(worker.Connect(0, proxy.port(), server->incarnation())); };
  connect();
  const int parameter = worker.Make("centre", Floats(40));
  const auto direction = to_server ? Proxy::kToServer : Proxy::kToClient;
  proxy.Arm(direction, 0, Proxy::Fault::kNone);
  Floats x(40, 1.0f);
  CHECK_OK(Exchange(&worker, parameter, 0.5, &x));
  const uint64_t bytes = proxy.passed(direction);
  double centre = 0.5;
  for (uint64_t position = 0; position < bytes; position += 7) {
    proxy.Arm(direction, position, Proxy::Fault::kCut);
    const Floats before(40, static_cast<float>(centre + 2));
    auto moves = std::make_shared<Floats>(40);
    Ending ending = Start([&](ps::Done done) {
      worker.client().averaging().Exchange({{parameter, Hold(before)}},
                                           {{reinterpret_cast<char*>(moves->data()), moves}}, 0.5,
                                           std::move(done));
    });
    CHECK(worker.client().WaitForLost(kPatience) == 0);
    connect();
    CHECK_OK(Wait(ending));
    centre += 1;
    CHECK_OK(worker.Pull({parameter}, false));
    CHECK(worker.Value(parameter) == Floats(40, static_cast<float>(centre)));
    // 1, or half of it if only the answer was lost: the centre had moved already.
    CHECK((*moves == Floats(40, 1.0f) || *moves == Floats(40, 0.5f)));
  }
}

TEST_CASE("a restarted worker begins again") {
  const auto server = StartServer(AsyncJob(1));
  for (const uint64_t process : {7, 8}) {
    Worker worker(0, 1, 1, kPatience, process);
    worker.Connect(*server);
    const int parameter = worker.Make("centre", Floats{0});
    Floats x = {8};
    CHECK_OK(Exchange(&worker, parameter, 0.5, &x));
    CHECK(x[0] == (process == 7 ? 4.0f : 6.0f));
  }
}

TEST_CASE("refusals") {
  const auto server = StartServer(AsyncJob(1));
  Worker worker(0);
  worker.Connect(*server);
  const int parameter = worker.Make("centre", Floats{1});
  const int count = worker.Make("count", std::vector<int64_t>{1}, DType::kInt64);
  Floats x = {2};
  for (const double alpha : {0.0, -0.5, 1.5, std::nan("")}) {
    const Status status = Exchange(&worker, parameter, alpha, &x);
    CHECK(status.code() == StatusCode::kInvalidArgument);
    CHECK_CONTAINS(status.message(), "expected an elasticity above 0 and at most 1");
  }
  std::vector<int64_t> number = {3};
  const Status status = Exchange(&worker, count, 0.5, &number);
  CHECK(status.code() == StatusCode::kInvalidArgument);
  CHECK_CONTAINS(status.message(), "'count': expected floating-point numbers to average");
  CHECK(Exchange(&worker, 99, 0.5, &x).code() == StatusCode::kInvalidArgument);
  CHECK_OK(worker.Pull({parameter}, false));
  CHECK((worker.Value(parameter)[0] == 1 && x[0] == 2));
}

TEST_CASE("split") {
  TestSplit<float>(DType::kFloat32);
  TestSplit<double>(DType::kFloat64);
}

TEST_CASE("broken connections") {
  TestBrokenConnections(/*to_server=*/true);
  TestBrokenConnections(/*to_server=*/false);
}

}  // namespace
}  // namespace tfdist::testing::ps_exchange_test
