// AdaptiveRevision: Adagrad's steps without delay, the paper's with one, and its regret.
#include "core/ps/optimizers/adaptive_revision.h"

#include <cmath>
#include <deque>
#include <utility>

#include "ps/raw_ps_worker.h"

namespace tfdist::testing::ps_optimizers_adaptive_revision_test {
namespace {

using ps::RevisionRuns;
using ps::StepRuns;
using ps::StepValues;

OptimizerConfig Adagrad(double epsilon = 0) {
  OptimizerConfig config;
  config.kind = ps::OptimizerKind::kAdagrad;
  config.epsilon = epsilon;
  return config;
}

// Elements on one server.
template <typename T>
struct Elements {
  std::vector<T> value, accumulator, sum, deficit;

  Elements(std::vector<T> start, T initial)
      : value(std::move(start)),
        accumulator(value.size(), initial),
        sum(value.size(), 0),
        deficit(value.size(), 0) {}

  // `pulled`: the sum when the worker pulled; null for Adagrad.
  void Step(const std::vector<T>& gradient, double rate, const std::vector<T>* pulled,
            double epsilon = 0, double decay = 0) {
    constexpr DType kType = sizeof(T) == 8 ? DType::kFloat64 : DType::kFloat32;
    StepRuns runs;
    runs.gradient = gradient.data();
    runs.value = {value.data(), value.data()};
    runs.slots[0] = {accumulator.data(), accumulator.data()};
    const StepValues step{rate, 1};
    if (pulled == nullptr) {
      Optimize(Adagrad(epsilon), step, decay, kType, value.size(), runs);
    } else {
      const RevisionRuns revision{pulled->data(), sum.data(), deficit.data()};
      ReviseAdagrad(Adagrad(epsilon), step, decay, kType, value.size(), runs, revision);
    }
  }
};

template <typename T>
void TestWithoutDelayItIsAdagrad() {
  Elements<T> revised({1, -2, T(0.3)}, T(0.1)), plain = revised;
  for (int i = 0; i < 100; ++i) {
    const std::vector<T> gradient = {T(std::sin(i)), T(i % 7) - 3, T(i % 2)};
    const std::vector<T> pulled = revised.sum;
    revised.Step(gradient, 0.3, &pulled, 1e-7, i % 3 * 0.01);
    plain.Step(gradient, 0.3, nullptr, 1e-7, i % 3 * 0.01);
    CHECK((revised.value == plain.value && revised.accumulator == plain.accumulator));
  }
  CHECK(revised.deficit == std::vector<T>(3, 0));
}

TEST_CASE("delayed step") {
  using Doubles = std::vector<double>;
  const auto near = [](double a, double b) { return std::abs(a - b) < 1e-12; };
  Elements<double> one({0}, 1);
  const Doubles start = one.sum;
  one.Step({2}, 1, &start);
  CHECK((near(one.value[0], -2 / std::sqrt(5)) && one.accumulator[0] == 5));
  // With the backward gradient 2: both steps get the rate of 5 + 1 + 2 * 2 = 10.
  one.Step({1}, 1, &start);
  CHECK((near(one.value[0], -3 / std::sqrt(10)) && one.accumulator[0] == 10));
  // Against the backward gradients z falls, to 10 + 1 - 2 * 3 = 5; the rate never rises.
  one.Step({-1}, 1, &start);
  CHECK((near(one.value[0], -2 / std::sqrt(10)) && one.accumulator[0] == 10));
  CHECK((one.deficit[0] == 5 && one.sum[0] == 2));
  const Doubles now = one.sum;
  one.Step({3}, 1, &now);  // z is 14
  CHECK((near(one.value[0], -2 / std::sqrt(10) - 3 / std::sqrt(14)) && one.accumulator[0] == 14));
  CHECK(one.deficit[0] == 0);
}

// The regret of f(x) = |x - 1| from x = 0 in 4,000 steps, whose gradients arrive `delay` steps
// late.
double Regret(int delay, bool revises) {
  constexpr double kRate = 1, kInitial = 0.01;
  Elements<double> one({0}, kInitial);
  std::deque<std::pair<double, std::vector<double>>> late;
  double regret = 0;
  for (int step = 0; step < 4000; ++step) {
    const double distance = one.value[0] - 1;
    regret += std::abs(distance);
    late.emplace_back(distance > 0 ? 1 : -1, one.sum);
    if (static_cast<int>(late.size()) <= delay) continue;
    const auto [gradient, pulled] = late.front();
    late.pop_front();
    one.Step({gradient}, kRate, revises ? &pulled : nullptr);
  }
  return regret;
}

TEST_CASE("regret with fixed delays") {
  CHECK(Regret(0, true) == Regret(0, false));
  const double without = Regret(0, false);
  // Adagrad's regret grows with the delay, adaptive revision's with its root.
  for (const int delay : {4, 16, 64}) {
    const double adagrad = Regret(delay, false), revised = Regret(delay, true);
    std::printf("delay %d: regret %.0f of Adagrad, %.0f of adaptive revision\n", delay, adagrad,
                revised);
    CHECK(revised < without * std::sqrt(1 + delay));
    CHECK(adagrad > without * (1 + delay) * 0.9);
  }
}

TEST_CASE("on server") {
  ServerOptions options = Options(Mode::kAsync, 2);
  options.compensation = ps::Compensation::kAdaptiveRevision;
  auto server = StartServer(options);
  RawPsWorker late(*server, 0), other(*server, 1);
  const auto make = [&](const std::string& name, const Floats& value) {
    const uint32_t shard = late.Create(name, value);
    const uint32_t slot = late.Create(name + "/accumulator", Floats(value.size(), 1));
    late.Bind(Adagrad(), shard, {slot});
    return std::pair(shard, slot);
  };
  const auto [w, w_slot] = make("w", Floats{0});
  const auto [rows, rows_slot] = make("rows", Floats{0, 0, 0});
  const auto is = [&](uint32_t shard, std::vector<double> expected) {
    const Floats values = other.Value(shard);
    CHECK(values.size() == expected.size());
    for (size_t i = 0; i < values.size(); ++i) CHECK(std::abs(values[i] - expected[i]) < 1e-6);
  };
  late.Pull({w, rows});
  other.Pull({w, rows});
  other.Push(w, UpdateKind::kGradient, Floats{2});
  other.PushRows(rows, {0, 2}, {2, 5});
  late.Push(w, UpdateKind::kGradient, Floats{1});
  late.PushRows(rows, {0, 1}, {1, 3});
  is(w, {-3 / std::sqrt(10)});
  is(w_slot, {10});
  is(rows, {-3 / std::sqrt(10), -3 / std::sqrt(10), -5 / std::sqrt(26)});
  is(rows_slot, {10, 10, 26});
  // The next pull begins without backward gradients; binding again changes nothing.
  late.Bind(Adagrad(), w, {w_slot});
  late.Pull({w, rows});
  late.Push(w, UpdateKind::kGradient, Floats{1});
  is(w, {-3 / std::sqrt(10) - 1 / std::sqrt(11)});
  // A snapshot continues with Adagrad's accumulator.
  auto next = StartServer(options, server->TakeSnapshot());
  RawPsWorker again(*next, 0);
  again.sequence = 100;
  again.Bind(Adagrad(), again.Create("w", Floats{0}), {again.Create("w/accumulator", Floats{0})});
  again.Pull({w});
  again.Push(w, UpdateKind::kGradient, Floats{2});
  const double expected = -3 / std::sqrt(10) - 1 / std::sqrt(11) - 2 / std::sqrt(15);
  CHECK(std::abs(again.Value(w)[0] - expected) < 1e-6);
}

TEST_CASE("refusals") {
  ServerOptions options = Options(Mode::kAsync, 1);
  options.compensation = ps::Compensation::kAdaptiveRevision;
  auto server = StartServer(options);
  RawPsWorker worker(*server, 0);
  const uint32_t w = worker.Create("w", Floats{0});
  const Status status =
      worker.Try(MessageType::kBind, Encode(ps::BindRequest{Sgd(), {{w, {}, 0}}})).status;
  CHECK_STATUS(status, StatusCode::kInvalidArgument);
  CHECK_CONTAINS(status.message(), "shard 'w': adaptive revision revises the steps of Adagrad");
  options.hogwild = true;
  std::unique_ptr<Server> none;
  const Status refused = Server::Create(options, "", 0, true, &none);
  CHECK_CONTAINS(refused.message(), "adaptive revision does not go with hogwild");
}

TEST_CASE("without delay it is adagrad") {
  TestWithoutDelayItIsAdagrad<float>();
  TestWithoutDelayItIsAdagrad<double>();
}

}  // namespace
}  // namespace tfdist::testing::ps_optimizers_adaptive_revision_test
